"""What each client of a server is doing, for who watches: from the gate's view of it and how far its round is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ternfed.engines.flower.presence import Presence
from ternfed.runs.live import ClientState, Moment, Phase


def moment_of(
    gate: Presence,
    clients: Collection[int],
    round: int,
    began: float,
    phase: Phase,
    *,
    asked: Collection[int] = (),
    counted: Collection[int] = (),
    dropped: Mapping[int, str] | None = None,
) -> Moment:
    """This moment of a round: who was asked and has not answered, whose upload counted, and why others' did not."""
    states: dict[int, ClientState] = {}
    for client in sorted(clients):
        if client in counted:
            states[client] = "done"
        elif dropped and client in dropped:
            states[client] = _dropped(dropped[client])
        elif client in asked:
            states[client] = "uploading" if gate.is_uploading(client) else "training"
        else:
            states[client] = "ready" if gate.is_ready(client) else "away"
    return Moment(round, phase, began, states, gate.refused)


def _dropped(reason: str) -> ClientState:
    if reason.endswith("was not there"):
        return "away"
    return "late" if "did not answer within" in reason else "dropped"

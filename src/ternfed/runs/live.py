"""What a run is doing at this moment: a value that engines tell, and `live.json`, which shows it to other processes.

The file is no part of a run's result. It is replaced as often as something happens, and gone when the run ends well; a
killed run leaves it behind, and the lock on the folder tells that nobody writes there any more (`being_written`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from ternfed.files import json_page, read_json, write_atomically

FILE = "live.json"
EVERY = 0.2
"""Seconds between two writings for the same phase of a round."""

Phase = Literal["waiting", "broadcast", "train", "aggregate", "done"]
ClientState = Literal["away", "ready", "asked", "training", "uploading", "done", "late", "dropped"]
"""Of a client: not connected; connected; of this round but not begun; at work; sending; counted; too late; refused."""


@dataclass(frozen=True)
class Moment:
    """One moment of a run."""

    round: int
    """The one that is being played; the first is 1."""
    phase: Phase
    began: float
    """When this round began, in seconds since 1970."""
    clients: Mapping[int, ClientState] = field(default_factory=dict)
    """Those that something is known of; of a simulated run, those of this round."""
    refused: int = 0
    """So many connections were turned away since the server was started."""

    def at(self, phase: Phase) -> Moment:
        return replace(self, phase=phase)

    def with_client(self, client: int, state: ClientState) -> Moment:
        return replace(self, clients={**self.clients, client: state})

    @property
    def done(self) -> int:
        """Clients of this round that are through with it, one way or the other."""
        return sum(state in ("done", "late", "dropped") for state in self.clients.values())

    @property
    def asked(self) -> int:
        """Clients of this round."""
        return sum(state not in ("away", "ready") for state in self.clients.values())


Tell = Callable[[Moment], None]
"""Called by an engine with every moment that may be worth showing."""


def tell_nobody(moment: Moment) -> None:
    """For who does not want to know."""


def both(one: Tell, other: Tell) -> Tell:
    """Tells two."""

    def tell(moment: Moment) -> None:
        one(moment)
        other(moment)

    return tell


class LiveFile:
    """Keeps `live.json` of a run folder at the present moment."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._last: Moment | None = None
        self._written = -EVERY

    def tell(self, moment: Moment) -> None:
        """Write it down, unless it hardly differs from one a moment ago. A full disk is no reason to stop a run."""
        last, now = self._last, time.monotonic()
        same = last is not None and (last.round, last.phase) == (moment.round, moment.phase)
        if moment == last or (same and now - self._written < EVERY):
            return
        self._last, self._written = moment, now
        with contextlib.suppress(OSError):
            write_atomically(self._file, json_page(asdict(moment)), lasting=False)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)


def read_moment(folder: Path) -> Moment | None:
    """What a run folder says of the present; None where it says nothing that can be read."""
    values: Any = read_json(folder / FILE)
    try:
        clients = {int(client): cast(ClientState, str(state)) for client, state in values["clients"].items()}
        began, refused = float(values["began"]), int(values["refused"])
        return Moment(int(values["round"]), cast(Phase, str(values["phase"])), began, clients, refused)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None

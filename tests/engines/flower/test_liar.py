"""A liar over Flower counts as it does in the simulator: the server's half of a round, with uploads handed to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import open_digits

from ternfed.engines.flower import adapter, server
from ternfed.engines.flower.envelope import content
from ternfed.experiment.experiment import Experiment
from ternfed.round import audit
from ternfed.round.acceptance import Bounds, accepted
from ternfed.round.audit import finished, is_audited
from ternfed.round.exchange import Broadcasts, collect, reply
from ternfed.round.federation import Federation, answer
from ternfed.round.intake import Intake
from ternfed.wire import Message

SETTINGS = (
    "federation.clients=4", "federation.participation=1", "federation.rounds=1", "training.epochs=1",
    "algorithm.name=fedavg", "federation.aggregate=clipped_mean",
)  # fmt: skip
LIAR = 2


def uploads_of(federation: Federation) -> dict[int, bytes]:
    """What the clients send: one of them a model far off, for ten million samples."""
    algorithm = federation.algorithm
    broadcast = Broadcasts(algorithm, federation.open().server, 1).any()
    sent = {index: answer(federation.site(index), 1, broadcast, algorithm.client_memory())[0] for index in range(4)}
    honest = collect(algorithm, sent[LIAR], broadcast)
    far = Message({name: value + 9 for name, value in honest.tensors.items()}, {})  # type: ignore[operator]
    sent[LIAR] = reply(algorithm, far, {**honest.numbers, "samples": 1e7}, broadcast)
    return sent


class Wire:
    """Flower and the gate, as far as a round needs them: uploads come in an order of choice."""

    def __init__(self, sent: dict[int, bytes], order: Sequence[int]) -> None:
        self.sent, self.order = sent, order
        self.nodes, self.refused, self.latency = dict.fromkeys(sent, 0), 0, 0.0

    def is_coming(self, client: int, message: str) -> bool:
        return False

    def is_uploading(self, client: int) -> bool:
        return False

    def push(self, clients: Sequence[int], group: str, records: Any, seconds: float) -> list[str]:
        return [str(client) for client in clients]

    def pull(self, identities: Sequence[str]) -> list[Any]:
        return [
            SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=str(client)),
                has_error=lambda: False,
                content=content(self.sent[client]),
            )
            for client in self.order
        ]

    def is_ready(self, client: int) -> bool:
        return True

    def wait(self, seconds: float) -> None: ...

    def wake(self) -> None: ...


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 3, 1, 0)])
def test_the_same_bits_and_the_same_words_in_any_order(order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "is_from_flower", lambda reply: False)
    federation = open_digits(Experiment.from_toml("", SETTINGS))
    algorithm, sent = federation.algorithm, uploads_of(federation)
    broadcast = Broadcasts(algorithm, federation.open().server, 1).any()
    here = Intake.of(algorithm, broadcast, federation.registered, 4)
    for index, data in sent.items():
        message, sender = collect(algorithm, data, broadcast), federation.site(index).client(1)
        here.add(index, accepted(algorithm, federation.network, message, broadcast, sender, Bounds()))
    wire = Wire(sent, order)
    connections: Any = SimpleNamespace(link=wire, gate=wire, answering=set(), tell=lambda moment: None)
    attempt = server._Attempt(federation, connections, federation.open(), server.Terms(deadline=5.0), {})
    attempt.play()
    there, expected = attempt.finished(), here.finish()
    assert not attempt.dropped
    assert all(torch.equal(tensor, expected.average[name]) for name, tensor in there.average.items())
    assert there.notes == expected.notes
    assert "claimed 10000000 samples" in there.notes[LIAR]
    assert "left out" in there.notes[LIAR]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 3, 1, 0)])
def test_an_upload_that_does_harm_is_left_out_by_the_same_audit(
    order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "is_from_flower", lambda reply: False)
    federation = open_digits(Experiment.from_toml("", (*SETTINGS, "federation.audit=0.03", "training.epochs=3")))
    algorithm, sent, state = federation.algorithm, uploads_of(federation), federation.open()
    broadcast = Broadcasts(algorithm, state.server, 1).any()
    honest = collect(algorithm, answer(federation.site(LIAR), 1, broadcast, None)[0], broadcast)
    start = broadcast.message.tensors
    turned = {name: 2 * start[name] - value for name, value in honest.tensors.items()}  # type: ignore[operator]
    sent[LIAR] = reply(algorithm, Message(turned, {}), honest.numbers, broadcast)
    here = Intake.of(algorithm, broadcast, federation.registered, 4, is_audited(federation, 4))
    for index, data in sent.items():
        message, sender = collect(algorithm, data, broadcast), federation.site(index).client(1)
        here.add(index, accepted(algorithm, federation.network, message, broadcast, sender, Bounds()))
    wire = Wire(sent, order)
    connections: Any = SimpleNamespace(link=wire, gate=wire, answering=set(), tell=lambda moment: None)
    attempt = server._Attempt(federation, connections, state, server.Terms(deadline=5.0), {})
    attempt.play()
    there, expected = attempt.finished(), finished(federation, state, here)
    assert all(torch.equal(tensor, expected.average[name]) for name, tensor in there.average.items())
    assert there.notes == expected.notes
    assert "left out, the loss on held-out data is" in there.notes[LIAR]


def test_uploads_of_a_large_round_are_not_held_for_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = open_digits(Experiment.from_toml("", (*SETTINGS, "federation.audit=0.03")))
    size = max(schema.size for schema in federation.algorithm.up)
    monkeypatch.setattr(audit, "MOST_BYTES", 4 * size)
    assert [is_audited(federation, asked) for asked in (4, 5)] == [True, False]


def test_a_refused_upload_is_named_in_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "is_from_flower", lambda reply: False)
    federation = open_digits(Experiment.from_toml("", SETTINGS))
    wire = Wire(uploads_of(federation), range(4))
    connections: Any = SimpleNamespace(link=wire, gate=wire, answering=set(), tell=lambda moment: None)
    terms = replace(server.Terms(deadline=5.0), bounds=Bounds(weight=5.0))
    attempt = server._Attempt(federation, connections, federation.open(), terms, {})
    attempt.play()
    assert set(attempt.dropped) == {LIAR}
    assert "is more than 5" in attempt.dropped[LIAR]

"""What a large model costs in memory, and that nothing is done for nobody."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")
pytest.importorskip("sklearn", reason="the digits come with scikit-learn, the extra [data]")

from harness import open_digits, small

from ternfed.bench import large_round
from ternfed.engines.flower import local, server
from ternfed.engines.flower.door import Caller
from ternfed.round import exchange
from ternfed.round.federation import answer, let_go


class Nobody:
    """A gate at which no client is."""

    latency = 0.0
    refused = 0
    nodes: tuple[int, ...] = ()

    def is_ready(self, client: int) -> bool:
        return False

    def wait(self, seconds: float) -> None: ...


def test_nothing_is_encoded_while_nobody_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> bytes:
        raise AssertionError("a broadcast was encoded")

    federation = open_digits(small(3, 1))
    connections: Any = SimpleNamespace(link=None, gate=Nobody(), answering=set(), tell=lambda moment: None)
    monkeypatch.setattr(exchange, "send", refuse)
    attempt = server._Attempt(federation, connections, federation.open(), server.Terms(deadline=5.0), {})
    attempt.play()
    assert attempt.dropped == {client: f"client {client}: was not there" for client in range(3)}


@pytest.mark.parametrize(
    ("asks", "reason"),
    [(True, "its upload broke off"), (False, "did not answer within 0.01 s")],
    ids=["asks", "silent"],
)
def test_a_reply_that_is_not_whole_is_not_asked_for_and_its_client_is_dropped(asks: bool, reason: str) -> None:
    """Flower would wait for the rest of it, and no other reply would be read meanwhile."""
    asked = list[list[str]]()

    class Gate(Nobody):
        def is_ready(self, client: int) -> bool:
            return asks or not asked

        def is_uploading(self, client: int) -> bool:
            return False

        def is_coming(self, client: int, message: str) -> bool:
            return client == 1

        def wake(self) -> None: ...

        def forget(self, client: int) -> list[str]:
            return []

    class Link:
        def push(self, clients: list[int], *more: Any) -> list[str]:
            return [f"to {client}" for client in clients]

        def pull(self, identities: list[str]) -> list[Any]:
            asked.append(identities)
            return []

        def discard(self, identities: list[str]) -> None: ...

    federation = open_digits(small(3, 1))
    connections: Any = SimpleNamespace(link=Link(), gate=Gate(), answering=set(), tell=lambda moment: None)
    attempt = server._Attempt(federation, connections, federation.open(), server.Terms(deadline=0.01), {})
    attempt.play()
    assert asked
    assert all("to 1" not in each and {"to 0", "to 2"} <= set(each) for each in asked)
    assert attempt.dropped[1] == f"client 1: {reason}"
    assert attempt.dropped[0] == "client 0: did not answer within 0.01 s"


@pytest.mark.parametrize("name", ["tfedavg", "eden", "fedpm", "cmfl"])
def test_a_model_whose_own_values_were_let_go_trains_and_scores_as_before(name: str) -> None:
    experiment = small(2, 1, f"algorithm.name={name}")
    federation, empty = open_digits(experiment), open_digits(experiment)
    state, memory = federation.open(), federation.algorithm.client_memory()
    broadcast = exchange.Broadcasts(federation.algorithm, state.server, 1).any()
    let_go(empty.network, empty.algorithm)
    held = [parameter.untyped_storage().nbytes() for parameter in empty.network.model.parameters()]
    assert sum(held) < 100
    uploads = [answer(each.site(0), 1, broadcast, memory)[0] for each in (federation, empty)]
    assert uploads[0] == uploads[1]
    assert federation.test.evaluate(state.server.weights) == empty.test.evaluate(state.server.weights)


def test_the_grace_follows_the_number_of_clients_and_their_pace_unless_it_is_given() -> None:
    assert server.Terms().grace_for(3, 0.0) == 6.0
    assert server.Terms().grace_for(50, 0.0) == 12.5
    assert server.Terms().grace_for(50, 20.0) == 60.0
    assert server.Terms().grace_for(50, 1e4) == 120.0
    assert server.Terms(grace=1.0).grace_for(50, 20.0) == 1.0


@given(count=st.integers(1, 60), places=st.integers(1, 16))
def test_clients_of_a_local_try_start_a_few_at_a_time_and_the_next_when_one_has_started(
    count: int, places: int
) -> None:
    turns, starting, most = threading.Semaphore(places), list[Any](), 0
    with ExitStack() as stack:
        for index in range(count):
            if len(starting) == places:
                assert not turns.acquire(blocking=False), "there was a place for one more"
                starting.pop(0)()
            starting.append(stack.enter_context(local.a_turn(turns, local.patience_of(index, places))))
            most = max(most, len(starting))
    assert most == min(count, places)
    free = [turns.acquire(blocking=False) for _ in range(places + 1)]
    assert free == [True] * places + [False], "who has gone has given its turn back, and once"


def test_a_start_that_never_ends_holds_the_others_up_for_a_while_alone() -> None:
    turns = threading.Semaphore(1)
    with local.a_turn(turns, 1.0), local.a_turn(turns, 0.01) as late:
        late()
        assert not turns.acquire(blocking=False), "it gave back what it had not"
    assert [local.patience_of(index, 8) for index in (0, 7, 8, 49)] == [60.0, 60.0, 120.0, 420.0]


def test_the_pace_of_a_client_is_the_time_from_its_reply_to_its_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("ternfed.engines.flower.door.time.monotonic", lambda: clock[0])
    caller = Caller(0, 1, None)  # type: ignore[arg-type]
    caller.asks()
    assert caller.between == 0.0
    for replied, asked, expected in ((110.0, 130.0, 20.0), (140.0, 141.0, 10.0), (150.0, 150.5, 5.0)):
        caller.replied, clock[0] = replied, asked
        caller.asks()
        assert caller.between == expected


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_round_needs_few_copies_of_a_large_model() -> None:
    peaks = {(step.side, step.name): step.peak for step in large_round.measure(8_000_000)}
    # Two layers, so that whatever is done with one of them at a time is done with half of the model.
    assert peaks["client", "received, ready to train"] < 2.6
    assert peaks["client", "upload encoded"] < 3.5
    assert max(peak for (side, _), peak in peaks.items() if side == "client") < 4.3
    assert peaks["server", "upload decoded"] < 4.6
    assert max(peak for (side, _), peak in peaks.items() if side == "server") < 7.8


def test_pieces_of_a_grid_are_the_whole_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from ternfed.quantize import grid

    value = torch.randn(37, 5, 3)
    exponents = grid.exponents_for(value.abs().flatten(1).amax(1), 5)
    for steps in (exponents, exponents.max()):
        made = []
        for piece in (7, 40, 1 << 20):
            monkeypatch.setattr(grid, "PIECE", piece)
            source = torch.Generator().manual_seed(3)
            made.append(
                (grid.on_grid(value, steps, source), grid.on_grid(value, steps), grid.nearest_codes(value, steps))
            )
        for other in made[1:]:
            assert torch.equal(other[0].codes, made[0][0].codes)
            assert torch.equal(other[1].codes, made[0][1].codes)
            assert torch.equal(other[2], made[0][2])

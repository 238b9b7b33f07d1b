"""References of any age: what the server keeps of earlier broadcasts, and what that saves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternfed.data.sets import load
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment
from ternfed.round import state as states
from ternfed.round.federation import Federation, open_federation
from ternfed.round.state import State, keep, kept_bytes, pack, unpack
from ternfed.runs.folder import Round

ROUNDS = 25


@pytest.fixture(scope="module")
def sparse() -> Federation:
    """λ = 0.1, most weights ternary."""
    options = [
        "algorithm.name=tfedavg",
        "model.hidden=[16, 192, 96]",
        "federation.clients=20",
        "federation.participation=0.1",
        f"federation.rounds={ROUNDS}",
        "training.epochs=2",
        "algorithm.plain_epochs=0",
        "algorithm.judging=off",
        "training.optimizer=adam",
        "training.rate=0.003",
    ]
    return open_federation(Experiment.from_toml("", options), load("digits"))


def rounds(federation: Federation, state: State | None = None) -> tuple[State, list[Round]]:
    played = list(simulate.play(federation, state))
    return played[-1][0], [replace(record, seconds={}) for _, record in played]


@pytest.fixture(scope="module")
def whole(sparse: Federation) -> tuple[State, list[Round]]:
    return rounds(sparse)


def forgetful(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(states, "KEPT_BYTES", most)
    monkeypatch.setattr(states, "KEPT_MODELS", 0)


def test_older_references_save_bytes_and_change_nothing_else(
    sparse: Federation, whole: tuple[State, list[Round]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, records = whole
    forgetful(monkeypatch, 0)  # keeps the last one, as needs must
    _, without = rounds(sparse)
    assert [replace(record, bytes_down=0) for record in records] == [
        replace(record, bytes_down=0) for record in without
    ]
    assert all(mine.bytes_down <= theirs.bytes_down for mine, theirs in zip(records, without, strict=True))
    # It learns, and its trits move; the floats cost the same either way.
    assert records[-1].score > 0.8
    assert all((record.changed or 0) > 0 for record in records)
    late = slice(ROUNDS // 2, None)
    assert sum(r.bytes_down for r in records[late]) < 0.85 * sum(r.bytes_down for r in without[late])


def test_only_broadcasts_that_somebody_holds_are_kept(whole: tuple[State, list[Round]]) -> None:
    state, _ = whole
    assert set(state.broadcasts) == set(state.holders.values())
    assert ROUNDS in state.broadcasts
    assert 3 < len(state.broadcasts) <= 20
    assert list(state.broadcasts) == sorted(state.broadcasts, reverse=True)


def test_a_run_that_goes_on_from_a_saved_state_codes_given_the_same_broadcasts(
    sparse: Federation, whole: tuple[State, list[Round]]
) -> None:
    end, records = whole
    states_ = simulate.play(sparse)
    state = next(state for state, _ in states_ if state.round == ROUNDS - 5)
    restored = unpack(sparse.algorithm, state.round, *pack(state))
    resumed, rest = rounds(sparse, restored)
    assert rest == records[ROUNDS - 5 :]
    assert (resumed.holders, resumed.broadcasts) == (end.holders, end.broadcasts)


def test_memory_stays_within_its_bound_while_a_run_goes_on(
    sparse: Federation, whole: tuple[State, list[Round]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = len(whole[0].broadcasts[ROUNDS])
    forgetful(monkeypatch, 3 * one + 500)
    for state, _ in simulate.play(
        replace(sparse, experiment=sparse.experiment.with_settings(["federation.rounds=12"]))
    ):
        assert sum(map(len, state.broadcasts.values())) <= 3 * one + 500
        assert set(state.holders.values()) == set(state.broadcasts)
    assert len(state.broadcasts) == 3


def test_the_bound_grows_with_the_model() -> None:
    assert kept_bytes(1000) == 64 * 2**20
    assert kept_bytes(100_000_000) == 1_600_000_000


SERVER = open_federation(Experiment.from_toml("", ["algorithm.name=fedavg"]), load("digits")).open().server
played = st.lists(st.tuples(st.sets(st.integers(0, 7), min_size=1), st.integers(1, 40)), min_size=1, max_size=12)


@given(played=played, most=st.integers(0, 200))
@settings(max_examples=200, deadline=None)
def test_as_many_as_fit_are_kept_the_newest_first(played: list[tuple[set[int], int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        forgetful(patch, most)
        state, held = State(0, SERVER), {}
        for number, (clients, size) in enumerate(played, 1):
            holders, broadcasts = keep(state, clients, bytes(size), 0)
            state = State(number, SERVER, holders=holders, broadcasts=broadcasts)
            held |= dict.fromkeys(clients, number)
            wanted = sorted(set(held.values()), reverse=True)
            assert list(broadcasts) == wanted[: len(broadcasts)]
            assert number in broadcasts
            assert sum(map(len, broadcasts.values())) <= max(most, size)
            # What a client is taken to hold is what it holds; others hold something forgotten.
            assert holders == {client: round for client, round in sorted(held.items()) if round in broadcasts}
            assert set(state.took_part) == clients


def test_who_holds_the_last_is_known_though_it_lends_nothing() -> None:
    holders, broadcasts = keep(State(4, SERVER, holders={1: 4, 2: 4}), (2, 3), None, 0)
    assert (holders, broadcasts) == ({2: 5, 3: 5}, {})

"""Which broadcast a client gets: coded given the newest one it holds, however old, or without any."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ternfed.algorithms import fedavg, tfedavg
from ternfed.algorithms.algorithm import Algorithm, Network, Server, Training
from ternfed.round.exchange import Broadcasts, receive
from ternfed.wire import MissingReference, WrongReference, decode, same
from ternfed.wire.message import locate

ROUNDS = 6


@cache
def network() -> Network:
    torch.manual_seed(0)
    return Network.of(nn.Sequential(nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 3)))


@cache
def algorithm() -> Algorithm:
    return tfedavg.algorithm(network(), Training(epochs=2), tfedavg.Settings())


@cache
def servers() -> list[Server]:
    """One for each round, each near the one before, as learning goes."""
    torch.manual_seed(1)
    weights, made = network().weights(), []
    for _ in range(ROUNDS + 1):
        made.append(algorithm().open(weights))
        weights = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in weights.items()}
    return made


@cache
def past() -> dict[int, bytes]:
    """The broadcasts of all rounds, as they are kept."""
    made = {number: Broadcasts(algorithm(), servers()[number - 1], number).packed() for number in range(1, ROUNDS + 1)}
    return {number: data for number, data in made.items() if data is not None}


def round_after(holders: dict[int, int], kept: dict[int, bytes] | None = None) -> Broadcasts:
    """The round after all those."""
    return Broadcasts(algorithm(), servers()[ROUNDS], ROUNDS + 1, past() if kept is None else kept, holders)


held = st.integers(1, ROUNDS)


@given(holders=st.dictionaries(st.integers(0, 9), held), kept=st.sets(held))
@settings(max_examples=60, deadline=None)
def test_whoever_holds_what_reads_the_same_message(holders: dict[int, int], kept: set[int]) -> None:
    made = round_after(holders, {number: past()[number] for number in kept})
    expected = made.given(None).broadcast
    for client in range(10):
        sent, number = made.for_client(client), made.held_by(client)
        reference = None
        if number is None:
            sections = locate(sent.data, algorithm().down[0]).sections
            assert all(section.given is None for section in sections.values())
        else:
            assert number == holders[client]
            # The client's own side: it kept what that broadcast lent when it came.
            reference = receive(algorithm(), past()[number], None).reference
        received = receive(algorithm(), sent.data, reference if number in kept else None)
        assert same(received.message, expected.message)
        assert same(sent.broadcast.message, expected.message)


@given(holders=st.dictionaries(st.integers(0, 9), held, min_size=1), asked=st.lists(st.integers(0, 9), unique=True))
@settings(max_examples=40, deadline=None)
def test_clients_are_told_together_by_what_they_hold_newest_first(holders: dict[int, int], asked: list[int]) -> None:
    groups = round_after(holders).groups(asked)
    assert [client for clients in groups.values() for client in clients] == sorted(
        asked, key=lambda client: -holders.get(client, 0)
    )
    numbers = [0 if number is None else number for number in groups]
    assert numbers == sorted(numbers, reverse=True)


def test_the_newer_what_a_client_holds_the_fewer_bytes_it_gets() -> None:
    made = round_after({number: number for number in range(1, ROUNDS + 1)})
    sizes = [len(made.for_client(client).data) for client in range(ROUNDS + 1)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[ROUNDS] < sizes[1] < sizes[0]


def test_whoever_holds_something_else_could_not_read_it() -> None:
    made, schema = round_after({0: 3}), algorithm().down[0]
    with pytest.raises(MissingReference):
        decode(made.for_client(0).data, schema)
    with pytest.raises(WrongReference):
        receive(algorithm(), made.for_client(0).data, receive(algorithm(), past()[4], None).reference)


def test_what_was_forgotten_is_not_coded_given() -> None:
    made = round_after({0: 2, 1: 5}, {5: past()[5]})
    assert (made.held_by(0), made.held_by(1), made.held_by(2)) == (None, 5, None)
    assert made.for_client(0) is made.for_client(2)


def test_each_age_is_made_once_and_only_when_it_is_asked_for() -> None:
    made: list[Server] = []

    def counted(server: Server):  # type: ignore[no-untyped-def]
        made.append(server)
        return algorithm().broadcast(server)

    watched = replace(round_after({0: 6, 1: 3, 2: 6, 3: 3}), algorithm=replace(algorithm(), broadcast=counted))
    assert made == []
    first = watched.for_client(2)
    assert watched.for_client(0) is first
    assert watched.any() is first.broadcast
    assert len(made) == 1
    assert watched.for_client(1) is watched.for_client(3)
    watched.for_client(4)
    watched.for_client(5)
    assert len(made) == 3


def test_in_the_first_round_nobody_holds_anything() -> None:
    first = Broadcasts(algorithm(), servers()[0], 1)
    assert first.groups(range(3)) == {None: [0, 1, 2]}
    assert locate(first.for_client(0).data, algorithm().down[0]).sections["ternary"].given is None


def test_a_broadcast_that_lends_nothing_is_not_kept() -> None:
    algorithm = fedavg.algorithm(network(), Training(epochs=1), fedavg.Settings())
    assert Broadcasts(algorithm, algorithm.open(network().weights()), 1).packed() is None

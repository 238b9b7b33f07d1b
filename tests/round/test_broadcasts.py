"""Which broadcast a client gets: coded given the newest one it holds, or without any."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from ternfed.algorithms import stc, tfedavg
from ternfed.algorithms.algorithm import Algorithm, Network, Server, Training
from ternfed.round.exchange import Broadcasts
from ternfed.wire import MissingReference, decode, same
from ternfed.wire.message import locate


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network.of(nn.Sequential(nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 3)))


@pytest.fixture
def algorithm(network: Network) -> Algorithm:
    return tfedavg.algorithm(network, Training(epochs=2), tfedavg.Settings())


@pytest.fixture
def second(network: Network, algorithm: Algorithm) -> Broadcasts:
    """Round 2; clients 0 and 2 were there in round 1."""
    server = algorithm.open(network.weights())
    first = Broadcasts(algorithm, server, 1, None, ())
    return Broadcasts(algorithm, server, 2, first.any(), (0, 2))


def test_holders_of_the_last_broadcast_get_fewer_bytes_that_say_the_same(second: Broadcasts) -> None:
    given, alone = second.for_client(0), second.for_client(1)
    assert (second.held_by(0), second.held_by(1)) == (1, None)
    assert len(given.data) < len(alone.data)
    assert same(given.broadcast.message, alone.broadcast.message)
    assert given.broadcast.lent is not None
    assert alone.broadcast.lent is not None
    for name, codes in given.broadcast.lent.items():
        assert torch.equal(codes, alone.broadcast.lent[name])


def test_whoever_does_not_hold_it_could_not_read_what_its_holders_get(second: Broadcasts) -> None:
    schema = second.algorithm.down[0]
    with pytest.raises(MissingReference):
        decode(second.for_client(0).data, schema)
    assert locate(second.for_client(1).data, schema).sections["ternary"].given is None


def test_each_kind_is_made_once_and_only_when_it_is_asked_for(second: Broadcasts) -> None:
    made = []
    broadcast = second.algorithm.broadcast

    def counted(server: Server, held: bool):  # type: ignore[no-untyped-def]
        made.append(held)
        return broadcast(server, held)

    watched = replace(second, algorithm=replace(second.algorithm, broadcast=counted))
    assert made == []
    first = watched.for_client(2)
    assert watched.for_client(0) is first
    assert watched.any() is first.broadcast
    assert made == [True]
    watched.for_client(1)
    watched.for_client(3)
    assert made == [True, False]


def test_clients_that_get_the_same_bytes_are_told_together(second: Broadcasts) -> None:
    assert list(second.groups([3, 2, 1, 0]).items()) == [(1, [2, 0]), (None, [3, 1])]
    assert second.groups([5]) == {None: [5]}


def test_in_the_first_round_nobody_holds_anything(algorithm: Algorithm, network: Network) -> None:
    first = Broadcasts(algorithm, algorithm.open(network.weights()), 1, None, ())
    assert first.groups(range(3)) == {None: [0, 1, 2]}
    assert locate(first.for_client(0).data, algorithm.down[0]).sections["ternary"].given is None


def test_an_algorithm_may_send_holders_something_else(network: Network) -> None:
    """STC: an update for those who hold the model, the model for the others."""
    algorithm = stc.algorithm(network, Training(epochs=1), stc.Settings())
    server = algorithm.open(network.weights())
    sent, _ = stc.compress(network.weights(), 0.1)
    last = Broadcasts(algorithm, server, 1, None, ()).any()
    second = Broadcasts(algorithm, replace(server, ternary=sent), 2, last, (0,))
    assert len(second.for_client(0).data) < 0.1 * len(second.for_client(1).data)

"""What a server accepts of an upload on a grid: its numbers count as those of plain weights do."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from ternfed.algorithms import fedavg
from ternfed.algorithms.algorithm import Client, Network, Training
from ternfed.engines.flower.uploads import accept
from ternfed.quantize.grid import Grid
from ternfed.round.acceptance import Bounds, OutOfBounds
from ternfed.round.exchange import Broadcast
from ternfed.wire import Message, encode, schema_of

SENDER = Client(0, 1, lambda purpose: torch.Generator())


def accepted(code: int, exponent: int, name: str = "0.weight") -> Message:
    codes = torch.from_numpy(np.array([1, -code, 0], np.int32))
    upload = Message({name: Grid(codes, torch.tensor(exponent, dtype=torch.int16))}, {"round": 3.0, "samples": 10.0})
    network = Network.of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2)))
    algorithm = replace(fedavg.algorithm(network, Training(), fedavg.Settings()), up=(schema_of(upload),))
    data = encode(upload, algorithm.up[0])
    nothing = Broadcast(Message({name: torch.zeros(3)}, {}), None)
    return accept(algorithm, network, data, nothing, SENDER, 3, Bounds()).meaning


def test_numbers_within_the_bounds_of_a_weight_are_accepted() -> None:
    assert accepted(100, 0).tensors["0.weight"].codes.tolist() == [1, -100, 0]  # type: ignore[union-attr]
    assert accepted(2**24, -18).numbers["samples"] == 10


@pytest.mark.parametrize(("code", "exponent"), [(101, 0), (1, 100), (2**24, -17)])
def test_larger_ones_are_refused(code: int, exponent: int) -> None:
    with pytest.raises(OutOfBounds, match=r"0.weight: .* is more than 100"):
        accepted(code, exponent)


def test_what_is_no_parameter_has_a_wide_bound() -> None:
    accepted(10**6, 0, "statistics")
    with pytest.raises(OutOfBounds, match=r"statistics: .* is more than 1e\+06"):
        accepted(1, 100, "statistics")

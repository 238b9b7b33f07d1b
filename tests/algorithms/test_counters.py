"""BatchNorm's counts of batches do not travel where nothing is computed from them; whole models still have them."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import ternfed
from ternfed.algorithms import eden, fedavg, fedbat, fedpaq, fedpm, signsgd_ef, stc, tfedavg, topk
from ternfed.algorithms.algorithm import Network, Training
from ternfed.algorithms.network import split
from ternfed.data.sets import load
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment
from ternfed.round.exchange import Broadcasts
from ternfed.round.federation import open_federation

COUNTER = "norm.num_batches_tracked"


class Steps(nn.Module):
    """Something with a whole number of its own."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, batch: Tensor) -> Tensor:
        return batch


def model(momentum: float | None = 0.1) -> nn.Module:
    torch.manual_seed(0)
    layers = OrderedDict(
        flat=nn.Flatten(),
        first=nn.Linear(64, 16),
        norm=nn.BatchNorm1d(16, momentum=momentum),
        inner=nn.Linear(16, 16),
        steps=Steps(),
        last=nn.Linear(16, 10),
    )
    return nn.Sequential(layers)


def test_a_schema_leaves_out_counters_and_no_other_whole_number() -> None:
    network = Network.of(model())
    assert network.counters == (COUNTER,)
    names = {slot.name for slot in network.schema().slots}
    assert names == {*network.parameters, *network.buffers} - {COUNTER}
    assert "steps.steps" in names


def test_a_counter_that_the_statistics_are_computed_with_travels() -> None:
    network = Network.of(model(momentum=None))
    assert network.counters == ()
    assert COUNTER in {slot.name for slot in network.schema().slots}


def test_a_network_without_statistics_has_no_counters() -> None:
    assert Network(nn.BatchNorm1d(2, track_running_stats=False)).counters == ()


def test_a_model_that_travelled_is_put_together_with_its_counters_at_0() -> None:
    network = Network.of(model())
    weights = {**network.weights(), COUNTER: torch.tensor(17)}
    parameters, buffers = split(network.without_counters(weights), network)
    assert set(parameters) | set(buffers) == set(model().state_dict())
    assert torch.equal(buffers[COUNTER], torch.zeros((), dtype=torch.int64))


@pytest.mark.parametrize("module", [eden, fedavg, fedbat, fedpaq, fedpm, signsgd_ef, stc, tfedavg, topk])
def test_no_algorithm_sends_them(module) -> None:  # type: ignore[no-untyped-def]
    network = Network.of(model())
    algorithm = module.algorithm(network, Training(), module.Settings())
    sent = Broadcasts(algorithm, algorithm.open(network.weights()), 1).any().message
    assert COUNTER not in sent.tensors
    assert "steps.steps" in sent.tensors


@pytest.mark.parametrize("statistics", ["average", "recompute", "best"])
@pytest.mark.parametrize("name", ["fedavg", "tfedavg", "fedopt", "cmfl", "fedpaq", "eden", "stc", "fedpm"])
def test_the_global_model_is_a_whole_one(name: str, statistics: str) -> None:
    options = [f"algorithm.name={name}", f"algorithm.statistics={statistics}", "federation.rounds=2"]
    experiment = Experiment.from_toml("", [*options, "federation.clients=3", "training.epochs=2"])
    federation = open_federation(experiment, load("digits"), model=model())
    for state, _ in simulate.play(federation):
        assert set(state.server.weights) == set(model().state_dict())
        assert state.server.weights[COUNTER] == 0
        assert state.server.weights["steps.steps"] == 3
        assert state.server.weights["norm.running_mean"].any()


def test_a_model_of_your_own_can_be_loaded_after_each_round() -> None:
    mine = model()
    options = ("federation.rounds=1", "federation.clients=2", "algorithm.name=stc")
    assert len(list(ternfed.federate(mine, load("digits"), *options))) == 1
    assert set(mine.state_dict()) == set(model().state_dict())

"""What T-FedAvg's clients send where the settings leave it open: trits where they can flip, else differences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ternfed
from ternfed.engines.flower.connected import _config
from ternfed.experiment.experiment import Experiment
from ternfed.round.federation import Federation, open_federation

DATA = ternfed.load("digits")


def with_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10)
    )


def without_norm() -> nn.Module:
    return nn.Sequential(*(layer for layer in with_norm() if not isinstance(layer, nn.BatchNorm1d)))


def opened(model: nn.Module, *settings: str) -> Federation:
    return open_federation(Experiment.from_toml("", settings), DATA, model=model)


def way(federation: Federation) -> str:
    """By how the clients of a federation train: quantized, or plain weights whose differences they send."""
    return "differences" if federation.algorithm.training.quantizer is None else "trits"


@pytest.mark.parametrize(
    ("clients", "batch", "expected"),
    [(10, 64, "differences"), (10, 4, "differences"), (2, 4, "trits"), (1, 8, "trits"), (1, 64, "differences")],
)
def test_with_batchnorm_it_goes_by_the_quantized_steps_of_a_round(clients: int, batch: int, expected: str) -> None:
    settings = (f"federation.clients={clients}", f"training.batch={batch}", "training.epochs=5")
    federation = opened(with_norm(), *settings)
    steps = 2 * -(-(sum(federation.registered) // clients) // batch)  # two of five epochs are quantized
    assert (steps >= 100) == (expected == "trits")
    assert way(federation) == expected


def test_without_batchnorm_differences_go_up_however_many_steps_there_are() -> None:
    assert way(opened(without_norm(), "federation.clients=2", "training.batch=2")) == "differences"


@pytest.mark.parametrize("asked", ["trits", "differences"])
def test_what_the_settings_ask_for_is_done(asked: str) -> None:
    for batch in (4, 64):
        settings = ("federation.clients=2", f"training.batch={batch}", f"algorithm.upload={asked}")
        assert way(opened(with_norm(), *settings)) == asked


def test_clients_of_a_real_network_are_told_what_the_server_chose() -> None:
    federation = opened(with_norm(), "federation.clients=10")
    told = Experiment.from_toml(_config(federation, "0" * 16)["experiment"])
    assert told.algorithm.settings.upload == "differences"
    assert federation.experiment.algorithm.settings.upload == "auto"  # which its run folder keeps
    again = told.make_algorithm(federation.network)
    assert again.up == federation.algorithm.up

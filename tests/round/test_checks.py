"""What a model, its task and its data have against each other is said in one sentence, before anybody trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Network
from ternfed.data.values import DataSet, from_arrays
from ternfed.engines.simulate import federate
from ternfed.experiment.experiment import ExperimentError
from ternfed.round.checks import check_batches, check_fit
from ternfed.task import LANGUAGE, MULTILABEL, REGRESSION, Task

DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(60, 10)).astype(np.float32)
Y = DRAWS.integers(0, 3, 60)
IDS = DRAWS.integers(0, 20, (60, 8))


def data(x: Any = X, y: Any = Y, **more: Any) -> DataSet:
    return from_arrays("own", x[:40], y[:40], x[40:], y[40:], **more)


def net(inputs: int = 10, outputs: int = 3, *norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), *norm, nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


class Speaker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.table(ids))[0])
        return out


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(batch), batch


def run(model: nn.Module, samples: DataSet, task: Task | None, *settings: str) -> None:
    few = ("federation.clients=3", "federation.rounds=1", "data.hold_out=0.1", "training.epochs=1")
    list(federate(model, samples, *few, *settings, task=task))


@pytest.mark.parametrize(
    ("model", "samples", "task", "sentence"),
    [
        (lambda: net(12), data, None, "the model cannot take the samples of own, float32 of shape 10: mat1 and mat2"),
        (Both, data, None, "the model returns a tuple; one tensor is needed"),
        (nn.Flatten, data, None, "Flatten has no parameter to train"),
        (net, lambda: data(y=Y + 1), None, "labels of own run from 1 to 3, and the model has 3 outputs: labels from 0"),
        (lambda: net(10, 2), lambda: data(y=X[:, 0], task=REGRESSION), REGRESSION,
         "outputs of shape 1×2, which do not fit the targets of own, 1, in regression"),
        (lambda: net(10, 4), lambda: data(y=X[:, :3] > 0, task=MULTILABEL), MULTILABEL,
         "outputs of shape 1×4, which do not fit the targets of own, 1×3, in multilabel"),
        (Speaker, lambda: data(IDS + 5, IDS, task=LANGUAGE), LANGUAGE,
         "cannot take the samples of own, int64 of shape 8, ids up to 24: index out of range"),
        (Speaker, lambda: data(IDS, IDS + 5, task=LANGUAGE), LANGUAGE, "which do not fit the targets of own"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_before_training(
    model: Callable[[], nn.Module], samples: Callable[[], DataSet], task: Task | None, sentence: str
) -> None:
    with pytest.raises(ExperimentError, match=sentence) as caught:
        run(model(), samples(), task, "algorithm.name=fedavg")
    assert "\n" not in str(caught.value)


def test_a_batch_of_one_sample_that_batchnorm_cannot_take() -> None:
    with pytest.raises(ExperimentError, match=r"training.batch = 11: of the 12 samples of client 0 one is left"):
        run(net(10, 3, nn.BatchNorm1d(16)), data(), None, "training.batch=11")
    run(net(10, 3, nn.BatchNorm1d(16)), data(), None, "training.batch=10")
    run(net(10, 3, nn.LayerNorm(16)), data(), None, "training.batch=11")


def test_the_trial_changes_neither_the_model_nor_the_random_numbers() -> None:
    model = net(10, 3, nn.BatchNorm1d(16), nn.Dropout(0.5)).train()
    model[2].eval()
    network = Network.of(model)
    before, modes = network.weights(), [module.training for module in model.modules()]
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    check_fit(network, data())
    check_batches(network, data(), [torch.arange(40)], 8)
    with pytest.raises(ExperimentError):
        check_batches(network, data(), [torch.arange(40)], 13)
    assert torch.equal(torch.rand(3), drawn)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.weights().items())


def test_labels_may_be_true_and_false() -> None:
    run(net(), data(y=X[:, :3] > 0, task=MULTILABEL), MULTILABEL)

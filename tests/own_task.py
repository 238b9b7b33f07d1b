"""A task of a user's own, as it may be brought: a small regression, whose scores are better when they are lower."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ternfed.data.values import DataSet, from_arrays
from ternfed.task import Measure, Metric, Task

MSE = Metric(
    Measure("mse", higher_is_better=False),
    add=lambda outputs, targets: (outputs - targets).square().sum(),
    finish=lambda errors, samples: float(errors) / samples,
)
REGRESSION = Task("regression", loss=nn.functional.mse_loss, metric=MSE, predict=lambda outputs: outputs)


def sines(samples: int = 1200) -> DataSet:
    """y = sin of a sum of four numbers, one target per sample."""
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    y = torch.sin(x.sum(1, keepdim=True))
    cut = samples * 3 // 4
    return from_arrays("sines", x[:cut], y[:cut], x[cut:], y[cut:], task=REGRESSION)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


def network(classes: int) -> nn.Sequential:
    """The same as `model.name`, the width of its outputs given by the data."""
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, classes))


def outputs_of(weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
    outputs: Tensor = torch.func.functional_call(model(), weights, (inputs,))
    return outputs

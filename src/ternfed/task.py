"""What is learned: the loss, the metric a model is judged by, what its outputs predict, how samples are stratified.

A network carries its task (`Network.task`), and everything downstream asks it: training, the judging of models, the
best round, records, progress, reports, predictions. Whoever brings a task of their own makes one more of these values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) ─▶ a number."""


@dataclass(frozen=True)
class Measure:
    """How the scores of a metric are read, by whoever has only a record of them."""

    name: str
    """The key of a score in records."""
    higher_is_better: bool = True
    percent: bool = False
    """Scores from 0 to 1, shown in percent."""

    def goodness(self, score: float) -> float:
        """The score turned so that higher is always better, in its own units; one that is no number is the worst."""
        if math.isnan(score):
            return -math.inf
        return score if self.higher_is_better else -score

    def scaled(self, score: float) -> float:
        """The score as it is shown."""
        return 100 * score if self.percent else score

    def text(self, score: float) -> str:
        """`97.53%`, or `mse 0.0123`."""
        return f"{100 * score:5.2f}%" if self.percent else f"{self.name} {score:.4g}"

    @property
    def heading(self) -> str:
        """For the column of a table or the axis of a picture."""
        return f"{self.name} (%)" if self.percent else self.name


@dataclass(frozen=True)
class Metric:
    """How good a model is on many samples: sums over batches, and what they come to."""

    measure: Measure
    add: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) of a batch ─▶ its sums, of any shape; those of all batches are added up in float64."""
    finish: Callable[[Tensor, int], float]
    """(sums, samples) ─▶ the score."""


@dataclass(frozen=True)
class Task:
    """What a network learns, as a value made of functions."""

    name: str
    loss: Loss
    """The mean over a batch: what local training makes smaller."""
    metric: Metric
    predict: Callable[[Tensor], Tensor]
    """Outputs ─▶ one prediction per sample."""
    strata: Callable[[Tensor], Tensor | None] = lambda targets: None
    """Targets (N, …) ─▶ the class (N) by which partitions tell samples apart; None where samples have none."""
    targets: torch.dtype = torch.float32
    """The type of a target."""
    words: tuple[str, str] = ("prediction", "predictions")
    """What one prediction and several are called in files."""
    summed_loss: Loss | None = None
    """The sum over a batch; None: the mean times its samples."""

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss summed over a batch."""
        if self.summed_loss is not None:
            return self.summed_loss(outputs, targets)
        return self.loss(outputs, targets) * len(targets)

    def strata_or_one(self, targets: Tensor) -> Tensor:
        """The stratum (N) of each sample; where samples have none, all are in one."""
        strata = self.strata(targets)
        return torch.zeros(len(targets), dtype=torch.int64) if strata is None else strata


ACCURACY = Metric(
    Measure("accuracy", percent=True),
    add=lambda outputs, targets: (outputs.argmax(1) == targets).sum(),
    finish=lambda right, samples: float(right) / samples,
)
"""The share of samples whose class has the highest output."""

CLASSIFICATION = Task(
    "classification",
    loss=nn.functional.cross_entropy,
    metric=ACCURACY,
    predict=lambda outputs: outputs.argmax(1),
    strata=lambda targets: targets,
    targets=torch.int64,
    words=("class", "classes"),
    summed_loss=partial(nn.functional.cross_entropy, reduction="sum"),
)
"""One class per sample, by cross-entropy and accuracy: the default."""

"""What is learned: the loss, the metric a model is judged by, what its outputs predict, how samples are stratified.

A network carries its task (`Network.task`), and everything downstream asks it: training, the judging of models, the
best round, records, progress, reports, predictions. Whoever brings a task of their own makes one more of these values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

IGNORED = -100
"""The target of a token or pixel that does not count, as PyTorch's losses have it."""

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

    def least(self, goodness: float, tolerance: float) -> float:
        """What is worse than this by no more than a tolerance: in points of a share, in parts of any other score."""
        return goodness - tolerance * (1.0 if self.percent else abs(goodness))

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
    """The sum over a batch; None: the mean times what it is the mean over."""
    dense: bool = False
    """A sample has many targets of its own, one per token or pixel; those of `IGNORED` do not count."""
    needs: Callable[[Tensor], str | None] = lambda targets: None
    """What these targets would have to be, in words; None where nothing is wrong with them."""

    def total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss summed over a batch."""
        if self.summed_loss is not None:
            return self.summed_loss(outputs, targets)
        return self.loss(outputs, targets) * self.count(targets)

    def count(self, targets: Tensor) -> int:
        """What the loss of a batch is the mean over: its samples, or the tokens or pixels that count."""
        return int((targets != IGNORED).sum()) if self.dense else len(targets)

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


def _alike(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs (N, 1) for targets (N): subtracted as they are, they would make a table of N×N."""
    return outputs.reshape(targets.shape)


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(_alike(outputs, targets), targets)


def _mean_over(error: Loss) -> Callable[[Tensor, Tensor], Tensor]:
    """(sum, count) of an error over all numbers of a batch."""

    def add(outputs: Tensor, targets: Tensor) -> Tensor:
        errors = error(_alike(outputs, targets).double(), targets.double())
        return torch.stack((errors.sum(), errors.new_tensor(errors.numel())))

    return add


def _share(sums: Tensor, _samples: int) -> float:
    return float(sums[0] / sums[1])


def _moments(outputs: Tensor, targets: Tensor) -> Tensor:
    """(count, Σy, Σy², Σ(y − ŷ)²) of each number that a target has."""
    predicted, wanted = (part.double().reshape(len(targets), -1) for part in (outputs, targets))
    sums = torch.ones_like(wanted), wanted, wanted.square(), (wanted - predicted).square()
    return torch.stack([part.sum(0) for part in sums])


def _determination(sums: Tensor, _samples: int) -> float:
    count, total, squares, errors = sums
    return float((1 - errors / (squares - total.square() / count)).mean())


def _regression(metric: Metric) -> Task:
    return Task("regression", loss=_squared_error, metric=metric, predict=lambda outputs: outputs)


MSE = Metric(
    Measure("mse", higher_is_better=False), _mean_over(lambda outputs, targets: (outputs - targets).square()), _share
)
"""The mean squared error."""
MAE = Metric(
    Measure("mae", higher_is_better=False), _mean_over(lambda outputs, targets: (outputs - targets).abs()), _share
)
"""The mean absolute error."""
R2 = Metric(Measure("r2"), _moments, _determination)
"""1 − the squared error over the variance of the targets; of several numbers per target, the mean."""
REGRESSION = _regression(MSE)
"""Numbers, by the squared error."""


def _labels_right(outputs: Tensor, targets: Tensor) -> Tensor:
    right = (outputs > 0) == (targets > 0.5)
    return torch.stack((right.sum(), right.new_tensor(right.numel(), dtype=torch.int64)))


def _hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """(2·true positives, labels predicted + labels there are)."""
    predicted, wanted = outputs > 0, targets > 0.5
    return torch.stack((2 * (predicted & wanted).sum(), predicted.sum() + wanted.sum()))


def _multilabel(metric: Metric) -> Task:
    return Task(
        "multilabel",
        loss=nn.functional.binary_cross_entropy_with_logits,
        metric=metric,
        predict=lambda outputs: (outputs > 0).to(torch.int64),
        words=("labels", "labels_of_samples"),
        needs=lambda targets: None if bool(((targets == 0) | (targets == 1)).all()) else "0 or 1 for each label",
    )


F1 = Metric(Measure("f1", percent=True), _hits, lambda sums, _: float(sums[0] / sums[1]) if sums[1] > 0 else 0.0)
"""Over all labels of all samples together (micro F1): rare labels count as often as they occur."""
LABEL_ACCURACY = Metric(Measure("accuracy", percent=True), _labels_right, _share)
"""The share of all labels of all samples that are right."""
MULTILABEL = _multilabel(F1)
"""Any number of labels per sample, (N, labels) of 0 and 1, a logit each."""


def _token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


def _tokens_right(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.stack(((outputs.argmax(-1) == targets).sum(), (targets != IGNORED).sum()))


def _surprise(outputs: Tensor, targets: Tensor) -> Tensor:
    """(summed cross-entropy, tokens)."""
    flat = outputs.flatten(0, -2).float(), targets.flatten()
    entropy = nn.functional.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum").double()
    return torch.stack((entropy, (targets != IGNORED).sum().double()))


def _perplexity(sums: Tensor, _samples: int) -> float:
    return float((sums[0] / sums[1]).exp())


def _language(metric: Metric) -> Task:
    return Task(
        "language",
        loss=_token_loss,
        metric=metric,
        predict=lambda outputs: outputs.argmax(-1),
        targets=torch.int64,
        words=("tokens", "tokens_of_samples"),
        dense=True,
    )


TOKEN_ACCURACY = Metric(Measure("accuracy", percent=True), _tokens_right, _share)
"""The share of all tokens that have the highest output."""
PERPLEXITY = Metric(Measure("perplexity", higher_is_better=False), _surprise, _perplexity)
"""e to the mean cross-entropy of a token."""
LANGUAGE = _language(TOKEN_ACCURACY)
"""The next token: outputs (N, T, vocabulary), targets (N, T)."""


def _overlaps(outputs: Tensor, targets: Tensor) -> Tensor:
    """(pixels in both, pixels in either) of each class."""
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    counted = (targets != IGNORED).flatten()
    predicted, wanted = (part.flatten()[counted].unsqueeze(1) == classes for part in (outputs.argmax(1), targets))
    return torch.stack(((predicted & wanted).sum(0), (predicted | wanted).sum(0)))


def _mean_iou(sums: Tensor, _samples: int) -> float:
    both, either = sums[:, sums[1] > 0]
    return float((both / either).mean())


def _segmentation(metric: Metric) -> Task:
    return Task(
        "segmentation",
        loss=nn.functional.cross_entropy,
        metric=metric,
        predict=lambda outputs: outputs.argmax(1),
        targets=torch.int64,
        words=("classes", "classes_of_samples"),
        dense=True,
    )


IOU = Metric(Measure("iou", percent=True), _overlaps, _mean_iou)
"""Intersection over union, the mean over all classes that occur."""
PIXEL_ACCURACY = Metric(
    Measure("accuracy", percent=True),
    lambda outputs, targets: torch.stack(((outputs.argmax(1) == targets).sum(), (targets != IGNORED).sum())),
    _share,
)
"""The share of all pixels whose class has the highest output."""
SEGMENTATION = _segmentation(IOU)
"""A class for each pixel: outputs (N, classes, H, W), targets (N, H, W)."""

TASKS: Mapping[str, Mapping[str, Task]] = {
    "classification": {"accuracy": CLASSIFICATION},
    "multilabel": {"f1": MULTILABEL, "accuracy": _multilabel(LABEL_ACCURACY)},
    "regression": {"mse": REGRESSION, "mae": _regression(MAE), "r2": _regression(R2)},
    "language": {"accuracy": LANGUAGE, "perplexity": _language(PERPLEXITY)},
    "segmentation": {"iou": SEGMENTATION, "accuracy": _segmentation(PIXEL_ACCURACY)},
}
"""Every task by its name and by the metric that judges it, the usual one first."""


def task_of(task: Task | str) -> Task:
    """The task itself, or the one of that name, judged by its usual metric."""
    if isinstance(task, Task):
        return task
    if task not in TASKS:
        raise ValueError(f"task = {task!r}: a Task or one of {', '.join(TASKS)} is needed")
    return next(iter(TASKS[task].values()))

"""What a data set is: two sets of samples and the few facts a training loop needs about them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ternfed.data.images import Augment, normalise
from ternfed.task import CLASSIFICATION, IGNORED, Task, task_of

Array: TypeAlias = Any  # whatever numpy can turn into an array: ndarray, Tensor, nested lists


class DataMissing(ValueError):
    """A data set that was asked for is not there; the message says what to do about it."""


@dataclass(frozen=True, eq=False)
class Samples:
    """inputs: N×C×H×W uint8 for images, N×… int64 for token ids, N×… float32 for anything else.

    labels: N int64, or N×… as the task has them.
    """

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.dim() < 1 or len(self.inputs) != len(self.labels):
            raise ValueError(
                f"{len(self.inputs)} inputs, labels of shape {tuple(self.labels.shape)}: one label per input is needed"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Samples:
        """The samples at these positions, in this order."""
        return Samples(self.inputs[indices], self.labels[indices])


class Outline(NamedTuple):
    """What all sides of a federation must agree on, of data that each of them has for itself."""

    classes: int
    vocabulary: int | None = None
    characters: str | None = None


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test samples; mean and deviation are per channel, of inputs scaled to [0, 1]."""

    name: str
    train: Samples
    test: Samples
    classes: int
    """How many there are; of targets that are no classes, how many numbers each of them has."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None = None
    clients: Tensor | None = None
    """(training samples) int64: the client from 0 on that each belongs to by nature; None where that is not known."""

    vocabulary: int | None = None
    """Where inputs are token ids: how many ids there are."""

    characters: str | None = None
    """Where token ids stand for characters: those of the ids from 1 on."""

    @property
    def outline(self) -> Outline:
        return Outline(self.classes, self.vocabulary, self.characters)

    def within(self, outline: Outline) -> DataSet:
        """One client's part of data of this outline: it need not hold all classes and token ids that there are."""
        whole = self.train.labels.is_floating_point()
        if self.classes != outline.classes if whole else self.classes > outline.classes:
            what = "numbers per target" if whole else "classes"
            raise ValueError(f"{self.name}: has {self.classes} {what}, and the data of the server {outline.classes}")
        if self.vocabulary is None or outline.vocabulary is None:
            return replace(self, classes=outline.classes)
        if self.vocabulary > outline.vocabulary:
            raise ValueError(
                f"{self.name}: token ids go up to {self.vocabulary - 1}, and those of the server's data to "
                f"{outline.vocabulary - 1}"
            )
        return replace(self, classes=outline.classes, vocabulary=outline.vocabulary)

    def one(self) -> Tensor:
        """(1, …): the first training sample as a network gets it; zeros of its shape where there are no samples."""
        inputs = self.train.inputs
        first = inputs[:1] if len(inputs) else inputs.new_zeros(1, *inputs.shape[1:])
        return normalise(first, self.mean, self.std)

    def check(self) -> None:
        """Refuse values that are not finite, before a loss becomes NaN because of them."""
        for split, samples in (("train", self.train), ("test", self.test)):
            for kind, values in (("inputs", samples.inputs), ("labels", samples.labels)):
                if values.is_floating_point() and not bool(torch.isfinite(values).all()):
                    raise ValueError(f"{self.name}: the {split} {kind} hold NaN or infinity; replace them first")


def from_arrays(
    name: str,
    train_x: Array,
    train_y: Array,
    test_x: Array,
    test_y: Array,
    *,
    classes: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    augment: Augment | None = None,
    task: Task | str = CLASSIFICATION,
    clients: Array | None = None,
) -> DataSet:
    """A data set from a user's own arrays, for a task: a value or a name, "regression" say.

    Images are N×C×H×W, or N×H×W in uint8; uint8 stays uint8 (0 to 255), other whole numbers are token ids and become
    int64, everything else float32. Mean and std default to those of the training images, channel by channel; other
    inputs are left as they are. `clients` says of each training sample whose it is, by a number or a name.
    """
    task = task_of(task)
    train = Samples(_inputs(train_x, f"{name}: train_x"), _labels(train_y, f"{name}: train_y", task))
    test = Samples(_inputs(test_x, f"{name}: test_x"), _labels(test_y, f"{name}: test_y", task))
    for key, samples in (("train", train), ("test", test)):
        if len(samples) == 0:
            raise ValueError(f"{name}: the {key} set is empty; at least one sample is needed")
    if train.inputs.shape[1:] != test.inputs.shape[1:] or train.inputs.dtype != test.inputs.dtype:
        raise ValueError(
            f"{name}: train_x is {_kind(train.inputs)} but test_x is {_kind(test.inputs)}; they must agree"
        )
    if task.targets.is_floating_point:
        classes = prod(train.labels.shape[1:])
    else:
        classes = _checked_classes(name, train.labels, test.labels, classes, task.dense)
    vocabulary = _vocabulary(name, train.inputs, test.inputs)
    if vocabulary is not None and train.labels.shape == train.inputs.shape:  # inputs and targets are of one vocabulary
        vocabulary = classes = max(vocabulary, classes)
    measured_mean, measured_std = channel_statistics(train.inputs)
    return DataSet(
        name, train, test, classes,
        measured_mean if mean is None else mean,
        measured_std if std is None else std,
        augment,
        None if clients is None else _owners(name, clients, len(train)),
        vocabulary,
    )  # fmt: skip


def _vocabulary(name: str, train: Tensor, test: Tensor) -> int | None:
    """How many token ids there are; None where inputs are none."""
    if train.dtype != torch.int64:
        return None
    if (lowest := int(min(train.min(), test.min()))) < 0:
        raise ValueError(f"{name}: token ids go down to {lowest}; whole numbers from 0 on are needed, or else floats")
    return int(max(train.max(), test.max())) + 1


def _owners(name: str, clients: Array, samples: int) -> Tensor:
    """Each sample's client, counted from 0 in the order of their numbers or names."""
    array = clients.detach().cpu().numpy() if isinstance(clients, Tensor) else np.asarray(clients)
    if array.dtype.kind not in "uiUSO" or array.shape != (samples,):
        raise ValueError(
            f"{name}: clients is of type {array.dtype} and shape {array.shape}; a number or name for each of the "
            f"{samples} training samples is needed"
        )
    if array.dtype.kind == "O":
        array = array.astype(str)
    return torch.from_numpy(np.unique(array, return_inverse=True)[1].astype(np.int64))


def _checked_classes(name: str, train: Tensor, test: Tensor, classes: int | None, dense: bool) -> int:
    """How many classes there are: as many as given, which all labels must fit, or as the labels show."""
    if dense:
        train, test = (labels[labels != IGNORED] for labels in (train, test))
        if len(train) == 0 or len(test) == 0:
            raise ValueError(f"{name}: every target is {IGNORED}, so nothing counts; a target that counts is needed")
    highest, lowest = int(max(train.max(), test.max())), int(min(train.min(), test.min()))
    classes = highest + 1 if classes is None else classes
    if lowest < 0 or highest >= classes:
        raise ValueError(
            f"{name}: labels run from {lowest} to {highest}; with classes = {classes} they must be 0 to {classes - 1}"
        )
    return classes


def channel_statistics(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of N×C×H×W images scaled to [0, 1]; (0), (1) for inputs that are no images."""
    if inputs.dim() != 4:
        return (0.0,), (1.0,)
    means: list[float] = []
    deviations: list[float] = []
    for channel in inputs.unbind(1):  # one at a time: a float64 copy of all of CIFAR-10 would take 1.2 GB
        values = channel.to(torch.float64) / (255.0 if channel.dtype == torch.uint8 else 1.0)
        means.append(values.mean().item())
        deviations.append(values.std(correction=0).item() or 1.0)
    return tuple(means), tuple(deviations)


def _inputs(values: Array, key: str) -> Tensor:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "uifb" or array.ndim < 2:
        raise ValueError(
            f"{key} is {array.ndim}-dimensional of type {array.dtype}; numbers of shape samples × … are needed"
        )
    if array.dtype == np.uint8 and array.ndim == 3:
        array = array[:, None]
    if array.ndim == 4 and array.shape[1] > 4 >= array.shape[3]:
        raise ValueError(f"{key} has shape {array.shape}, channels last; N×C×H×W is needed: transpose(0, 3, 1, 2)")
    if array.dtype.kind in "ui" and array.dtype != np.uint8:
        return torch.from_numpy(_writable(array.astype(np.int64)))
    if array.dtype != np.uint8:
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise ValueError(f"{key} holds values that are not finite; replace them first")
    return torch.from_numpy(_writable(array))


def _labels(values: Array, key: str, task: Task) -> Tensor:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind in "USO" and not task.targets.is_floating_point:
        raise ValueError(f"{key} holds text; number its classes from 0 first: np.unique(y, return_inverse=True)[1]")
    if task.targets.is_floating_point:
        if array.dtype.kind not in "uifb" or array.ndim < 1 or not np.isfinite(array).all():
            raise ValueError(f"{key} is {array.ndim}-dimensional of type {array.dtype}; finite numbers are needed")
        return torch.from_numpy(_writable(array)).to(task.targets)
    if task.dense:
        if array.dtype.kind not in "ui" or array.ndim < 2:
            raise ValueError(
                f"{key} is {array.ndim}-dimensional of type {array.dtype}; {task.name} needs whole numbers of shape "
                "samples × …, a target for each token or pixel"
            )
    elif array.dtype.kind not in "uib" or array.ndim != 1:
        other = '; for numbers to predict, the task is "regression"' if array.dtype.kind == "f" else ""
        raise ValueError(
            f"{key} is {array.ndim}-dimensional of type {array.dtype}; one whole number per sample is needed{other}"
        )
    return torch.from_numpy(_writable(array.astype(np.int64)))


def _writable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """torch warns about read-only memory and cannot take negative strides."""
    return array if array.flags.writeable and array.flags.c_contiguous else array.copy(order="C")


def _kind(inputs: Tensor) -> str:
    return f"{'×'.join(map(str, inputs.shape[1:]))} {str(inputs.dtype).removeprefix('torch.')}"

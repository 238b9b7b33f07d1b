"""The typed sections of an experiment: [data], [task], [model], [federation], [training], [algorithm] in TOML.

Each refuses what is impossible by itself; what needs two sections is checked in `experiment.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ternfed.algorithms.optimizers import Optimizer
from ternfed.data.partitions import Partition
from ternfed.data.sets import FOLDERS, is_text
from ternfed.data.sets import NAMES as DATASETS
from ternfed.experiment.named import check_aggregation, check_task
from ternfed.experiment.schedules import Schedule
from ternfed.experiment.settings import need, shown, suggestion


@dataclass(frozen=True)
class DataSettings:
    """What the clients hold."""

    dataset: str
    """`digits`, `mnist`, `cifar10`, `shakespeare`, a folder (`text:FOLDER`), or `module:function` of a user's own."""
    partition: Partition
    hold_out: float
    """Share of the training samples that stays on the server, to judge models with."""
    length: int | None = None
    """Characters or tokens of a sequence, with text alone."""
    tokenizer: str | None = None
    """The file of a tokenizer, with text alone; None: characters."""

    def __post_init__(self) -> None:
        names = (*(shown(name) for name in DATASETS), *(f"{kind}:FOLDER" for kind in FOLDERS))
        known = f"{', '.join(names)} or module:function is allowed{suggestion(self.dataset, DATASETS)}"
        need(self.dataset in DATASETS or ":" in self.dataset, "data.dataset", self.dataset, known)
        need(0 <= self.hold_out < 1, "data.hold_out", self.hold_out, "0 to below 1 is allowed")
        if is_text(self.dataset):
            need(self.length is not None, "data.length", self.length, "a whole number of at least 1 is needed for text")
        only = f"has no meaning with dataset = {shown(self.dataset)}, only with text"
        for key, value in (("data.length", self.length), ("data.tokenizer", self.tokenizer)):
            need(value is None or is_text(self.dataset), key, value, only)
        if self.length is not None:
            _at_least_one("data.length", self.length)


@dataclass(frozen=True)
class TaskSettings:
    """What is learned, and the metric that judges it."""

    name: str
    """`classification` and the other names of `TASKS`, or `module:function` that returns a Task."""
    metric: str = "own"
    """One of the task's metrics; `own` is that of a user's task."""

    def __post_init__(self) -> None:
        check_task(self.name, self.metric)


@dataclass(frozen=True)
class ModelSettings:
    """The network, and which of its layers a ternary algorithm quantizes."""

    name: str
    """`mlp`, `cnn`, `resnet18`, `charlstm`, `chartransformer`, or `module:function` of a user's own."""
    ternary: Literal["inner", "all"] | tuple[str, ...]
    """`inner`: all layers but the first and the last. `all`: every matrix and kernel. Or names of layers or parameters,
    with `*`, and `!` before those to leave out."""
    options: Mapping[str, Any]
    """Arguments of the network's function, beside those that the data decides."""
    trainable: tuple[str, ...] | None = None
    """What is trained and travels, by the same patterns; None: everything."""
    weights: str | None = None
    """A safetensors file that the model starts from; None: weights drawn from the seed."""

    def __post_init__(self) -> None:
        need(self.ternary != (), "model.ternary", self.ternary, 'at least one name, "inner" or "all" is needed')
        need(self.trainable != (), "model.trainable", self.trainable, "at least one name is needed")


@dataclass(frozen=True)
class FederationSettings:
    """N clients, of which λN take part in a round."""

    clients: int
    """0: as many as the data has by nature."""
    participation: float
    rounds: int
    aggregate: str = "own"
    """`own`: as the algorithm does it. `mean` and the other files of `aggregation/`, or `module:function`."""
    trim: float | None = None
    """The share that is cut off at each end, with `trimmed_mean` alone."""
    audit: float | None = None
    """An upload is left out without which the loss on held-out data is lower by this share; None: nobody looks."""

    def __post_init__(self) -> None:
        check_aggregation(self.aggregate)
        need(0 < (self.audit or 0.1) < 1, "federation.audit", self.audit, "a share between 0 and 1 is allowed, or none")
        need(0 <= (self.trim or 0) < 0.5, "federation.trim", self.trim, "0 to below 0.5 is allowed")
        need(self.clients >= 0, "federation.clients", self.clients, "a whole number of at least 1 is allowed")
        _at_least_one("federation.rounds", self.rounds)
        if self.clients == 0:
            need(0 < self.participation <= 1, "federation.participation", self.participation, "up to 1 is allowed")
            return
        # The last bit of a quotient such as 1/49 must not decide.
        possible = self.clients * self.participation >= 1 - 1e-9 and self.participation <= 1
        range_ = f"1/{self.clients} to 1 is allowed with clients = {self.clients}, at least one client per round"
        need(possible, "federation.participation", self.participation, range_)


@dataclass(frozen=True)
class PrivacySettings:
    """Client-level differential privacy by the server, where `clip` is given."""

    clip: float | None = None
    """S: the most that the change of one client's upload may measure, over all its tensors; None: no privacy."""
    noise: float | None = None
    """z: the standard deviation of the noise on the sum of the changes, in units of the clip."""
    delta: float = 1e-5
    """δ of the ε that a run states."""

    def __post_init__(self) -> None:
        need((self.clip is None) == (self.noise is None), "privacy.clip", self.clip, "is needed with privacy.noise")
        for key in ("clip", "noise"):
            value = getattr(self, key)
            need(value is None or value > 0, f"privacy.{key}", value, "a number above 0 is allowed, or none")
        need(0 < self.delta < 1, "privacy.delta", self.delta, "a number between 0 and 1 is allowed")


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains, and how its learning rate falls from round to round."""

    optimizer: Optimizer
    rate: float
    """η of the first round."""
    weight_decay: float
    epochs: int
    batch: int
    schedule: Schedule
    precision: Literal["float32", "bfloat16"]

    def __post_init__(self) -> None:
        need(0 < self.rate < math.inf, "training.rate", self.rate, "a number above 0 is allowed")
        need(self.weight_decay >= 0, "training.weight_decay", self.weight_decay, "a number of at least 0 is allowed")
        _at_least_one("training.epochs", self.epochs)
        _at_least_one("training.batch", self.batch)


@dataclass(frozen=True)
class AlgorithmChoice:
    """An algorithm by name, and its own settings."""

    name: str
    """`tfedavg` and the other files of `algorithms/`, or `module:function` of a user's own."""
    preset: str | None
    """The preset that the settings started from; None for the algorithm's own defaults."""
    settings: Any
    """A value of the dataclass that the algorithm's function takes."""


def _at_least_one(key: str, value: int) -> None:
    need(value >= 1, key, value, "a whole number of at least 1 is allowed")

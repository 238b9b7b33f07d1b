"""One experiment as one typed value ⇄ TOML: every setting there is, each with a value (docs/experiments.md).

    experiment = Experiment.from_file("mnist.toml", ["federation.rounds=5"])

A file says what differs from the defaults (`defaults.py`). They are filled in once, here; what is saved beside a run's
results is the whole.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, unique

from ternfed.algorithms.algorithm import Algorithm, Network, Training
from ternfed.data import partitions
from ternfed.data.sets import NAMES as DATASETS
from ternfed.data.values import DataSet
from ternfed.draws import generator
from ternfed.experiment import named
from ternfed.experiment.defaults import default_name, defaults, fill, override
from ternfed.experiment.named import find_algorithm
from ternfed.experiment.settings import ExperimentError, Table, convert, either, plain, read, shown, write
from ternfed.task import CLASSIFICATION, Task

__all__ = ["Experiment", "ExperimentError", "default_name", "defaults", "find_algorithm", "override", "read_table"]

ALL_IN_FLOAT = frozenset({"fedavg", "cmfl", "stc", "centralized"})
"""Algorithms that train no ternary layer: which ones could be is no difference between two of their experiments."""


@dataclass(frozen=True)
class DataSettings:
    """What the clients hold."""

    dataset: str
    """`digits`, `mnist`, `cifar10`, or `module:function` of a user's own."""
    partition: Literal["iid", "classes", "unbalanced", "dirichlet"]
    hold_out: float
    """Share of the training samples that stays on the server, to judge models with."""
    classes_per_client: int | None = None
    """N_c, with `classes` alone."""
    balance: float | None = None
    """β = median / max of the client sizes, with `unbalanced` alone."""
    alpha: float | None = None
    """α of the Dirichlet distribution, with `dirichlet` alone."""

    def __post_init__(self) -> None:
        known = f"{', '.join(shown(name) for name in DATASETS)} or module:function is allowed"
        _need(self.dataset in DATASETS or ":" in self.dataset, "data.dataset", self.dataset, known)
        _need(0 <= self.hold_out < 1, "data.hold_out", self.hold_out, "0 to below 1 is allowed")
        _at_least_one("data.classes_per_client", self.classes_per_client)
        _share("data.balance", self.balance)
        _positive("data.alpha", self.alpha)


@dataclass(frozen=True)
class ModelSettings:
    """The network, and which of its layers a ternary algorithm quantizes."""

    name: str
    """`mlp`, `cnn`, `resnet18`, or `module:function` of a user's own."""
    ternary: Literal["inner", "all"] | tuple[str, ...]
    """`inner`: all Linear and Conv layers but the first and the last. Or names of layers, with wildcards."""
    options: Mapping[str, Any]
    """Arguments of the network's function, beside those that the data decides."""


@dataclass(frozen=True)
class FederationSettings:
    """N clients, of which λN take part in a round."""

    clients: int
    participation: float
    rounds: int

    def __post_init__(self) -> None:
        _at_least_one("federation.clients", self.clients)
        _at_least_one("federation.rounds", self.rounds)
        # The last bit of a quotient such as 1/49 must not decide.
        possible = self.clients * self.participation >= 1 - 1e-9 and self.participation <= 1
        range_ = f"1/{self.clients} to 1 is allowed with clients = {self.clients}, at least one client a round"
        _need(possible, "federation.participation", self.participation, range_)


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains, and how its learning rate falls from round to round."""

    optimizer: Literal["sgd", "adam"]
    rate: float
    weight_decay: float
    epochs: int
    batch: int
    schedule: Literal["constant", "exponential", "cosine"]
    precision: Literal["float32", "bfloat16"]
    momentum: float | None = None
    """With `sgd` alone."""
    decay: float | None = None
    """With `exponential` alone: the rate is multiplied by it every `decay_every` rounds."""
    decay_every: int | None = None

    def __post_init__(self) -> None:
        _positive("training.rate", self.rate)
        _need(self.weight_decay >= 0, "training.weight_decay", self.weight_decay, "a number of at least 0 is allowed")
        _at_least_one("training.epochs", self.epochs)
        _at_least_one("training.batch", self.batch)
        _need(0 <= (self.momentum or 0) < 1, "training.momentum", self.momentum, "0 to below 1 is allowed")
        _share("training.decay", self.decay)
        _at_least_one("training.decay_every", self.decay_every)


@dataclass(frozen=True)
class AlgorithmChoice:
    """An algorithm by name, and its own settings."""

    name: str
    """`tfedavg` and the other files of `algorithms/`, or `module:function` of a user's own."""
    preset: str | None
    """The preset that the settings started from; None for the algorithm's own defaults."""
    settings: Any
    """A value of the dataclass that the algorithm's function takes."""


@dataclass(frozen=True)
class Experiment:
    """Every setting of a run, all defaults filled in."""

    name: str
    seed: int
    data: DataSettings
    model: ModelSettings
    federation: FederationSettings
    training: TrainingSettings
    algorithm: AlgorithmChoice

    def __post_init__(self) -> None:
        letters = self.name.replace("-", "").replace("_", "").replace(".", "")
        usable = letters.isascii() and letters.isalnum() and self.name[0] != "."
        _need(usable, "name", self.name, "letters, digits, '-', '_' and '.' are allowed, no '.' first")
        _need(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1 is allowed")
        clients = self.federation.clients
        if self.data.balance is not None and clients <= 2:
            possible = f"{1 / clients:g} to 1 is allowed with clients = {clients}"
            _need(self.data.balance * clients >= 1, "data.balance", self.data.balance, possible)
        if self.data.dataset in DATASETS:
            self._check_classes(10)

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> Experiment:
        """The experiment that a table of sections describes."""
        whole = fill(table)
        return Experiment(
            convert(whole["name"], str, "name"),
            convert(whole["seed"], int, "seed"),
            read(DataSettings, whole["data"], "data"),
            _read_model(whole["model"]),
            read(FederationSettings, whole["federation"], "federation"),
            read(TrainingSettings, whole["training"], "training"),
            _read_choice(whole["algorithm"]),
        )

    @staticmethod
    def from_toml(text: str, settings: Iterable[str] = ()) -> Experiment:
        """The experiment of a TOML text; `settings` (`key=value`) go before what the text says."""
        return Experiment.from_table(override(_parse(text, "the experiment"), settings))

    @staticmethod
    def from_file(path: str | Path, settings: Iterable[str] = ()) -> Experiment:
        """The experiment of a TOML file; `settings` (`key=value`) go before what the file says."""
        # What a row of the paper's tables says about itself (rows.py) is no setting of its experiment.
        table = {key: value for key, value in read_table(path).items() if key != "reproduce"}
        return Experiment.from_table(override(table, settings))

    @staticmethod
    def given(file: Path | None, settings: Iterable[str], resumed: Path | None = None) -> Experiment:
        """What a command line asks for: a file, the run that goes on, or neither; settings go before what it says."""
        if file is None and resumed is not None:
            file = resumed / "config.toml"
        return Experiment.from_toml("", settings) if file is None else Experiment.from_file(file, settings)

    def with_settings(self, settings: Iterable[str]) -> Experiment:
        """This experiment with all its values but these; what belonged to a choice that changes takes its default.

        Another data set keeps the number of clients and everything else of this one. To have the defaults of the new
        one, give the settings to `from_file`, which knows what was chosen and what was filled in.
        """
        return Experiment.from_table(override(self.to_table(), settings))

    def to_table(self) -> Table:
        """Every setting as plain values, for TOML and JSON; those that do not apply are left out."""
        options = {key: plain(value) for key, value in self.model.options.items()}
        preset = {} if self.algorithm.preset is None else {"preset": self.algorithm.preset}
        return {
            "name": self.name,
            "seed": self.seed,
            "data": write(self.data, without_none=True),
            "model": {"name": self.model.name, "ternary": plain(self.model.ternary), **options},
            "federation": write(self.federation),
            "training": write(self.training, without_none=True),
            "algorithm": {"name": self.algorithm.name, **preset, **write(self.algorithm.settings)},
        }

    def differences(self, other: Experiment) -> Iterator[tuple[str, Any, Any]]:
        """(key, own value, the other's) of every setting in which two experiments differ; None where it is not one."""
        before, after = self.to_table(), other.to_table()
        if {self.algorithm.name, other.algorithm.name} <= ALL_IN_FLOAT:
            del before["model"]["ternary"], after["model"]["ternary"]
        for section, own in before.items():
            pairs = [(section, own, after[section])]
            if isinstance(own, dict):
                pairs = [
                    (f"{section}.{key}", own.get(key), after[section].get(key)) for key in {**own, **after[section]}
                ]
            yield from (pair for pair in pairs if pair[1] != pair[2])

    def to_toml(self) -> str:
        import tomli_w

        return tomli_w.dumps(self.to_table())

    def rate_at(self, round: int) -> float:
        """The learning rate η of a round; the first is round 1."""
        if round < 1:
            raise ValueError(f"round = {round}: rounds are counted from 1")
        training, done = self.training, round - 1
        if training.schedule == "exponential":
            assert training.decay is not None
            assert training.decay_every is not None
            return training.rate * training.decay ** (done // training.decay_every)
        if training.schedule == "cosine":
            return training.rate * 0.5 * (1 + math.cos(math.pi * min(1.0, done / self.federation.rounds)))
        return training.rate

    def check_with(self, data: DataSet, task: Task = CLASSIFICATION) -> None:
        """Refuse what cannot be done with this data: the checks that need its classes and its size."""
        labels, share = data.train.labels, self.data.hold_out
        held, clients = round(share * len(labels)), self.federation.clients
        fits = f"enough for one of the {len(labels)} training samples of {data.name}, or 0, is needed"
        _need(share == 0 or held >= 1, "data.hold_out", share, fits)
        most = len(labels) - held
        _need(clients <= most, "federation.clients", clients, f"1 to {most} is allowed, the training samples there are")
        strata = task.strata(labels)
        if strata is not None:
            self._check_classes(len(unique(strata)))

    def make_training(self) -> Training:
        """How a client trains, before the algorithm adds to it; its rate is that of the first round."""
        own = self.training
        return Training(
            optimizer=own.optimizer,
            rate=own.rate,
            momentum=own.momentum or 0.0,
            weight_decay=own.weight_decay,
            epochs=own.epochs,
            batch=own.batch,
            precision=own.precision,
        )

    def make_network(self, data: DataSet) -> Network:
        """The network for this data, its first weights drawn from the seed."""
        return named.make_network(self.model.name, self.model.ternary, self.model.options, data, self.seed)

    def make_algorithm(self, network: Network) -> Algorithm:
        """The algorithm for this network."""
        try:
            return find_algorithm(self.algorithm.name).function(network, self.make_training(), self.algorithm.settings)
        except ExperimentError:
            raise
        except ValueError as error:
            raise ExperimentError(f"algorithm.name = {shown(self.algorithm.name)}: {error}") from error

    def make_partition(self, targets: Tensor, task: Task = CLASSIFICATION) -> tuple[Tensor, list[Tensor]]:
        """(held out, one a client): indices of the training samples that the server keeps and of each client's own."""
        data, clients = self.data, self.federation.clients
        by_class = data.classes_per_client is not None or data.alpha is not None
        reason = f"divides by class, and {task.name} has no classes; {either(['iid', 'unbalanced'])} is allowed"
        _need(not by_class or task.strata(targets) is not None, "data.partition", data.partition, reason)
        labels = task.strata_or_one(targets)
        source = generator(self.seed, "partition")
        try:
            kept, held = partitions.hold_out(labels, data.hold_out, generator(self.seed, "hold-out"))
            if data.classes_per_client is not None:
                parts = partitions.by_class(labels[kept], clients, data.classes_per_client, source)
            elif data.balance is not None:
                parts = partitions.unbalanced(labels[kept], clients, data.balance, source)
            elif data.alpha is not None:
                parts = partitions.dirichlet(labels[kept], clients, data.alpha, source)
            else:
                parts = partitions.iid(labels[kept], clients, source)
        except ValueError as error:
            raise ExperimentError(f"data.partition = {shown(data.partition)}: {error}") from error
        return held, [kept[part] for part in parts]

    def _check_classes(self, classes: int) -> None:
        """N_c of the clients' classes: no more than there are, and enough that each lies on some client."""
        chosen, clients = self.data.classes_per_client, self.federation.clients
        if chosen is not None:
            least = math.ceil(classes / clients)
            reason = f"{least} to {classes} is allowed with {classes} classes and clients = {clients}"
            _need(least <= chosen <= classes, "data.classes_per_client", chosen, reason)


def read_table(path: str | Path) -> Table:
    """What a TOML file says, defaults not filled in."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ExperimentError(f"{path}: cannot be read ({reason}); a TOML file is needed") from error
    return _parse(text, str(path))


def _parse(text: str, where: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{where}: is no TOML ({error})") from error


def _read_model(table: Table) -> ModelSettings:
    name = convert(table.pop("name"), str, "model.name")
    ternary = convert(table.pop("ternary"), Literal["inner", "all"] | tuple[str, ...], "model.ternary")
    _need(ternary != (), "model.ternary", ternary, 'at least one name, "inner" or "all" is needed')
    return ModelSettings(name, ternary, named.network_options(name, table))


def _read_choice(table: Table) -> AlgorithmChoice:
    name, preset = table.pop("name"), table.pop("preset", None)
    found = find_algorithm(name)
    base = None
    if preset is not None:
        known = f"{either(found.presets)} is allowed" if found.presets else f"{name} has no presets"
        _need(isinstance(preset, str) and preset in found.presets, "algorithm.preset", preset, known)
        base = found.presets[preset]
    return AlgorithmChoice(name, preset, read(found.settings, table, "algorithm", base))


def _need(holds: bool, key: str, value: Any, allowed: str) -> None:
    if not holds:
        raise ExperimentError(f"{key} = {shown(value)}: {allowed}")


def _at_least_one(key: str, value: int | None) -> None:
    _need(value is None or value >= 1, key, value, "a whole number of at least 1 is allowed")


def _positive(key: str, value: float | None) -> None:
    _need(value is None or 0 < value < math.inf, key, value, "a number above 0 is allowed")


def _share(key: str, value: float | None) -> None:
    _need(value is None or 0 < value <= 1, key, value, "above 0 and at most 1 is allowed")

"""One experiment as one typed value ⇄ TOML: every setting there is, each with a value (docs/experiments.md).

    experiment = Experiment.from_file("mnist.toml", ["federation.rounds=5"])

A file says what differs from the defaults (`defaults.py`), which are filled in once, here. The complete experiment is
saved beside a run's results.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn, unique

from ternfed.aggregation.aggregation import Aggregation
from ternfed.aggregation.private_mean import private
from ternfed.algorithms.algorithm import UP, Algorithm, Network, Training
from ternfed.data.partitions import hold_out
from ternfed.data.sets import CLASSES, Source, load
from ternfed.data.text import LENGTH
from ternfed.data.values import DataSet
from ternfed.draws import generator
from ternfed.experiment import named
from ternfed.experiment.defaults import fill
from ternfed.experiment.overrides import override
from ternfed.experiment.sections import (
    AlgorithmChoice,
    DataSettings,
    FederationSettings,
    ModelSettings,
    PrivacySettings,
    TaskSettings,
    TrainingSettings,
)
from ternfed.experiment.settings import (
    ExperimentError,
    Table,
    convert,
    either,
    need,
    plain,
    read,
    shown,
    suggestion,
    write,
)
from ternfed.named_function import check_code, code_in
from ternfed.task import CLASSIFICATION, Task

__all__ = ["Experiment", "ExperimentError", "override", "read_table"]


@dataclass(frozen=True)
class Experiment:
    """Every setting of a run, all defaults filled in."""

    name: str
    seed: int
    """Of every random draw of the run."""
    data: DataSettings
    task: TaskSettings
    model: ModelSettings
    federation: FederationSettings
    training: TrainingSettings
    algorithm: AlgorithmChoice
    privacy: PrivacySettings = field(default_factory=PrivacySettings)

    def __post_init__(self) -> None:
        letters = self.name.replace("-", "").replace("_", "").replace(".", "")
        usable = letters.isascii() and letters.isalnum() and self.name[0] != "."
        need(usable, "name", self.name, "letters, digits, '-', '_' and '.' are allowed, no '.' first")
        need(0 <= self.seed < 2**63, "seed", self.seed, "0 to 2^63 - 1 is allowed")
        counted = self.federation.clients > 0 or self.data.partition.by_client
        need(counted, "federation.clients", self.federation.clients, "a whole number of at least 1 is allowed")
        self._check_partition(CLASSES.get(self.data.dataset))

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> Experiment:
        """The experiment that a table of sections describes."""
        whole = fill(table)
        return Experiment(
            convert(whole["name"], str, "name"),
            convert(whole["seed"], int, "seed"),
            read(DataSettings, whole["data"], "data"),
            read(TaskSettings, whole["task"], "task"),
            _read_model(whole["model"]),
            read(FederationSettings, whole["federation"], "federation"),
            read(TrainingSettings, whole["training"], "training"),
            _read_algorithm(whole["algorithm"]),
            read(PrivacySettings, whole["privacy"], "privacy"),
        )

    @staticmethod
    def from_toml(text: str, settings: Iterable[str] = ()) -> Experiment:
        """The experiment of a TOML text; `settings` (`key=value`) override what the text says."""
        return Experiment.from_table(override(_parse(text, "the experiment"), settings))

    @staticmethod
    def from_file(path: str | Path, settings: Iterable[str] = (), allow: Iterable[str] = ()) -> Experiment:
        """The experiment of a TOML file; `settings` (`key=value`) override what the file says.

        Code that the file names (`module:function`) must be of a module in `allow`, or of one that a setting names.
        """
        settings = list(settings)
        # What a row of the paper's tables says about itself (rows.py), or a sweep, is no setting of its experiment.
        table = {key: value for key, value in read_table(path).items() if key not in ("reproduce", "sweep")}
        whole = override(table, settings)
        named_again = [module for _, _, module in code_in(override({}, settings))]
        check_code(whole, (*allow, *named_again), str(path))
        return Experiment.from_table(whole)

    @staticmethod
    def given(
        file: Path | None, settings: Iterable[str], resumed: Path | None = None, allow: Iterable[str] = ()
    ) -> Experiment:
        """What a command line asks for: a file, a run to be resumed, or neither; `settings` override what it says."""
        if file is None and resumed is not None:
            file = resumed / "config.toml"
            if not file.is_file():
                raise ExperimentError(f"{resumed}: holds no run to resume; --out names the folder of one")
        return Experiment.from_toml("", settings) if file is None else Experiment.from_file(file, settings, allow)

    def with_settings(self, settings: Iterable[str]) -> Experiment:
        """This experiment with these settings overriding its own; what belongs to a choice that changes starts anew.

        Another data set keeps the number of clients and everything else of this one. To have the defaults of the new
        one, give the settings to `from_file`, which knows what was chosen and what was filled in.
        """
        return Experiment.from_table(override(self.to_table(), settings))

    def to_table(self) -> Table:
        """Every setting as plain values, for TOML and JSON."""
        options = {key: plain(value) for key, value in self.model.options.items()}
        given = {"trainable": self.model.trainable, "weights": self.model.weights}
        part = {key: plain(value) for key, value in given.items() if value is not None}
        preset = {} if self.algorithm.preset is None else {"preset": self.algorithm.preset}
        return {
            "name": self.name,
            "seed": self.seed,
            "data": {key: value for key, value in write(self.data).items() if value != "none"},
            "task": write(self.task),
            "model": {"name": self.model.name, "ternary": plain(self.model.ternary), **part, **options},
            "federation": {key: value for key, value in write(self.federation).items() if value != "none"},
            "training": write(self.training),
            "algorithm": {"name": self.algorithm.name, **preset, **write(self.algorithm.settings)},
            **({} if self.privacy.clip is None else {"privacy": write(self.privacy)}),
        }

    def differences(self, other: Experiment) -> Iterator[tuple[str, Any, Any]]:
        """(key, own value, the other's) of every setting in which two experiments differ; None on a side without it."""
        none: Table = {"privacy": {}}
        before, after = {**none, **self.to_table()}, {**none, **other.to_table()}
        if not any(named.find_algorithm(each.algorithm.name).about.trains_ternary for each in (self, other)):
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
        return self.training.schedule.rate_at(self.training.rate, round, self.federation.rounds)

    def load_data(
        self, folder: Path | None = None, source: Source | None = None, characters: str | None = None
    ) -> DataSet:
        """Its data set, from where it lies (`data.sets.load`), or a client's own from there, read as this one is."""
        own = self.data
        tokenizer = None if own.tokenizer is None else Path(own.tokenizer)
        read = partial(load, own.dataset, folder) if source is None else source
        return read(self.make_task(), own.length or LENGTH, tokenizer, characters)

    @property
    def data_key(self) -> tuple[object, ...]:
        """Two experiments with the same one have the same data set."""
        return self.data.dataset, self.data.length, self.data.tokenizer, self.task

    def counted(self, data: DataSet) -> Experiment:
        """This experiment with the number of clients that the data has by nature, where it does not say how many."""
        if self.federation.clients or data.clients is None:
            return self
        count = int(data.clients.max()) + 1
        share = max(self.federation.participation, 1 / count)
        return self.with_settings([f"federation.clients={count}", f"federation.participation={share}"])

    def check_with(self, data: DataSet, task: Task = CLASSIFICATION) -> None:
        """Refuse what is impossible with this data: the checks that need its classes and its size."""
        labels, share = data.train.labels, self.data.hold_out
        held, clients = round(share * len(labels)), self.federation.clients
        fits = f"enough for one of the {len(labels)} training samples of {data.name}, or 0, is needed"
        need(share == 0 or held >= 1, "data.hold_out", share, fits)
        most = len(labels) - held
        need(clients <= most, "federation.clients", clients, f"1 to {most} is allowed, the training samples there are")
        if self.data.partition.by_client and data.clients is not None:
            own = int(data.clients.max()) + 1
            fits = f"the data has {own} of its own, and so many are needed"
            need(clients == own, "federation.clients", clients, fits)
        strata = task.strata(labels)
        self._check_partition(None if strata is None else len(unique(strata)))

    def make_training(self) -> Training:
        """How a client trains, before the algorithm adds to it, at the rate of the first round."""
        own = self.training
        return Training(
            optimizer=own.optimizer,
            rate=own.rate,
            weight_decay=own.weight_decay,
            epochs=own.epochs,
            batch=own.batch,
            precision=own.precision,
        )

    def make_task(self) -> Task:
        """What is learned."""
        return named.find_task(self.task.name, self.task.metric)

    def make_network(self, data: DataSet) -> Network:
        """The network for this data and its task, its first weights drawn from the seed or read from a file."""
        own = self.model
        made = named.make_network(own.name, own.ternary, own.options, data, self.seed, own.trainable, own.weights)
        return replace(made, task=self.make_task())

    def network_size(self, data: DataSet) -> int | None:
        """How many numbers its network would have for this data, without making them; None for a user's own."""
        return named.network_size(self.model.name, self.model.options, data)

    def network_of(self, model: nn.Module, data: DataSet) -> Network:
        """The network of a caller's own model, of which a copy is taken."""
        own = self.model
        made = named.network_of(deepcopy(model), own.ternary, data, own.trainable, own.weights)
        return replace(made, task=self.make_task())

    def suited(self, network: Network, samples: int) -> Experiment:
        """This experiment with what its algorithm chooses by the network and by how many samples a client has."""
        own = self.algorithm
        settings = named.find_algorithm(own.name).about.suited(own.settings, network, self.make_training(), samples)
        return self if settings == own.settings else replace(self, algorithm=replace(own, settings=settings))

    def make_algorithm(self, network: Network) -> Algorithm:
        """The algorithm for this network."""
        try:
            found = named.find_algorithm(self.algorithm.name)
            made = found.function(network, self.make_training(), self.algorithm.settings)
        except ExperimentError:
            raise
        except ValueError as error:
            raise ExperimentError(f"algorithm.name = {shown(self.algorithm.name)}: {error}") from error
        if self.privacy.clip is not None and self.privacy.noise is not None:
            self._check_private(made)
            return replace(made, aggregate=private(self.privacy.clip, self.privacy.noise))
        chosen = self.make_aggregation()
        return made if chosen is None else replace(made, aggregate=chosen)

    def _check_private(self, algorithm: Algorithm) -> None:
        """Refuse what would give away more than the noise hides."""
        rule, own = self.federation.aggregate, self.federation
        reason = "has no meaning with privacy, which brings a mean of its own"
        need(rule in ("own", "mean"), "federation.aggregate", rule, reason)
        need(own.audit is None, "federation.audit", own.audit, "looks at uploads before noise hides them")
        where = f"algorithm.name = {shown(self.algorithm.name)}"
        if algorithm.central:
            raise ExperimentError(f"{where}: has no clients whose part could be hidden; privacy is for the others")
        if any(not schema.slots for schema in algorithm.up):
            raise ExperimentError(f"{where}: whether a client uploads depends on its data, which privacy cannot hide")
        extra = sorted({number for schema in algorithm.up for number in schema.numbers} - set(UP))
        if extra:
            raise ExperimentError(f"{where}: clients send {extra[0]} beside their model, which privacy cannot hide")

    def make_aggregation(self) -> Aggregation[Any] | None:
        """The rule that replaces the algorithm's own; None where that one is wanted."""
        name = self.federation.aggregate
        return None if name == "own" else named.find_aggregation(name, self.federation.trim)

    def make_partition(
        self, targets: Tensor, task: Task = CLASSIFICATION, owners: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """(held out, one per client): indices of the training samples that the server keeps and of each client's.

        `owners` are the clients that samples belong to by nature, where that is known.
        """
        partition, clients = self.data.partition, self.federation.clients
        without = either([*(["natural"] if owners is not None else []), "iid", "unbalanced"])
        reason = f"divides by class, and {task.name} has no classes; {without} is allowed"
        has_classes = task.strata(targets) is not None
        need(has_classes or not partition.by_class, "data.partition", partition, reason)
        labels = task.strata_or_one(targets)
        if partition.by_client:
            others = ["iid", *(["classes", "dirichlet"] if has_classes else []), "unbalanced"]
            reason = f"the data does not say whose each sample is; {either(others)} is allowed"
            need(owners is not None, "data.partition", partition, reason)
            labels = labels if owners is None else owners
        try:
            kept, held = hold_out(labels, self.data.hold_out, generator(self.seed, "hold-out"))
            parts = partition.split(labels[kept], clients, generator(self.seed, "partition"))
        except ValueError as error:
            raise ExperimentError(f"data.partition = {shown(partition)}: {error}") from error
        return held, [kept[part] for part in parts]

    def _check_partition(self, classes: int | None) -> None:
        """Refuse a partition that so many clients cannot have, whatever the samples; None: the classes are unknown."""
        try:
            self.data.partition.check(self.federation.clients, classes)
        except ValueError as error:
            raise ExperimentError(f"data.{error}") from error


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
    trainable = convert(table.pop("trainable", None), tuple[str, ...] | None, "model.trainable")
    weights = convert(table.pop("weights", None), str | None, "model.weights")
    return ModelSettings(name, ternary, named.network_options(name, table), trainable, weights)


def _read_algorithm(table: Table) -> AlgorithmChoice:
    name, preset = table.pop("name"), table.pop("preset", None)
    found = named.find_algorithm(name)
    base = None
    if preset is not None:
        known = f"{either(found.presets)} is allowed" if found.presets else f"{name} has no presets"
        known += suggestion(preset, found.presets)
        need(isinstance(preset, str) and preset in found.presets, "algorithm.preset", preset, known)
        base = found.presets[preset]
    return AlgorithmChoice(name, preset, read(found.settings, table, "algorithm", base))

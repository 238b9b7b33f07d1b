"""Run folders as groups: the same settings with several seeds, and what those come to."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ternfed.algorithms.algorithm import About
from ternfed.experiment.named import about
from ternfed.experiment.sections import TrainingSettings
from ternfed.experiment.settings import ExperimentError, Table, read, shown
from ternfed.paper.elapsed import FILE, Elapsed, read_elapsed
from ternfed.paper.rows import Role, Row
from ternfed.runs.folder import RunError, read_run
from ternfed.runs.records import Round, is_frozen, unmoved
from ternfed.runs.several import DataSetOf, data_names, no_such_folder
from ternfed.task import ACCURACY, Measure

NEEDED: Mapping[tuple[str, str], type] = {
    ("data", "dataset"): str, ("data", "partition"): str, ("model", "name"): str, ("algorithm", "name"): str,
    ("federation", "clients"): int, ("federation", "participation"): float, ("federation", "rounds"): int,
    ("training", "epochs"): int, ("training", "rate"): float, ("training", "optimizer"): str,
}  # fmt: skip
"""What tables read of the settings. A folder may come from anyone, so it is looked at before."""


@dataclass(frozen=True)
class SeedRun:
    """One run of a group."""

    folder: Path
    seed: int
    wanted: int
    """So many rounds were asked for."""
    rounds: tuple[Round, ...]
    environment: tuple[Table, ...]
    partition: list[list[int]] | None
    data_name: str | None = None
    """What its data set calls itself, where the folder says so."""

    @property
    def finished(self) -> bool:
        return len(self.rounds) >= self.wanted


@dataclass(frozen=True)
class Spread:
    """A number over the seeds of a group."""

    mean: float
    std: float | None
    """The standard deviation; None with one seed."""
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))

    def text(self, digits: int = 2, sign: str = "") -> str:
        """`92.00 ± 0.30`; with the sign `+`, one of both stands before it."""
        if not math.isfinite(self.mean):
            return "not finite"
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:{sign}.{digits}f}{spread}"


@dataclass(frozen=True)
class Group:
    """Runs whose settings differ in the seed alone."""

    name: str
    settings: Table
    """Without name and seed."""
    runs: tuple[SeedRun, ...]
    row: Row | None = None
    """The row of the paper's tables that has its name."""
    data_name: str | None = None
    """What to call its data set, where the function of `data.dataset` is not the best name for it."""

    @cached_property
    def shown(self) -> tuple[SeedRun, ...]:
        """The runs that numbers are taken from: the finished ones; where there is none, those that have begun."""
        return tuple(run for run in self.runs if run.finished) or tuple(run for run in self.runs if run.rounds)

    @property
    def finished(self) -> bool:
        return any(run.finished for run in self.runs)

    @property
    def length(self) -> int:
        """So many rounds all of the shown runs have."""
        return min((len(run.rounds) for run in self.shown), default=0)

    @property
    def algorithm(self) -> str:
        return str(self.settings["algorithm"]["name"])

    @property
    def preset(self) -> str | None:
        given = self.settings["algorithm"].get("preset")
        return None if given is None else str(given)

    @property
    def role(self) -> Role | None:
        """What it stands for beside its algorithm: what its row says, or else what its settings tell."""
        if self.row is not None and self.row.about.role is not None:
            return self.row.about.role
        if is_frozen(self.settings["algorithm"]):
            return "frozen"
        return "published" if self.preset == "paper" else None

    @property
    def planned(self) -> tuple[int, int]:
        """Rounds, and local epochs of each, as asked for."""
        return self.settings["federation"]["rounds"], self.settings["training"]["epochs"]

    @property
    def _about(self) -> About:
        """What its algorithm says about itself; nothing is known of a user's own, whose module is not imported here."""
        return about(self.algorithm) or About(self.algorithm)

    @property
    def central(self) -> bool:
        """Nothing travels."""
        return self._about.central

    def setting(self, section: str, key: str) -> Any:
        return self.settings[section].get(key)

    def shows(self, *names: str) -> bool:
        return self.row is not None and any(name in self.row.about.shows for name in names)

    def last(self, value: Callable[[Round], float | None], rounds: int = 1) -> Spread | None:
        """A value of the last round, or the mean of the last `rounds`, over the seeds."""
        ends = [run.rounds[max(0, self.length - rounds) : self.length] for run in self.shown if self.length]
        found = [[number for number in map(value, end) if number is not None] for end in ends]
        return Spread.of([statistics.fmean(numbers) for numbers in found if numbers])

    @cached_property
    def measure(self) -> Measure:
        """How the scores of its runs are read."""
        return next((record.measure for run in self.shown for record in run.rounds), ACCURACY.measure)

    def accuracy(self, rounds: int = 1) -> Spread | None:
        """The test score as it is shown, an accuracy in percent: after the last round or the mean of the last ones."""
        return self.last(shown_score, rounds)

    def validation(self, rounds: int = 1) -> Spread | None:
        """The same on held-out data, after the last round or as the mean of the last `rounds`."""

        def shown(record: Round) -> float | None:
            return None if record.validation is None else record.measure.scaled(record.validation)

        return self.last(shown, rounds)

    def total(self, value: Callable[[Round], float]) -> float:
        """A sum over the rounds, the mean over the seeds; 0 where nothing has run."""
        return statistics.fmean([sum(map(value, run.rounds[: self.length])) for run in self.shown] or [0.0])

    def exchanges(self) -> float:
        """How often a client took part: a download and an upload, or a notice that there is none."""
        return self.total(lambda record: record.clients)

    def ratio(self, over: Callable[[Round], float], under: Callable[[Round], float]) -> float | None:
        below = self.total(under)
        return self.total(over) / below if below else None

    def compression(self, way: str) -> float | None:
        """How many times smaller than raw float32, `up` or `down`."""
        return self.ratio(lambda r: float(getattr(r, f"bytes_{way}_fp32")), lambda r: float(getattr(r, f"bytes_{way}")))

    def skipped(self) -> float:
        """The share of uploads that a client kept to itself."""
        return self.ratio(lambda record: record.skipped, lambda record: record.clients) or 0.0

    def strategy_one(self) -> float | None:
        """The share of rounds with Strategy I; None for algorithms without strategies."""
        return self.ratio(lambda r: r.strategy == "I", lambda r: r.strategy is not None)

    def flips(self) -> tuple[float, float, float] | None:
        """The share of trits that the first, an average and the last round flipped; None where no trits travel."""
        runs = [[r.changed for r in run.rounds[: self.length] if r.changed is not None] for run in self.shown]
        known = [shares for shares in runs if shares]
        if not known:
            return None
        first, last = (statistics.fmean(shares[place] for shares in known) for place in (0, -1))
        return first, statistics.fmean(map(statistics.fmean, known)), last

    @cached_property
    def warnings(self) -> Mapping[int, str]:
        """Of each seed whose trits do not move, the sentence that says so; {} for the control, which is meant to."""
        if self.role == "frozen":
            return {}
        try:
            training = read(TrainingSettings, self.settings["training"], "training")
        except ExperimentError:  # settings of another version: its rates are not known
            return {}

        def rate_at(round: int) -> float:
            return training.schedule.rate_at(training.rate, round, self.planned[0])

        found = {run.seed: unmoved(run.rounds, rate_at, run.wanted) for run in self.runs}
        return {seed: sentence for seed, sentence in found.items() if sentence is not None}

    def bits_up(self) -> float | None:
        """Bits per ternary weight, over all uploads; None where floats travel."""
        by_layer = any(record.layer_bits for run in self.runs for record in run.rounds)
        if not (self._about.sends_trits or by_layer):
            return None
        return self.ratio(lambda r: (r.bits_per_weight_up or 0.0) * _uploads(r), _uploads)


def shown_score(record: Round) -> float:
    """The test score after a round as it is shown: an accuracy in percent."""
    return record.measure.scaled(record.score)


def difference(one: Group, other: Group) -> Spread | None:
    """How much higher the last score of one is, seed by seed, over the seeds that both have; None where there is none.

    The same seed gives both the same data and the same first weights, so most of the chance is not in the difference.
    """
    both = [{run.seed: shown_score(run.rounds[group.length - 1]) for run in group.shown} for group in (one, other)]
    return Spread.of([both[0][seed] - both[1][seed] for seed in both[0] if seed in both[1]])


def _uploads(record: Round) -> int:
    """How many of a round are known by their bits."""
    return 0 if record.bits_per_weight_up is None else record.clients - record.skipped - len(record.dropped)


@dataclass(frozen=True)
class Collected:
    """Everything that the folders hold."""

    groups: tuple[Group, ...]
    elapsed: tuple[Elapsed, ...] = ()
    copies: int = 0
    """So many folders hold a run that another holds too; it counts once."""


def collect(paths: Iterable[Path], rows: Mapping[str, Row] | None = None) -> Collected:
    """The runs in these folders and below them; RunError where a folder has none."""
    folders: dict[Path, Path] = {}
    measured: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise RunError(no_such_folder(path))
        runs, times = (sorted(path.rglob(name)) for name in ("config.toml", FILE))
        if not runs and not times:
            raise RunError(f"{path}: holds no run, itself or below; ternfed run and ternfed reproduce make them")
        folders |= {file.resolve(): file.parent for file in runs}
        measured |= {file.resolve(): file for file in times}
    found: dict[str, list[tuple[Table, SeedRun]]] = {}
    for folder in folders.values():
        settings, run = _read(folder)
        found.setdefault(_key(settings), []).append((settings, run))
    groups = _with_data_names([_group(runs, rows or {}) for runs in found.values()])
    kept = sum(len(group.runs) for group in groups)
    elapsed = tuple(read_elapsed(file, (rows or {}).get(file.parent.name)) for file in measured.values())
    return Collected(tuple(sorted(groups, key=_order)), elapsed, len(folders) - kept)


def _key(settings: Table) -> str:
    """What the runs of one group share: every setting that makes a difference, but for the seed."""
    known = about(settings["algorithm"]["name"])
    shared = {**settings, "seed": None}
    if known is not None and not known.trains_ternary:
        shared["model"] = {**settings["model"], "ternary": None}
    return json.dumps(shared, sort_keys=True)


def _read(folder: Path) -> tuple[Table, SeedRun]:
    run = read_run(folder)
    settings = run.settings
    for section, key in (("", "name"), ("", "seed"), *NEEDED):
        kind = NEEDED.get((section, key), int if key == "seed" else str)
        part = settings.get(section, {}) if section else settings
        value = part.get(key) if isinstance(part, dict) else None
        fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
        if not fits or isinstance(value, bool):
            where = f"{section}.{key}" if section else key
            raise RunError(f"{folder}: config.toml is not that of a run, its {where} is {shown(value)}")
    environment = tuple(entry for entry in run.environment if isinstance(entry, dict))
    wanted = settings["federation"]["rounds"]
    rounds = tuple(run.rounds)
    return settings, SeedRun(folder, settings["seed"], wanted, rounds, environment, run.partition, run.data_name)


def _group(found: Sequence[tuple[Table, SeedRun]], rows: Mapping[str, Row]) -> Group:
    """One run per seed: of several, the one that came furthest."""
    best: dict[int, SeedRun] = {}
    for _, run in found:
        if run.seed not in best or len(run.rounds) > len(best[run.seed].rounds):
            best[run.seed] = run
    settings = {key: value for key, value in found[0][0].items() if key not in ("name", "seed")}
    name = found[0][0]["name"]
    return Group(name, settings, tuple(best[seed] for seed in sorted(best)), rows.get(name))


def _with_data_names(groups: Sequence[Group]) -> list[Group]:
    """Data sets have their own names, or the whole setting where functions of two modules have the same name."""
    settings = [str(group.setting("data", "dataset")) for group in groups]
    functions = Counter(setting.rpartition(":")[2] for setting in set(settings))
    names = data_names([DataSetOf(each, _agreed(group)) for each, group in zip(settings, groups, strict=True)])
    whole = [each if ":" in each and functions[each.rpartition(":")[2]] > 1 else None for each in settings]
    return [replace(each, data_name=name or long) for each, name, long in zip(groups, names, whole, strict=True)]


def _agreed(group: Group) -> str | None:
    """The one name that the data set has in all runs that tell it."""
    names = {run.data_name for run in group.runs if run.data_name is not None}
    return names.pop() if len(names) == 1 else None


ORDER = {
    "dataset": ("mnist", "cifar10"),
    "model": ("mlp", "cnn", "resnet18"),
    "partition": ("iid", "classes", "unbalanced", "dirichlet"),
    "algorithm": ("centralized", "fedavg", "cmfl", "stc", "tfedavg"),
}
"""The order of tables and figures, the paper's."""


def place(kind: str, name: str) -> tuple[int, str]:
    """Where a name stands among its kind; what `ORDER` has not comes last, by name."""
    return (ORDER[kind].index(name), "") if name in ORDER[kind] else (len(ORDER[kind]), name)


def _order(group: Group) -> tuple[Any, ...]:
    data, federation = group.settings["data"], group.settings["federation"]
    return (
        place("dataset", data["dataset"]),
        place("model", group.settings["model"]["name"]),
        str(group.setting("model", "activation") or ""),
        place("partition", data["partition"]),
        [float(data.get(key) or 0.0) for key in ("classes_per_client", "balance", "alpha")],
        federation["participation"],
        place("algorithm", group.algorithm),
        group.preset or "",
        federation["rounds"],
        group.name,
        shown(group.settings),
    )

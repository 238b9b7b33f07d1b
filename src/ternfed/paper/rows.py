"""The rows of the paper's tables and the curves of its figures, one TOML file each under `experiments/`.

A file is an experiment like any other with one more table, `[reproduce]`: what it belongs to, what the paper reports,
how many seeds are run and how long one takes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from ternfed.experiment.experiment import Experiment, ExperimentError, read_table
from ternfed.experiment.settings import Table, either, read, shown
from ternfed.named_function import check_code
from ternfed.paper.numbers import ALGORITHMS, Accuracy, accuracy_of, seconds_of

PLACES = (Path(__file__).parents[3] / "experiments", Path(__file__).parents[1] / "experiments")
"""In a checkout, and in an installed package."""

SHOWN = {
    "centralized": "Table I: models and hyperparameters, centralized training",
    "communication": "Table II: communication costs on IID data",
    "iid": "Table III: accuracies on IID data",
    "non-iid": "Table IV: accuracies on non-IID data",
    "elapsed": "Table V: elapsed time of 5 local epochs",
    "convergence": "Figure: convergence over rounds and bits uploaded",
    "distributions": "Figure: data distributions",
    "convergence-nc5": "Figure: convergence with five classes per client",
    "participation": "Figure: participation ratio",
    "balance": "Figure: clients of unequal size",
    "frontier": "Accuracy against bytes",
    "shakespeare": "Shakespeare's roles: the next character",
    "search": "The search for the recipe, judged on validation data",
    "ablation": "The recipe with one choice changed at a time, judged on validation data",
    "tuning": "Learning rates, judged on validation data",
}
"""What the rows belong to: the paper's tables and figures in its order, and what our own recipe was chosen by."""

CHOOSING = frozenset({"search", "ablation", "tuning"})
"""Of these, the ones that settings are chosen by: judged on validation data, never on test data."""

ACCURACIES = frozenset({"centralized", "iid", "non-iid"})
"""Of these, the ones that the paper prints accuracies for."""

Role = Literal["published", "tuned", "frozen"]
"""What a row stands for beside its algorithm: as the paper has it (FedAvg at its rate, T-FedAvg's preset `paper`); at
the best of the rates that were tried on validation data; or with trits that never change, the control."""

RENAMED = {"paper_deviation": "paper_std"}
"""Keys of earlier versions that users' own rows may still have."""


@dataclass(frozen=True)
class Reproduce:
    """The table `[reproduce]` of a row's file."""

    title: str
    shows: tuple[str, ...]
    """Names of `SHOWN` that the row is part of."""
    seeds: int
    """It is run with the seeds 0, 1, …"""
    minutes: float
    """That one seed takes on `machine`."""
    machine: str
    role: Role | None = None
    """None: the algorithm as it is here."""
    device: Literal["cpu", "cuda"] = "cpu"
    kind: Literal["run", "elapsed"] = "run"
    """`elapsed`: seconds of local training are measured instead of a whole run."""
    repetitions: int = 20
    """With `elapsed` alone: so many measurements of each algorithm."""
    paper: float | None = None
    """For a row of the user's own: an accuracy in percent to compare with. The paper's own are in numbers.py."""
    paper_std: float | None = None
    paper_seconds: tuple[float, ...] | None = None
    """The same for `elapsed`: seconds of FedAvg, CMFL and T-FedAvg."""

    def __post_init__(self) -> None:
        for name in self.shows:
            if name not in SHOWN:
                raise ExperimentError(f"reproduce.shows = {name!r}: {either(SHOWN)} is allowed")
        for name in ("seeds", "repetitions"):
            if getattr(self, name) < 1:
                raise ExperimentError(
                    f"reproduce.{name} = {getattr(self, name)}: a whole number of at least 1 is allowed"
                )


@dataclass(frozen=True)
class Row:
    """One row of a table, or one point of a curve."""

    name: str
    """Of its file, and of its folder under `results/`."""
    about: Reproduce
    settings: Table
    """The experiment as the file gives it."""

    @property
    def chooses(self) -> bool:
        """Settings are chosen by it."""
        return not CHOOSING.isdisjoint(self.about.shows)

    @property
    def paper(self) -> Accuracy | None:
        """The accuracy to compare with: that of its file, or the paper's where it is a row of one of its tables."""
        if self.about.paper is not None:
            return Accuracy(self.about.paper, self.about.paper_std)
        if ACCURACIES.isdisjoint(self.about.shows) or self.about.role in ("tuned", "frozen"):
            return None  # the paper has neither control
        return accuracy_of(self.experiment().to_table())

    @property
    def paper_seconds(self) -> Mapping[str, float]:
        """The seconds to compare with, by algorithm; {} where there are none, and for a row that is no `elapsed`."""
        if self.about.paper_seconds is not None:
            return dict(zip(ALGORITHMS, self.about.paper_seconds, strict=False))
        return seconds_of(self.experiment().to_table()) if self.about.kind == "elapsed" else {}

    def experiment(self, seed: int = 0, settings: Sequence[str] = ()) -> Experiment:
        """Its experiment with one of its seeds; `settings` (`key=value`) override what the file says."""
        given = Experiment.from_table({**self.settings, "name": self.name})
        return given.with_settings([f"seed={seed}", *settings])


def find_rows(places: Sequence[Path] = PLACES, allow: Collection[str] = ()) -> dict[str, Row]:
    """Every row by its name, in the order of the names, numbers in them by size; `allow` as in `read_row`."""
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise ExperimentError(f"{places[0]}: there is no such folder, and it should hold a TOML file for each row")
    return {path.stem: read_row(path, allow) for path in sorted(folder.glob("*.toml"), key=_by_name)}


def read_row(path: Path, allow: Collection[str] = ()) -> Row:
    """The row of a file; code that it names must be of a module in `allow`."""
    table: dict[str, Any] = read_table(path)
    if not isinstance(about := table.pop("reproduce", None), dict):
        raise ExperimentError(f"{path}: has no table [reproduce], and a row needs one")
    check_code(table, allow, str(path))
    try:
        for old, new in RENAMED.items():
            if old in about:
                raise ExperimentError(f"reproduce.{old} = {shown(about[old])}: is called reproduce.{new} now")
        return Row(path.stem, read(Reproduce, about, "reproduce"), table)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from error


def choose_rows(rows: dict[str, Row], names: Sequence[str]) -> list[Row]:
    """The rows that are named: by their own name, by one with wildcards, by a table or figure, or by `all`."""
    chosen: dict[str, Row] = {}
    for name in names:
        found = [r for r in rows.values() if name in ("all", *r.about.shows) or fnmatchcase(r.name, name)]
        if not found:
            near = get_close_matches(name, [*rows, *SHOWN], n=1)
            meant = f"did you mean {near[0]}?" if near else "--list shows them"
            raise ExperimentError(f"{name}: no row, table or figure has this name; {meant}")
        chosen |= {row.name: row for row in found}
    return list(chosen.values())


def _by_name(path: Path) -> list[tuple[int, str]]:
    """`balance-20` comes before `balance-100`."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.stem)]

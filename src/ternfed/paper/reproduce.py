"""Rows of the paper's tables, run cell by cell into `RESULTS/NAME/seed-K` (docs/reproduce.md).

A cell is one seed of one row. What is finished is not computed again, what was interrupted is resumed, and a folder
with other settings is refused. A row of kind `elapsed` is one cell, measured into `RESULTS/NAME/elapsed.json`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.experiment.settings import Table
from ternfed.paper import elapsed
from ternfed.paper.numbers import ALGORITHMS
from ternfed.paper.rows import Row, choose_rows
from ternfed.runs.folder import read_run
from ternfed.sweep.trial import MODELS as MODELS
from ternfed.sweep.trial import DataSets as DataSets
from ternfed.sweep.trial import OnRound, Trial, check_same, run_trial

CPU_STEP = {"cnn": 0.6, "resnet18": 1.5}
"""Seconds of a local step at batch 64 on one core of an AMD EPYC (`ternfed bench step`; the CNN timed the same way)."""


@dataclass(frozen=True)
class Cell:
    """One seed of one row, and where it is run to."""

    row: Row
    seed: int
    results: Path
    settings: tuple[str, ...] = ()
    """`key=value`, in place of what the row's file says."""

    @property
    def name(self) -> str:
        return self.row.name if self.row.about.kind == "elapsed" else f"{self.row.name}/seed-{self.seed}"

    @property
    def folder(self) -> Path:
        return self.results / self.name

    def experiment(self) -> Experiment:
        return self.row.experiment(self.seed, self.settings)

    def trial(self, device: str | None = None) -> Trial:
        """It as one experiment among many, on the row's own device where none is given."""
        device = device or self.row.about.device
        return Trial(
            self.name,
            self.experiment().to_table(),
            self.folder,
            device,
            chooses=self.row.chooses,
            one_thread=device == "cpu",
        )

    def standing(self) -> Literal["new", "begun", "finished"]:
        """How far it is; RunError where its folder holds a run with other settings."""
        if self.row.about.kind == "elapsed":
            measured = elapsed.read(self.folder)
            if measured is not None:
                check_same(self.folder, measured["settings"], self.experiment(), "measure it --again")
            return "new" if measured is None else "finished"
        return self.trial().standing()


@dataclass(frozen=True)
class Tally:
    """What a row has come to so far."""

    row: Row
    wanted: int
    """Seeds."""
    accuracies: tuple[float, ...]
    """Of the finished seeds, in percent, after the last round: on test data, or validation data if the row chooses."""
    begun: int
    """Seeds that were interrupted, or are running."""
    other: int
    """Seeds whose folder holds a run with other settings."""
    seconds: Table | None = None
    """Of an `elapsed` row: by algorithm."""

    @property
    def done(self) -> int:
        """Seeds that are finished."""
        return len(self.accuracies) if self.seconds is None else 1

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.accuracies) if self.accuracies else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over the seeds."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None


def cells_of(rows: Sequence[Row], results: Path, seeds: int | None = None, settings: Sequence[str] = ()) -> list[Cell]:
    """The cells of some rows: as many seeds as each row's file says, or `seeds`."""
    return [
        Cell(row, seed, results, tuple(settings))
        for row in rows
        for seed in range(1 if row.about.kind == "elapsed" else seeds or row.about.seeds)
    ]


def choose_cells(
    rows: dict[str, Row], names: Sequence[str], results: Path, seeds: int | None = None, settings: Sequence[str] = ()
) -> list[Cell]:
    """The cells that are named: all seeds of a row, a pattern, a table or a figure; one seed by NAME/seed-K."""
    chosen: dict[str, Cell] = {}
    for name in names:
        named, seed = row_and_seed(name)
        own = choose_rows(rows, [named])
        if seed is None:
            found = cells_of(own, results, seeds, settings)
        else:
            found = [Cell(row, seed, results, tuple(settings)) for row in own if row.about.kind == "run"]
            if not found:
                raise ExperimentError(f"{name}: {named} measures seconds, and has no seeds")
        chosen |= {cell.name: cell for cell in found}
    return list(chosen.values())


def row_and_seed(name: str) -> tuple[str, int | None]:
    """`NAME/seed-2` is seed 2 of a row; without a seed all of them are meant."""
    row, said, seed = name.partition("/seed-")
    if said and not (seed.isascii() and seed.isdigit()):
        raise ExperimentError(f"{name}: a whole number of at least 0 must follow /seed-")
    return row, int(seed) if said else None


def run_cell(
    row: Row,
    seed: int,
    results: Path,
    data: DataSets | None = None,
    device: str | None = None,
    on_round: OnRound | None = None,
    *,
    settings: Sequence[str] = (),
    keep: bool = False,
) -> Table:
    """One seed of a row into `results/NAME/seed-SEED`, and its summary: started, resumed, or only read.

    `data` are the data sets, shared by all cells that get the same value; `device` is the row's own where none is
    given, `settings` (`key=value`) override the row's file, and `keep` leaves the finished model in the folder.
    """
    trial = Cell(row, seed, results, tuple(settings)).trial(device)
    if trial.standing() != "finished":
        check_device(row, trial.device)
    return run_trial(trial, data, on_round, keep=keep)


def measure_cell(
    row: Row,
    results: Path,
    data: DataSets | None = None,
    device: str | None = None,
    *,
    settings: Sequence[str] = (),
    again: bool = False,
) -> Table:
    """The measurement of an `elapsed` row into `results/NAME/elapsed.json`; one that is there is only read."""
    cell, device = Cell(row, 0, results, tuple(settings)), device or row.about.device
    if not again and cell.standing() == "finished":
        known = elapsed.read(cell.folder)
        assert known is not None
        return known
    check_device(row, device)
    experiment = cell.experiment()
    samples = (data or DataSets()).get(experiment)
    measured = elapsed.measure(experiment, samples, device, row.about.repetitions)
    elapsed.write(cell.folder, measured)
    return measured


def check_device(row: Row, device: str) -> None:
    """Refuse a GPU that is not there, and say what can be done instead."""
    kind = device.partition(":")[0]
    if device != "cpu" and kind != "cuda":
        raise ValueError(f"device = {device}: cpu, cuda or cuda:K is allowed")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"{row.name}: runs on a GPU ({row.about.minutes:g} min per seed on {row.about.machine}), and PyTorch "
            f"sees none here; --device cpu runs it without one, in {_on_a_cpu(row)}"
        )


def tally(row: Row, results: Path, seeds: int | None = None, settings: Sequence[str] = ()) -> Tally:
    """What a row has come to so far."""
    cells = cells_of([row], results, seeds, settings)
    accuracies, seconds, begun, other = [], None, 0, 0
    for cell in cells:
        try:
            standing = cell.standing()
        except ValueError:
            other += 1
            continue
        begun += standing == "begun"
        if standing != "finished":
            continue
        if row.about.kind == "elapsed":
            seconds = (elapsed.read(cell.folder) or {})["seconds"]
        else:
            last = read_run(cell.folder).rounds[-1]
            accuracies.append(last.measure.scaled(cell.trial().result(last)))
    return Tally(row, len(cells), tuple(accuracies), begun, other, seconds)


def in_words(seconds: float) -> str:
    """`40 seconds`, `12 minutes`, `38 hours`."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _on_a_cpu(row: Row) -> str:
    """How long a seed of a row for the GPU would take without one."""
    own = row.experiment()
    if own.model.name not in CPU_STEP or own.data.dataset != "cifar10":
        return "a multiple of that time"
    steps = own.training.epochs * 50_000 / own.training.batch * own.federation.participation
    if row.about.kind == "run":
        steps *= own.federation.rounds
    else:
        steps *= (row.about.repetitions + 2) * len(ALGORITHMS) / own.federation.clients
    return f"about {in_words(steps * CPU_STEP[own.model.name])} per seed on one core"

"""Rows of the paper's tables, run cell by cell into `RESULTS/NAME/seed-K` (docs/reproduce.md).

A cell is one seed of one row. What is finished is not computed again, what was interrupted is resumed, and a folder
with other settings is refused. A row of kind `elapsed` is one cell, measured into `RESULTS/NAME/elapsed.json`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

import torch

from ternfed.data.values import DataSet
from ternfed.engines.simulate import record_into
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.experiment.settings import Table, shown
from ternfed.named_function import check_code, code_in
from ternfed.paper import elapsed
from ternfed.paper.numbers import ALGORITHMS
from ternfed.paper.rows import Row
from ternfed.round.federation import open_federation
from ternfed.runs.folder import RunError, read_run, summarise
from ternfed.runs.records import Round, read_rounds

OnRound = Callable[[Round], None]
"""Hears of every round of a cell in order; of one that is resumed, the earlier rounds first."""

MODELS = ("state.safetensors", "last.safetensors", "best.safetensors")
"""Taken out of a finished cell, so that results are small enough to be committed."""

POLL_SECONDS = 0.5

CPU_STEP = {"cnn": 0.6, "resnet18": 1.5}
"""Seconds of a local step at batch 64 on one core of an AMD EPYC (`ternfed bench step`; the CNN timed the same way)."""


class DataSets:
    """The data sets of some cells, each read when it is first asked for and kept as long as this value lives."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` holds them; else TERNFED_DATA or the hub."""
        self.folder = folder
        self._read: dict[tuple[object, ...], DataSet] = {}

    def get(self, experiment: Experiment) -> DataSet:
        """That of an experiment."""
        key = (experiment.data.dataset, experiment.data.length, experiment.task)
        if key not in self._read:
            self._read[key] = experiment.load_data(self.folder)
        return self._read[key]


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

    def result(self, outcome: Round) -> float:
        """The score after a round: on test data, but for rows that choices are made by, on validation data."""
        return (outcome.validation if self.row.chooses else outcome.score) or 0.0

    def standing(self) -> Literal["new", "begun", "finished"]:
        """How far it is; RunError where its folder holds a run with other settings."""
        if self.row.about.kind == "elapsed":
            measured = elapsed.read(self.folder)
            if measured is not None:
                _check_same(self.folder, measured["settings"], self.experiment(), "measure it --again")
            return "new" if measured is None else "finished"
        if not (self.folder / "config.toml").exists():
            return "new"
        run = read_run(self.folder)
        _check_same(self.folder, run.settings, self.experiment())
        return "begun" if run.summary is None else "finished"


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
    cell = Cell(row, seed, results, tuple(settings))
    standing = cell.standing()
    if standing == "finished":
        summary = read_run(cell.folder).summary
        assert summary is not None
        return summary
    device = device or row.about.device
    check_device(row, device)
    # So that the same row gives the same bytes with any number of cores and of jobs.
    with elapsed.one_thread() if row.about.device == "cpu" else nullcontext():
        return _run(cell, standing == "begun", data or DataSets(), device, on_round or (lambda outcome: None), keep)


def _run(cell: Cell, begun: bool, data: DataSets, device: str, on_round: OnRound, keep: bool) -> Table:
    experiment = cell.experiment()
    federation = open_federation(experiment, data.get(experiment), device)
    target, past, coming = record_into(cell.folder, federation, device, resume=begun)
    rounds: list[Round] = []
    with target:
        for outcome in chain(past, coming):
            rounds.append(outcome)
            on_round(outcome)
        summary = {**summarise(rounds, experiment), "run": cell.folder.name}  # the results may move
        target.finish(summary)
        if not keep:
            for name in MODELS:
                (cell.folder / name).unlink(missing_ok=True)
    return summary


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
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device = {device}: cpu or cuda is allowed")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"{row.name}: runs on a GPU ({row.about.minutes:g} min per seed on {row.about.machine}), and PyTorch "
            f"sees none here; --device cpu runs it without one, in {_on_a_cpu(row)}"
        )


def run_side_by_side(
    cells: Sequence[Cell],
    jobs: int,
    data: Path | None = None,
    device: str | None = None,
    on_round: Callable[[Cell, Round], None] | None = None,
    keep: bool = False,
) -> Iterator[tuple[Cell, Table | Exception]]:
    """`run_cell` in so many processes of one thread each; each cell as it ends, with its summary or what stopped it.

    Each process reads the data sets of the folder `data` for itself. Whoever stops listening ends the processes at
    once: a run may be killed at any moment, and is resumed later.
    """
    tell = on_round or (lambda cell, outcome: None)
    before = set(multiprocessing.active_children())
    seen = {cell.name: 0 for cell in cells}
    with ProcessPoolExecutor(jobs, mp_context=_start_method(), initializer=_be_a_job, initargs=(data,)) as pool:
        waiting: dict[Future[Table], Cell] = {}
        try:
            for cell in cells:
                waiting[pool.submit(_run_whole_cell, cell, device, keep)] = cell
            while waiting:
                done, _ = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
                for cell in waiting.values():
                    # The folder is how one hears of another process's rounds.
                    rounds = read_rounds(cell.folder / "rounds.jsonl")[0]
                    for outcome in rounds[seen[cell.name] :]:
                        tell(cell, outcome)
                    seen[cell.name] = max(seen[cell.name], len(rounds))
                for future in done:
                    yield waiting.pop(future), _outcome(future)
        except BaseException:
            for future in waiting:
                future.cancel()
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            raise


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
            accuracies.append(last.measure.scaled(cell.result(last)))
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


def _check_same(folder: Path, own: Table, wanted: Experiment, instead: str = "move it away") -> None:
    check_code(own, [module for _, _, module in code_in(wanted.to_table())], str(folder))
    try:
        differences = Experiment.from_table(own).differences(wanted)
    except ExperimentError as error:  # a setting that was there in an earlier version, for example
        raise RunError(f"{folder}: {error}; {instead} or name another folder by --out") from error
    for key, old, new in differences:
        raise RunError(
            f"{folder}: was made with {key} = {shown(old)}, and the row has {shown(new)}; "
            f"{instead} or name another folder by --out"
        )


def _start_method() -> BaseContext:
    """Not a plain fork, which PyTorch's threads do not survive: a fork of a server that has only imported."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ternfed.paper.reproduce"])
    return context


_job_data: DataSets | None = None
"""Of a process that is a job: it ends with its pool, and the data sets with it."""


def _be_a_job(data: Path | None) -> None:
    """One thread, because the cores belong to the other jobs; the terminal's Ctrl-C is the first process's to hear."""
    global _job_data
    _job_data = DataSets(data)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if (first := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(first,), daemon=True).start()


def _end_with(first: BaseProcess) -> None:
    """A job whose first process was killed must not go on unseen."""
    first.join()
    os._exit(1)


def _run_whole_cell(cell: Cell, device: str | None, keep: bool) -> Table:
    return run_cell(cell.row, cell.seed, cell.results, _job_data, device, settings=cell.settings, keep=keep)


def _outcome(future: Future[Table]) -> Table | Exception:
    try:
        return future.result()
    except BrokenProcessPool:
        return RuntimeError("a process ended before its run did; the same command resumes it")
    except Exception as error:
        return error

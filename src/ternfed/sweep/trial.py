"""One experiment and the folder that it is run to: started, resumed, or only read.

What is finished is not computed again, what was interrupted is resumed, and a folder with other settings is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch

from ternfed.data.values import DataSet
from ternfed.engines.simulate import record_into
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.experiment.settings import Table, shown
from ternfed.named_function import check_code, code_in
from ternfed.round.federation import open_federation
from ternfed.runs.folder import RunError, read_run, summarise
from ternfed.runs.records import Round

OnRound = Callable[[Round], None]
"""Hears of every round of a trial in order; of one that is resumed, the earlier rounds first."""

MODELS = ("state.safetensors", "last.safetensors", "best.safetensors")
"""Taken out of a finished trial, so that many are small enough to be kept."""


class DataSets:
    """The data sets of some trials, each read when it is first asked for and kept as long as this value lives."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` holds them; else TERNFED_DATA or the hub."""
        self.folder = folder
        self._read: dict[tuple[object, ...], DataSet] = {}

    def get(self, experiment: Experiment) -> DataSet:
        """That of an experiment."""
        key = experiment.data_key
        if key not in self._read:
            self._read[key] = experiment.load_data(self.folder)
        return self._read[key]


@dataclass(frozen=True)
class Trial:
    """One experiment, and where it is run to."""

    name: str
    """As progress shows it."""
    settings: Mapping[str, Any]
    """Every setting of the experiment, as a plain table: another process may not have the user's modules yet."""
    folder: Path
    device: str = "cpu"
    chooses: bool = False
    """Settings are chosen by it: it is judged on validation data, never on test data."""
    one_thread: bool = True
    """So that it gives the same bytes with any number of cores and of jobs."""

    def experiment(self) -> Experiment:
        return Experiment.from_table(self.settings)

    def result(self, outcome: Round) -> float:
        """The score after a round: on test data, or on validation data where settings are chosen by it."""
        return (outcome.validation if self.chooses else outcome.score) or 0.0

    def standing(self) -> Literal["new", "begun", "finished"]:
        """How far it is; RunError where its folder holds a run with other settings."""
        if not (self.folder / "config.toml").exists():
            return "new"
        run = read_run(self.folder)
        check_same(self.folder, run.settings, self.experiment())
        return "begun" if run.summary is None else "finished"


def run_trial(
    trial: Trial, data: DataSets | None = None, on_round: OnRound | None = None, *, keep: bool = False
) -> Table:
    """A trial run to its end, and its summary. `keep` leaves the finished model in the folder."""
    standing, tell = trial.standing(), on_round or (lambda outcome: None)
    if standing == "finished":
        summary = read_run(trial.folder).summary
        assert summary is not None
        return summary
    with one_thread() if trial.one_thread else nullcontext():
        experiment = trial.experiment()
        federation = open_federation(experiment, (data or DataSets()).get(experiment), trial.device)
        target, past, coming = record_into(trial.folder, federation, trial.device, resume=standing == "begun")
        rounds: list[Round] = []
        with target:
            for outcome in chain(past, coming):
                rounds.append(outcome)
                tell(outcome)
            summary = {**summarise(rounds, federation.experiment), "run": trial.folder.name}  # the folder may move
            target.finish(summary)
            if not keep:
                for name in MODELS:
                    (trial.folder / name).unlink(missing_ok=True)
    return summary


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes in one thread meanwhile: a second one makes small kernels slower, and rounds differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_same(folder: Path, own: Table, wanted: Experiment, instead: str = "move it away") -> None:
    """RunError where a folder holds a run of other settings."""
    check_code(own, [module for _, _, module in code_in(wanted.to_table())], str(folder))
    try:
        differences = Experiment.from_table(own).differences(wanted)
    except ExperimentError as error:  # a setting that was there in an earlier version, for example
        raise RunError(f"{folder}: {error}; {instead} or name another folder by --out") from error
    # Where the data say how many clients there are, an experiment need not.
    counted = () if wanted.federation.clients else ("federation.clients", "federation.participation")
    for key, old, new in differences:
        if key in counted:
            continue
        raise RunError(
            f"{folder}: was made with {key} = {shown(old)}, and {shown(new)} is wanted; "
            f"{instead} or name another folder by --out"
        )

"""A run in a few values: where it stands, how good it is, what it sent. For lists and comparisons of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ternfed.experiment.settings import Table, shown
from ternfed.runs.folder import RunError, being_written, read_run
from ternfed.runs.records import Round, best_round
from ternfed.runs.several import DataSetOf, data_names, differing, names_of, no_such_folder, run_folders, setting
from ternfed.task import ACCURACY, Measure

State = Literal["finished", "running", "stopped"]


@dataclass(frozen=True)
class Overview:
    """One run."""

    folder: Path
    name: str
    """Short, and another than those of the runs beside it."""
    data: str
    """What its data set calls itself, or else the setting that names it."""
    settings: Table
    state: State
    rounds: tuple[Round, ...]
    wanted: int
    """Rounds that it is to have."""
    warnings: tuple[str, ...]

    @property
    def measure(self) -> Measure:
        return self.rounds[-1].measure if self.rounds else ACCURACY.measure

    @property
    def last(self) -> float | None:
        """The test score after the last round."""
        return _finite(self.rounds[-1].score) if self.rounds else None

    @property
    def best(self) -> Round | None:
        """The round that was best by validation; None where nothing was held out to judge by."""
        if not self.rounds or all(record.validation is None for record in self.rounds):
            return None
        return best_round(self.rounds)

    @property
    def loss(self) -> float | None:
        return _finite(self.rounds[-1].loss) if self.rounds else None

    @property
    def bytes_up(self) -> int:
        return sum(record.bytes_up for record in self.rounds)

    @property
    def bytes_down(self) -> int:
        return sum(record.bytes_down for record in self.rounds)

    @property
    def seconds(self) -> float:
        return sum(sum(record.seconds.values()) for record in self.rounds)

    @property
    def standing(self) -> str:
        """`finished, 30 rounds` or `stopped at 12 of 30`."""
        if self.state == "finished":
            return f"finished, {len(self.rounds)} round{'s' * (len(self.rounds) != 1)}"
        return f"{self.state} {'at ' if self.state == 'stopped' else ''}{len(self.rounds)} of {self.wanted}"

    def setting(self, key: str) -> str:
        """`section.key` as it is written in TOML; a dash where the run has no such setting."""
        return _shown(self.settings, key)


def overviews(paths: Sequence[Path]) -> list[Overview]:
    """The runs in these folders and below them; RunError where a folder has none. One that is damaged is left out."""
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise RunError(no_such_folder(path))
        found = {folder.resolve(): folder for folder in run_folders(path)}
        if not found:
            raise RunError(f"{path}: holds no run, itself or below; ternfed run and ternfed server make them")
        folders |= found
    chosen = list(folders.values())
    read = [_read(folder, name) for folder, name in zip(chosen, names_of(chosen), strict=True)]
    whole = [each for each in read if each is not None]
    names = data_names([DataSetOf(overview.data, own_name) for overview, own_name in whole])
    return [replace(each, data=name or each.data) for (each, _), name in zip(whole, names, strict=True)]


def apart(runs: Sequence[Overview]) -> list[str]:
    """`section.key` of the settings in which these runs differ."""
    return differing([run.settings for run in runs])


def _read(folder: Path, name: str) -> tuple[Overview, str | None] | None:
    """The run, its data set called by the setting, and what that calls itself."""
    try:
        run = read_run(folder)
    except RunError:
        return None
    federation: Any = run.settings.get("federation")
    wanted = federation.get("rounds") if isinstance(federation, dict) else None
    if not isinstance(wanted, int):
        return None
    done = isinstance(run.summary, dict) or len(run.rounds) >= wanted
    state: State = "finished" if done else "running" if being_written(folder) else "stopped"
    known = run.summary.get("warnings") if isinstance(run.summary, dict) else None
    warnings = tuple(map(str, known)) if isinstance(known, list) else ()
    data = _shown(run.settings, "data.dataset")
    return Overview(folder, name, data, run.settings, state, tuple(run.rounds), wanted, warnings), run.data_name


def _shown(settings: Table, key: str) -> str:
    value = setting(settings, key)
    return "–" if value is None else value if isinstance(value, str) else shown(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

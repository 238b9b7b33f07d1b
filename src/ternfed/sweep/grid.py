"""A sweep: an experiment's file with one more table, `[sweep]`, as a list of trials.

    [sweep]
    seeds = 3
    "training.rate" = [0.01, 0.03, 0.1]
    "algorithm.name" = ["fedavg", "tfedavg"]

Every combination of the values is a point of the grid, and each point is run with the same seeds. Points are judged on
data held out on the server, a tenth of the training samples unless the file says how many; never on test data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from ternfed.experiment.experiment import Experiment, ExperimentError, override, read_table
from ternfed.experiment.settings import Table, convert, flat, shown, unknown
from ternfed.named_function import check_code, code_in
from ternfed.sweep.trial import Trial

HOLD_OUT = 0.1
"""The share of the training samples that points are judged on, where the file says nothing."""

MOST = 10_000
"""Trials of one sweep: more are a slip of the hand."""

NOT_SWEPT = {
    "seed": "sweep.seeds says how many seeds each point has",
    "name": "each point has a name of its own",
    "data.hold_out": "all points are judged on the same data; it stands in [data]",
}
"""Settings that are no part of a grid, and why."""


@dataclass(frozen=True)
class Point:
    """One combination of the values."""

    name: str
    """Of its folder, and of its experiment."""
    values: Mapping[str, Any]
    """By setting, what is tried."""
    trials: tuple[Trial, ...]
    """One for each seed."""


@dataclass(frozen=True)
class Sweep:
    """A grid, ready to be run."""

    keys: tuple[str, ...]
    """The settings that are tried."""
    points: tuple[Point, ...]
    hold_out: float
    """What an experiment of this kind holds out where nothing is to be chosen: the final run."""

    @property
    def trials(self) -> list[Trial]:
        """All of them: the first seed of every point, then the second, so that all points are soon known a little."""
        by_seed = zip(*(point.trials for point in self.points), strict=True)
        return [trial for of_one_seed in by_seed for trial in of_one_seed]


def read_sweep(
    path: Path,
    out: Path,
    settings: Sequence[str] = (),
    *,
    seeds: int | None = None,
    device: str = "cpu",
    allow: Collection[str] = (),
) -> Sweep:
    """The sweep of a file, its trials under `out`; ExperimentError with one sentence where it is none.

    `settings` (`key=value`) override what the file says of the experiment, `seeds` what it says of these.
    """
    table = {key: value for key, value in read_table(path).items() if key != "reproduce"}
    about = table.pop("sweep", None)
    if not isinstance(about, dict):
        raise ExperimentError(f"{path}: has no table [sweep], and a sweep needs one: settings, each with its values")
    allowed = [*allow, *(module for _, _, module in code_in(override({}, settings)))]
    try:
        base = override(table, settings)
        check_code(base, allowed, str(path))
        grid, count = _grid(about)
        combinations = _combinations(grid, seeds or count)
        final = Experiment.from_table(_without_hold_out(base)).data.hold_out
        judged, points = _judged(base), []
        for values, name in zip(combinations, _names(combinations), strict=True):
            of_point = override(judged, as_settings(values))
            check_code(of_point, allowed, str(path))
            first = Experiment.from_table({**of_point, "name": name})
            points.append(Point(name, values, _trials(first, seeds or count, out, device)))
        return Sweep(tuple(grid), tuple(points), final)
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}") from error


def _grid(about: Table) -> tuple[dict[str, list[Any]], int]:
    """(values by setting, seeds) of a table `[sweep]`; `training.rate` may be a key with a dot or a table in it."""
    grid: dict[str, list[Any]] = {}
    seeds = 1
    for key, value in flat(about):
        if key == "seeds":
            seeds = convert(value, int, "sweep.seeds")
            if seeds < 1:
                raise ExperimentError(f"sweep.seeds = {seeds}: a whole number of at least 1 is allowed")
            continue
        if key in NOT_SWEPT:
            raise ExperimentError(f"sweep.{key} = {shown(value)}: {NOT_SWEPT[key]}")
        if "." not in key:
            raise unknown(f"sweep.{key}", value, ["sweep.seeds", 'sweep."training.rate"'])
        if not isinstance(value, list) or not value:
            raise ExperimentError(f"sweep.{key} = {shown(value)}: a list of values to try is needed")
        if len({shown(item) for item in value}) < len(value):
            raise ExperimentError(f"sweep.{key} = {shown(value)}: has a value twice")
        grid[key] = value
    if not grid:
        raise ExperimentError('sweep: has no setting to try; "training.rate" = [0.01, 0.1] for example')
    return grid, seeds


def _judged(base: Table) -> Table:
    """The experiment with data to judge on."""
    data = base.get("data", {})
    share = data.get("hold_out", HOLD_OUT) if isinstance(data, dict) else HOLD_OUT
    if share == 0:
        raise ExperimentError("data.hold_out = 0: a sweep is judged on held-out data, never on test data")
    return override(base, [f"data.hold_out={share}"])


def _without_hold_out(base: Table) -> Table:
    data = base.get("data", {})
    return {**base, "data": {key: value for key, value in data.items() if key != "hold_out"}}


def _combinations(grid: Mapping[str, list[Any]], seeds: int) -> list[dict[str, Any]]:
    count = prod(len(values) for values in grid.values())
    if count * seeds > MOST:
        raise ExperimentError(f"sweep: {count} points with {seeds} seeds each are more than {MOST} trials")
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _trials(first: Experiment, seeds: int, out: Path, device: str) -> tuple[Trial, ...]:
    """One experiment with so many seeds."""
    name, each = first.name, (first.with_settings([f"seed={first.seed + offset}"]) for offset in range(seeds))
    return tuple(
        Trial(f"{name}/seed-{one.seed}", one.to_table(), out / name / f"seed-{one.seed}", device, chooses=True)
        for one in each
    )


def _names(combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each point that tells its values, and is a folder's."""
    short = {key: key.partition(".")[0] if key.endswith(".name") else key.rpartition(".")[2] for key in combinations[0]}
    clear = len(set(short.values())) == len(short)
    names = [
        "_".join(f"{short[key] if clear else key}-{_word(value)}" for key, value in values.items())
        for values in combinations
    ]
    if len(set(names)) < len(names) or max(map(len, names)) > 100:
        return [f"point-{number:0{len(str(len(names)))}d}" for number in range(1, len(names) + 1)]
    return names


def _word(value: Any) -> str:
    text = "-".join(map(_word, value)) if isinstance(value, list) else str(value).lower()
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text).replace("+", "").strip("-") or "none"


def as_settings(values: Mapping[str, Any]) -> list[str]:
    """Values as `--set` takes them: `key=value`, a value in TOML but for bare words."""
    return [
        f"{key}={value if isinstance(value, str) and _is_bare(value) else json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
    ]


def _is_bare(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_:./-]*", text) is not None and text not in ("true", "false", "inf", "nan")

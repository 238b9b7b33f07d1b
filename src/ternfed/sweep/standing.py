"""What a sweep has come to so far, from its folders alone: each point's score on validation data, and the best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternfed.experiment.settings import Table
from ternfed.files import json_page, write_atomically
from ternfed.runs.folder import read_run
from ternfed.runs.records import Round, judged_rounds
from ternfed.sweep.grid import Point, Sweep
from ternfed.sweep.trial import Trial
from ternfed.task import ACCURACY, Measure

FILE = "sweep.json"


@dataclass(frozen=True)
class Standing:
    """What a point has come to."""

    point: Point
    scores: tuple[float, ...]
    """Of its finished seeds, on validation data: the mean of the last rounds."""
    begun: int
    """Seeds that are running, or were interrupted."""
    other: int
    """Seeds whose folder holds a run with other settings."""
    bytes_up: float | None
    """Of a finished seed, the mean."""
    measure: Measure

    @property
    def done(self) -> int:
        return len(self.scores)

    @property
    def whole(self) -> bool:
        """Whether all of its seeds are finished."""
        return self.done == len(self.point.trials)

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over the seeds."""
        return statistics.stdev(self.scores) if self.done > 1 else None


def standing_of(sweep: Sweep) -> list[Standing]:
    """All points, in the order of the grid."""
    return [_of(point) for point in sweep.points]


def best(standings: Sequence[Standing]) -> Standing | None:
    """The point with the best mean on validation data, all of its seeds finished; the first of several equal ones."""
    judged = [each for each in standings if each.whole and each.mean is not None and math.isfinite(each.mean)]
    return max(judged, key=lambda each: each.measure.goodness(each.mean or 0.0), default=None)


def write(out: Path, sweep: Sweep, standings: Sequence[Standing], failed: Mapping[str, str]) -> None:
    """`sweep.json` beside the trials: the same rows, for other programs."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / FILE, json_page(as_table(sweep, standings, failed)), lasting=False)


def as_table(sweep: Sweep, standings: Sequence[Standing], failed: Mapping[str, str]) -> Table:
    """All of it as plain values."""
    first = best(standings)
    return {
        "settings": list(sweep.keys),
        "points": [_plain(each) for each in standings],
        "best": None if first is None else first.point.name,
        "failed": dict(failed),
    }


def _plain(standing: Standing) -> Table:
    finite = [score if math.isfinite(score) else None for score in standing.scores]
    return {
        "name": standing.point.name,
        "values": dict(standing.point.values),
        "seeds_wanted": len(standing.point.trials),
        "seeds_done": standing.done,
        "seeds_begun": standing.begun,
        "seeds_with_other_settings": standing.other,
        "metric": standing.measure.name,
        "validation": _finite(standing.mean),
        "validation_std": _finite(standing.std),
        "validations": finite,
        "bytes_up": standing.bytes_up,
    }


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _of(point: Point) -> Standing:
    scores, sizes, begun, other = [], [], 0, 0
    measure: Measure = ACCURACY.measure
    for trial in point.trials:
        rounds = _rounds(trial)
        if rounds is None:
            other += 1
        elif isinstance(rounds, list):
            scores.append(judged(rounds))
            sizes.append(sum(record.bytes_up for record in rounds))
            measure = rounds[-1].measure
        else:
            begun += rounds
    return Standing(point, tuple(scores), begun, other, statistics.fmean(sizes) if sizes else None, measure)


def _rounds(trial: Trial) -> list[Round] | int | None:
    """The rounds of a finished trial; 1 for one that has begun, 0 for a new one, None for one of other settings."""
    try:
        standing = trial.standing()
    except ValueError:
        return None
    return read_run(trial.folder).rounds if standing == "finished" else int(standing == "begun")


def judged(rounds: Sequence[Round]) -> float:
    """The score on validation data that a run is judged by: the mean of its last rounds, for one depends on chance."""
    last: list[Any] = [record.validation for record in rounds[-judged_rounds(len(rounds)) :]]
    return math.nan if None in last else statistics.fmean(last)

"""Accuracy against bytes: which runs are compared, who is on the front, what a budget buys (docs/frontier.md).

Only rows that show one of `SHOWING` are points. They are compared where `cell_of` agrees: the same data, network,
partition, clients, participation, rounds and local epochs. A run whose settings are not its row's is left out. Of two
points, those seeds are compared that both have (`lead`): a seed decides who holds which data.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ternfed.experiment.experiment import Experiment
from ternfed.experiment.settings import ExperimentError
from ternfed.named_function import NotAllowed, check_code, code_in
from ternfed.paper.belonging import belonging, usual
from ternfed.paper.controls import cell_of, controls_of, place_of
from ternfed.paper.costs import sends_float32
from ternfed.paper.groups import Group, Spread, difference, shown_score

SHOWING = ("frontier", "shakespeare")
"""Of what rows show, what makes them points."""
NEAR = 0.3
"""Points of accuracy that count as equal."""
BELOW = (5, 2, 0)
"""The levels to be reached, in points below the highest one."""
STEPS = (1.0, 3.0)
"""Budgets are these times a power of ten."""


@dataclass(frozen=True)
class Point:
    """A group as a point: what it reached, and what that cost."""

    group: Group
    score: Spread
    """After the last round, as it is shown."""
    up: float
    """Bytes of all uploads of the run, the mean over the seeds."""
    down: float

    @property
    def total(self) -> float:
        return self.up + self.down

    @property
    def goodness(self) -> float:
        """The score, turned so that higher is better."""
        return self.group.measure.goodness(self.score.mean)

    @property
    def path(self) -> tuple[tuple[float, float], ...]:
        """Of each round: (all bytes up to its end, score), means over the seeds."""
        rounds = list(zip(*(run.rounds[: self.group.length] for run in self.group.shown), strict=True))
        sent = accumulate(statistics.fmean(r.bytes_up + r.bytes_down for r in records) for records in rounds)
        return tuple(
            (total, statistics.fmean(map(shown_score, records))) for total, records in zip(sent, rounds, strict=True)
        )


@dataclass(frozen=True)
class Contest:
    """Points that differ only in how they train and send, from the fewest bytes to the most."""

    points: tuple[Point, ...]
    searched: tuple[Group, ...] = ()
    """The runs on the same data and network that learning rates were chosen by."""
    frozen: tuple[Group, ...] = ()
    """Controls with trits that never change; nobody would use them, so they are no points."""

    def control_of(self, point: Point) -> Group | None:
        """The same way of training with trits that never change."""
        return controls_of(point.group, self.frozen).frozen

    @property
    def front(self) -> tuple[Point, ...]:
        """Those that no other is better than, from the fewest bytes to the most."""
        places = [(point.total, point.goodness) for point in self.points]
        kept = on_front(places, lambda one, other: lead(self.points[one], self.points[other]))
        return tuple(point for point, keeps in zip(self.points, kept, strict=True) if keeps)

    @property
    def floats(self) -> Point | None:
        """FedAvg in float32, what bytes are compared with: of several, the one at its best rate."""
        plain = [p for p in self.points if p.group.algorithm == "fedavg" and sends_float32(p.group)]
        return max(plain, key=lambda point: (point.group.role == "tuned", point.score.count), default=None)

    @property
    def levels(self) -> tuple[float, ...]:
        """Accuracies to be reached: the highest is a point or two below FedAvg's, or below the best point's."""
        measure = self.points[0].group.measure
        top = (self.floats or max(self.points, key=lambda point: point.goodness)).score.mean
        if not measure.percent or not measure.higher_is_better or not math.isfinite(top):
            return ()
        return tuple(float(level) for below in BELOW if (level := math.floor(top - 1) - below) > 0)

    @property
    def budgets(self) -> tuple[float, ...]:
        """Three bytes of a 1-3-10 scale; the middle one is nearest to the median of what the points needed."""
        median = statistics.median_low([point.total for point in self.points])
        if median <= 0:
            return ()
        scale = [step * 10.0**power for power in range(16) for step in STEPS]
        middle = min(range(1, len(scale) - 1), key=lambda place: abs(math.log(scale[place] / median)))
        return tuple(scale[middle - 1 : middle + 2])


def worthwhile(contest: Contest) -> tuple[Point, ...]:
    """Of the front, the points that are more than `NEAR` better than what fewer bytes buy; accuracies only."""
    chosen: list[Point] = []
    for point in contest.front:
        if point.group.measure.percent and (not chosen or lead(point, chosen[-1]) > NEAR):
            chosen.append(point)
    return tuple(chosen)


@dataclass(frozen=True)
class Match:
    """A point of one algorithm beside the cheapest of the others that is as accurate, or more so."""

    own: Point
    rival: Point | None

    @property
    def times(self) -> float | None:
        """How many times fewer bytes than the rival; below 1, it needs more."""
        return None if self.rival is None else self.rival.total / self.own.total


def contests(groups: Sequence[Group]) -> list[Contest]:
    """Every comparison of two algorithms at least, in the order of the groups."""
    cells: dict[str, list[Point]] = {}
    for group in _shown(groups):
        if _is_its_row(group) and (point := point_of(group)) is not None:
            cells.setdefault(cell_of(group), []).append(point)
    searched = belonging(groups, "tuning")
    frozen = [g for g in groups if g.role == "frozen" and not (g.row is not None and g.row.chooses)]
    found = []
    for cell, points in cells.items():
        if len({point.group.algorithm for point in points if math.isfinite(point.goodness)}) > 1:
            own = tuple(group for group in searched if place_of(group) == place_of(points[0].group))
            controls = tuple(group for group in frozen if cell_of(group) == cell)
            found.append(Contest(tuple(sorted(points, key=lambda point: point.total)), own, controls))
    return found


def left_out(groups: Sequence[Group]) -> list[str]:
    """Names of the rows whose runs were made with other settings than the rows have now."""
    return [group.name for group in _shown(groups) if not _is_its_row(group)]


def point_of(group: Group) -> Point | None:
    """A group as a point; None where nothing was sent."""
    score, up, down = group.accuracy(), group.total(lambda r: r.bytes_up), group.total(lambda r: r.bytes_down)
    return None if score is None or up + down <= 0 else Point(group, score, up, down)


def lead(one: Point, other: Point) -> float:
    """How much better one is: over the seeds that both have, or of their means where they have none in common."""
    paired = difference(one.group, other.group)
    if paired is None or not math.isfinite(paired.mean):
        return one.goodness - other.goodness
    return one.group.measure.goodness(paired.mean)


def on_front(places: Sequence[tuple[float, float]], ahead: Callable[[int, int], float] | None = None) -> list[bool]:
    """Of each (bytes, goodness): whether none other has at most its bytes and is at least as good, and better in one.

    What is not finite is on no front. `ahead` says how much better one place is than another, if not by their goodness.
    """
    finite = [place for place, own in enumerate(places) if all(map(math.isfinite, own))]

    def beats(one: int, other: int) -> bool:
        better = places[one][1] - places[other][1] if ahead is None else ahead(one, other)
        spared = places[other][0] - places[one][0]
        return spared >= 0 and better >= 0 and (spared, better) != (0, 0)

    return [own in finite and not any(beats(other, own) for other in finite) for own in range(len(places))]


def bytes_to_reach(point: Point, level: float) -> float | None:
    """All bytes up to the end of the first round whose mean score over the seeds is at least the level."""
    return next((sent for sent, score in point.path if score >= level), None)


def score_within(point: Point, budget: float) -> float | None:
    """The score after the last round that all bytes so far are within the budget; None where the first is not."""
    return next((score for sent, score in reversed(point.path) if sent <= budget), None)


def matches(contest: Contest, algorithm: str = "tfedavg") -> list[Match]:
    """Each point of an algorithm beside the cheapest rival that is at most `NEAR` less accurate; accuracies only."""
    told = [point for point in contest.points if point.group.measure.percent and math.isfinite(point.goodness)]
    own = [point for point in told if point.group.algorithm == algorithm]
    others = [point for point in told if point.group.algorithm != algorithm]

    def rival(point: Point) -> Point | None:
        return next((other for other in others if lead(other, point) >= -NEAR), None)

    return [Match(point, rival(point)) for point in own]


def cheapest_within(contest: Contest, loss: float) -> Point | None:
    """The point with the fewest bytes that is at most so many points less accurate than FedAvg in float32."""
    floats = contest.floats
    told = (point for point in contest.points if point.group.measure.percent and math.isfinite(point.goodness))
    return None if floats is None else next((point for point in told if lead(point, floats) >= -loss), None)


def protocol_of(group: Group) -> str | None:
    """Whose way of setting up an experiment it is; None: the user's own."""
    data, clients = group.settings["data"], group.setting("federation", "clients")
    if data["dataset"] == "shakespeare":
        return "Shakespeare's roles"
    if data["partition"] == "dirichlet" and clients == 100 and group.setting("federation", "participation") == 0.1:
        return "the field's"
    return "the paper's" if data["partition"] in ("iid", "classes") and usual(group) else None


def _shown(groups: Sequence[Group]) -> Iterator[Group]:
    """The finished runs that are meant to be points; a control is none."""
    named = (group for group in groups if group.shows(*SHOWING) and group.role != "frozen")
    return (group for group in named if group.finished and not group.central)


def _is_its_row(group: Group) -> bool:
    """Whether its settings are those that its row has now."""
    assert group.row is not None
    try:
        wanted = group.row.experiment()
        check_code(group.settings, [module for _, _, module in code_in(wanted.to_table())], group.name)
        own = Experiment.from_table({**group.settings, "name": group.name, "seed": 0})
        return not any(own.differences(wanted))
    except (ExperimentError, NotAllowed):  # of another version
        return False

"""What is aimed at, and whether it was reached: T-FedAvg against FedAvg at its best rate and against frozen trits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from ternfed.paper.belonging import belonging
from ternfed.paper.controls import Controls, controls_of
from ternfed.paper.costs import times_smaller, which_ternary
from ternfed.paper.groups import Group, Spread, difference
from ternfed.paper.numbers import CNN, MLP, RESNET18, Case

ROUNDING = 1e-9
"""Sums of accuracies are this exact: a target that is met to the digit is met."""


class Measure(Enum):
    """What an aim is about, and in which unit `needed` and `reached` are."""

    OVER_TUNED = "points of accuracy above FedAvg at its best rate"
    OVER_FEDAVG = "points of accuracy above FedAvg"
    OVER_FROZEN = "points of accuracy above the same with trits that never change"
    UPLOADS = "how many times fewer bytes up than float32"
    DOWNLOADS = "how many times fewer bytes down than float32"

    @property
    def way(self) -> Literal["up", "down"] | None:
        """The direction of an aim for bytes."""
        return WAYS.get(self)


WAYS: Mapping[Measure, Literal["up", "down"]] = {Measure.UPLOADS: "up", Measure.DOWNLOADS: "down"}


@dataclass(frozen=True)
class Target:
    """What is aimed at for one network and some partitions: at least these points and these fractions of the bytes."""

    case: Case
    splits: tuple[int | None, ...]
    """N_c of each partition; None: IID."""
    needed: tuple[tuple[Measure, float], ...]
    seeds: int
    """The mean of so many is meant."""
    activation: str | None = None
    """Of the MLP; None for the other networks."""
    ternary: Literal["inner", "first"] = "inner"
    """`first`: the first layer too."""


def _sizes(up: float, down: float) -> tuple[tuple[Measure, float], ...]:
    return (Measure.UPLOADS, up), (Measure.DOWNLOADS, down)


TARGETS = (
    Target(MLP, (None, 5, 2), ((Measure.OVER_TUNED, -0.3), (Measure.OVER_FROZEN, 0.3), *_sizes(20, 12)), 5, "relu"),
    Target(MLP, (None,), ((Measure.OVER_TUNED, -0.7), *_sizes(55, 30)), 5, "relu", "first"),
    Target(MLP, (5, 2), ((Measure.OVER_TUNED, -1.5), *_sizes(55, 30)), 5, "relu", "first"),
    Target(RESNET18, (None,), ((Measure.OVER_FEDAVG, -0.3), *_sizes(55, 40)), 3),
    Target(RESNET18, (5, 2), ((Measure.OVER_FEDAVG, -0.3), *_sizes(50, 40)), 3),
    Target(CNN, (None,), ((Measure.OVER_FEDAVG, -0.3), *_sizes(28, 25)), 3),
)


@dataclass(frozen=True)
class Aim:
    """One thing aimed at for one partition, and the runs that it is judged by."""

    target: Target
    classes: int | None
    """N_c; None: IID."""
    measure: Measure
    needed: float
    tfedavg: Group | None
    other: Group | None
    """Who it is compared with."""

    @property
    def points(self) -> Spread | None:
        """Of an aim for accuracy: the difference, seed by seed; None where it was not run."""
        if self.tfedavg is None or self.other is None or self.measure.way:
            return None
        return difference(self.tfedavg, self.other)

    @property
    def reached(self) -> float | None:
        """What came out; None where it was not run."""
        if way := self.measure.way:
            return None if self.tfedavg is None or not self.tfedavg.length else self.tfedavg.compression(way)
        points = self.points
        return None if points is None else points.mean

    @property
    def of_fedavg(self) -> float | None:
        """Of an aim for bytes: how many times fewer than FedAvg really sent, whose floats are compressed too."""
        if not (way := self.measure.way) or self.reached is None or self.tfedavg is None or self.other is None:
            return None
        return times_smaller(self.tfedavg, self.other, way)

    @property
    def seeds(self) -> int:
        """So many it was judged by."""
        if self.tfedavg is None:
            return 0
        points = self.points
        return len(self.tfedavg.shown) if points is None else points.count

    @property
    def holds(self) -> bool:
        """Whether it was reached, by the seeds that there are."""
        return self.reached is not None and self.reached >= self.needed - ROUNDING


def aims(groups: Sequence[Group]) -> list[Aim]:
    """Every aim, whether there are runs to judge it by or not."""
    return [aim for target in TARGETS for classes in target.splits for aim in _aims(target, classes, groups)]


def _aims(target: Target, classes: int | None, groups: Sequence[Group]) -> Iterator[Aim]:
    inside = belonging(groups, "non-iid" if classes else "iid")
    ternary = _tfedavg(target, classes, inside)
    partners = Controls(None, None, None) if ternary is None else controls_of(ternary, inside)
    others = {
        Measure.OVER_TUNED: partners.tuned,
        Measure.OVER_FEDAVG: partners.best,
        Measure.OVER_FROZEN: partners.frozen,
        Measure.UPLOADS: partners.floats,
        Measure.DOWNLOADS: partners.floats,
    }
    for measure, needed in target.needed:
        yield Aim(target, classes, measure, needed, ternary, others[measure])


def _tfedavg(target: Target, classes: int | None, groups: Sequence[Group]) -> Group | None:
    """T-FedAvg's finished runs that a target is about: with its own defaults if there are, never chosen by accuracy."""
    inside = [
        group
        for group in groups
        if group.algorithm == "tfedavg"
        and group.role in (None, "tuned")
        and group.finished
        and (group.setting("data", "dataset"), group.setting("model", "name")) == target.case
        and group.setting("data", "classes_per_client") == classes
        and (target.activation is None or (group.setting("model", "activation") or "relu") == target.activation)
        and which_ternary(group.settings) == target.ternary
    ]
    inside = [group for group in inside if group.preset is None] or inside

    def rank(group: Group) -> tuple[int, int]:
        """Those that have someone to be compared with, then those with the most seeds."""
        found = controls_of(group, groups)
        return sum(other is not None for other in found), len(group.shown)

    return max(inside, key=rank, default=None)

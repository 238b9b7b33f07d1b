"""What was aimed at, and whether it was reached: T-FedAvg against FedAvg and against the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ternfed.paper.belonging import belonging
from ternfed.paper.costs import times_smaller
from ternfed.paper.groups import Group
from ternfed.paper.numbers import ACCURACIES, CNN, MLP, RESNET18, Case

BITS = 0.6
"""At most so many per ternary weight, in uploads."""


class Measure(Enum):
    """What an aim is about, and in which unit `needed` and `reached` are."""

    OVER_FEDAVG = "points of accuracy above FedAvg"
    OVER_PAPER = "points of accuracy above the paper's T-FedAvg"
    UPLOADS = "how many times fewer bytes up than FedAvg"
    DOWNLOADS = "how many times fewer bytes down than FedAvg"
    BITS = "bits per ternary weight up"


@dataclass(frozen=True)
class Aim:
    """One thing aimed at, and the runs that it is judged by."""

    case: Case
    classes: int | None
    """N_c; None: IID."""
    activation: str | None
    """Of the MLP; None for the other networks."""
    measure: Measure
    needed: float
    fedavg: Group | None
    tfedavg: Group | None

    @property
    def paper(self) -> float:
        """What the paper reports for T-FedAvg."""
        return ACCURACIES[self.case, self.classes]["tfedavg"].mean

    @property
    def reached(self) -> float | None:
        """What came out; None where it was not run."""
        full, ternary = self.fedavg, self.tfedavg
        if ternary is None or (own := ternary.accuracy()) is None:
            return None
        match self.measure:
            case Measure.OVER_PAPER:
                return own.mean - self.paper
            case Measure.BITS:
                return ternary.bits_up()
        if full is None or (other := full.accuracy()) is None:
            return None
        match self.measure:
            case Measure.UPLOADS:
                return times_smaller(ternary, full, "up")
            case Measure.DOWNLOADS:
                return times_smaller(ternary, full, "down")
        return own.mean - other.mean

    @property
    def holds(self) -> bool:
        """Whether it was reached."""
        value = self.reached
        if value is None:
            return False
        if self.measure is Measure.BITS:
            return value <= self.needed
        return value >= self.needed if self.needed else value > 0


def aims(groups: Sequence[Group]) -> list[Aim]:
    """Every aim, whether there are runs to judge it by or not."""
    return [*_accuracies(groups), *_sizes(groups)]


def _accuracies(groups: Sequence[Group]) -> Iterator[Aim]:
    for case in (CNN, RESNET18):
        yield _aim(groups, case, None, Measure.OVER_FEDAVG, -0.5)
        yield _aim(groups, case, None, Measure.OVER_PAPER, 0.0)
    for case in (CNN, RESNET18):
        for classes in (2, 5):
            yield _aim(groups, case, classes, Measure.OVER_FEDAVG, 0.0)
    for activation in ("none", "relu"):
        for some in (None, 2, 5):
            yield _aim(groups, MLP, some, Measure.OVER_FEDAVG, 0.0, activation)


def _sizes(groups: Sequence[Group]) -> Iterator[Aim]:
    for measure, needed in ((Measure.UPLOADS, 30.0), (Measure.DOWNLOADS, 16.0), (Measure.BITS, BITS)):
        yield _aim(groups, RESNET18, None, measure, needed)


def _aim(
    groups: Sequence[Group],
    case: Case,
    classes: int | None,
    measure: Measure,
    needed: float,
    activation: str | None = None,
) -> Aim:
    full, ternary = _pair(belonging(groups, "non-iid" if classes else "iid"), case, classes, activation)
    return Aim(case, classes, activation, measure, needed, full, ternary)


def _pair(
    groups: Sequence[Group], case: Case, classes: int | None, activation: str | None
) -> tuple[Group | None, Group | None]:
    """FedAvg's and T-FedAvg's finished runs of one case, of the same length if there are; not chosen by accuracy.

    T-FedAvg with its own defaults is preferred to a preset.
    """
    inside = [
        group
        for group in groups
        if (group.setting("data", "dataset"), group.setting("model", "name")) == case
        and group.setting("data", "classes_per_client") == classes
        and (activation is None or (group.setting("model", "activation") or "relu") == activation)
        and group.finished
    ]
    ternary = [group for group in inside if group.algorithm == "tfedavg"]
    ternary = [group for group in ternary if group.preset is None] or ternary
    full = [group for group in inside if group.algorithm == "fedavg"]
    pairs = [(one, other) for one in full for other in ternary if one.planned == other.planned]
    if pairs:
        return max(pairs, key=lambda pair: len(pair[1].shown))
    return (full[-1] if full else None), (ternary[-1] if ternary else None)

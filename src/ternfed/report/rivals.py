"""T-FedAvg beside FedAvg at its best rate and its strongest rivals, in each comparison: in short, and in full.

And who is cheapest, whoever it is, where so much accuracy may be lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ternfed.paper.frontier import NEAR, Contest, Point, cheapest_within, contests, lead, matches
from ternfed.paper.groups import Group, difference
from ternfed.report.accuracy import accuracy_text, score_heading, seeds_text
from ternfed.report.frontier_tables import megabytes
from ternfed.report.labels import comparison_of, point_labels
from ternfed.report.tables import NONE, Sheet

STRONG = 0.5
"""A rival is strong where it is at most so many points less accurate than FedAvg in float32."""
RIVALS = 2
ENOUGH = 3
"""Seeds; a row with fewer says so."""
LOSSES = (0.5, 1, 2, 5)
"""Points below FedAvg that a reader may be ready to give up."""
_WHO = (
    "Rivals: of all other algorithms but FedAvg the point with the fewest bytes that is as accurate as T-FedAvg's (at "
    f"most {NEAR:g} points less), over the seeds that both have. Then of each other algorithm the point with the "
    f"fewest bytes that is at most {STRONG:g} points less accurate than FedAvg, and of these those with the fewest "
    f"bytes; where there are fewer than {RIVALS}, the most accurate point of another algorithm."
)


def rivals(groups: Sequence[Group]) -> Sheet | None:
    """One row for each point that is told here; None without a comparison."""
    rows = [row for contest in contests(groups) if contest.floats is not None for row in _rows(contest, contest.floats)]
    if not rows:
        return None
    headings = (
        "data", "algorithm", score_heading(groups), "seeds", "up, of FedAvg's", "down, of FedAvg's", "total (MB)",
    )  # fmt: skip
    notes = (
        "Test accuracy after the last round. Bytes over the whole run, really encoded, against FedAvg's float32 "
        f"messages as really sent. {_WHO}",
    )
    return Sheet("rivals", "T-FedAvg and its strongest rivals", headings, tuple(rows), texts=2, notes=notes)


def headline(groups: Sequence[Group]) -> Sheet | None:
    """One row for T-FedAvg's most accurate point of each comparison, one for its cheapest; None without any."""
    fought = [(contest, contest.floats) for contest in contests(groups) if contest.floats is not None]
    rows = [row for contest, floats in fought for row in _short(contest, floats)]
    if not rows:
        return None
    headings = ("data", "T-FedAvg", "accuracy (%)", "FedAvg (%)", "bytes, of FedAvg's", "strongest rival", "another")
    notes = (
        "Test accuracy after the last round, ± over seeds. Bytes of the whole run, up and down, really encoded, as a "
        f"part of what FedAvg in float32 sent; of a rival behind its accuracy. {_WHO}",
    )
    return Sheet("headline", "In short", headings, tuple(rows), texts=2, notes=notes)


def choice(groups: Sequence[Group]) -> Sheet | None:
    """One row for each comparison of accuracies: whom to take, by how much accuracy may be lost; None without any."""
    fought = [(contest, contest.floats) for contest in contests(groups) if contest.floats is not None]
    rows = [_chosen(contest, floats) for contest, floats in fought if floats.group.measure.percent]
    if not rows:
        return None
    headings = ("data", *(f"at most {loss:g} point{'s' * (loss != 1)} below FedAvg" for loss in LOSSES))
    notes = (
        "Of each comparison the point with the fewest bytes, up and down, whose test accuracy after the last round is "
        "at most so many points below that of FedAvg in float32 at its best rate; behind it the difference, over the "
        "seeds that both have, and its bytes as a part of FedAvg's.",
    )
    return Sheet("choice", "Whom to take", headings, tuple(rows), texts=1 + len(LOSSES), notes=notes)


def _chosen(contest: Contest, floats: Point) -> tuple[str, ...]:
    names, told = _names(contest), []
    for loss in LOSSES:
        point = cheapest_within(contest, loss) or floats
        told.append(f"{names[id(point)]}: {lead(point, floats):+.2f}{_few_seeds(point)}, {_share(point, floats)}")
    return comparison_of(floats.group).text(), *(
        "the same" if place and text == told[place - 1] else text for place, text in enumerate(told)
    )


def _short(contest: Contest, floats: Point) -> list[tuple[str, ...]]:
    own = [point for point in contest.points if point.group.algorithm == "tfedavg"]
    if not own:
        return []
    best, cheapest = max(own, key=lambda point: lead(point, floats)), own[0]
    names = _names(contest)
    where = comparison_of(floats.group).text()

    def told(point: Point) -> tuple[str, ...]:
        rivals = [f"{names[id(rival)]}: {_rival_result(rival, floats)}" for rival in beside(contest, point, floats)]
        theirs = [*rivals, NONE if rivals else "none has run yet", NONE][:RIVALS]
        own = _own_name(names[id(point)]), _with_seeds(point)
        return where, *own, _with_seeds(floats), _share(point, floats), *theirs

    return [told(point) for point in ((best,) if best is cheapest else (best, cheapest))]


def _names(contest: Contest) -> dict[int, str]:
    """What each point is called beside the others, by its identity."""
    labels = point_labels([point.group for point in contest.points])
    return {id(point): label for point, label in zip(contest.points, labels, strict=True)}


def _own_name(label: str) -> str:
    """What sets a point of T-FedAvg apart, where the column says T-FedAvg already."""
    return label.removeprefix("T-FedAvg").removeprefix(", tuned").removeprefix(", ") or "as it comes"


def _share(point: Point, floats: Point) -> str:
    """Bytes as a part of FedAvg's."""
    return f"1/{floats.total / point.total:.3g}"


def _rival_result(point: Point, floats: Point) -> str:
    """Accuracy and bytes; where the rival has fewer seeds than FedAvg, with what FedAvg reached with those."""
    score, paired = _with_seeds(point), difference(point.group, floats.group)
    if paired is not None and point.score.count < min(ENOUGH, floats.score.count):
        score = f"{score[:-1]}; FedAvg's {point.score.mean - paired.mean:.2f})"
    return f"{score}, {_share(point, floats)}"


def _with_seeds(point: Point) -> str:
    return accuracy_text(point.group) + _few_seeds(point)


def _few_seeds(point: Point) -> str:
    seeds = point.score.count
    return "" if seeds >= ENOUGH else " (1 seed)" if seeds == 1 else f" ({seeds} seeds)"


def beside(contest: Contest, own: Point, floats: Point) -> list[Point]:
    """The cheapest rival that is as accurate as this point, then the strongest of other algorithms."""
    found = {id(match.own): match.rival for match in matches(contest)}.get(id(own))
    first = [] if found is None or found.group.algorithm == "fedavg" else [found]
    others = [p for p in strongest(contest, floats) if not first or p.group.algorithm != first[0].group.algorithm]
    return [*first, *others][:RIVALS]


def strongest(contest: Contest, floats: Point) -> list[Point]:
    """The cheapest strong point of each other algorithm, the cheapest of these first; then the best of the others'."""
    strong: dict[str, Point] = {}
    weak: dict[str, Point] = {}
    for point in contest.points:  # from the fewest bytes to the most
        algorithm = point.group.algorithm
        if algorithm in ("tfedavg", "fedavg") or not math.isfinite(point.goodness):
            continue
        if lead(point, floats) >= -STRONG:
            strong.setdefault(algorithm, point)
        elif algorithm not in weak or lead(point, weak[algorithm]) > 0:
            weak[algorithm] = point
    others = [point for algorithm, point in weak.items() if algorithm not in strong]
    others.sort(key=lambda point: -lead(point, floats))
    return [*strong.values(), *others][:RIVALS]


def _rows(contest: Contest, floats: Point) -> list[tuple[str, ...]]:
    own = [point for point in contest.points if point.group.algorithm == "tfedavg"]
    chosen = [floats, *(rival for point in own for rival in beside(contest, point, floats)), *own]
    names = _names(contest)
    shown = sorted({id(point): point for point in chosen}.values(), key=lambda point: -point.total)
    where = comparison_of(floats.group).text()
    return [(where, names[id(point)], *_cells(point, floats)) for point in shown]


def _cells(point: Point, floats: Point) -> tuple[str, ...]:
    parts = ((floats.up, point.up), (floats.down, point.down))
    of_floats = [NONE if point is floats else f"1/{full / own:.3g}" for full, own in parts]
    return accuracy_text(point.group), seeds_text(point.group), *of_floats, megabytes(point.total)

"""The short table: T-FedAvg beside FedAvg at its best rate and its two strongest rivals, in each comparison."""

from __future__ import annotations

from collections.abc import Sequence

from ternfed.paper.frontier import Contest, Point, contests
from ternfed.paper.groups import Group
from ternfed.report.accuracy import accuracy_text, score_heading, seeds_text
from ternfed.report.frontier_tables import megabytes
from ternfed.report.labels import comparison_of, point_labels
from ternfed.report.tables import NONE, Sheet

STRONG = 0.5
"""A rival is strong where it is at most so many points less accurate than FedAvg in float32."""
RIVALS = 2


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
        f"messages as really sent. Rivals: of each other algorithm the point with the fewest bytes that is at most "
        f"{STRONG:g} points less accurate than FedAvg, and of these the {RIVALS} with the fewest bytes.",
    )
    return Sheet("rivals", "T-FedAvg and its strongest rivals", headings, tuple(rows), texts=2, notes=notes)


def strongest(contest: Contest, floats: Point) -> list[Point]:
    """The cheapest strong point of each other algorithm, the cheapest of these."""
    found: dict[str, Point] = {}
    for point in contest.points:  # from the fewest bytes to the most
        algorithm = point.group.algorithm
        if algorithm not in ("tfedavg", "fedavg") and point.goodness >= floats.goodness - STRONG:
            found.setdefault(algorithm, point)
    return list(found.values())[:RIVALS]


def _rows(contest: Contest, floats: Point) -> list[tuple[str, ...]]:
    labels = point_labels([point.group for point in contest.points])
    own = [point for point in contest.points if point.group.algorithm == "tfedavg"]
    chosen = [floats, *strongest(contest, floats), *own]
    names = {id(point): label for point, label in zip(contest.points, labels, strict=True)}
    shown = sorted(chosen, key=lambda point: -point.total)
    where = comparison_of(floats.group).text()
    return [(where, names[id(point)], *_cells(point, floats)) for point in shown]


def _cells(point: Point, floats: Point) -> tuple[str, ...]:
    parts = ((floats.up, point.up), (floats.down, point.down))
    of_floats = [NONE if point is floats else f"1/{full / own:.3g}" for full, own in parts]
    return accuracy_text(point.group), seeds_text(point.group), *of_floats, megabytes(point.total)

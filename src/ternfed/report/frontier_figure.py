"""The picture of one comparison: accuracy against total bytes, the front as a step line, a name at each point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

from ternfed.paper.frontier import STEPS, Contest, Point
from ternfed.report.style import PALE, Picture, colour_of, finish, name_below, narrow, panels, plain_log, short

HEIGHT = 5.4
DEEP = 12.0
"""Points of accuracy below the best from which a point is drawn at the lower edge, its accuracy in its name."""
CROWD = 14
"""From so many points on, of those off the front only the best of each algorithm that has none on it gets a name, and
names stand below."""
PLACES = (
    (7, 5, "left", "bottom"), (7, -5, "left", "top"), (-7, 5, "right", "bottom"), (-7, -5, "right", "top"),
    (10, 0, "left", "center"), (-10, 0, "right", "center"), (0, 12, "center", "bottom"), (0, -12, "center", "top"),
    (0, 22, "center", "bottom"), (0, -22, "center", "top"), (0, 36, "center", "bottom"), (0, -36, "center", "top"),
    (14, 20, "left", "bottom"), (14, -20, "left", "top"), (-14, 20, "right", "bottom"), (-14, -20, "right", "top"),
    (20, 36, "left", "bottom"), (20, -36, "left", "top"), (-20, 36, "right", "bottom"), (-20, -36, "right", "top"),
    (26, 52, "left", "bottom"), (26, -52, "left", "top"), (-26, 52, "right", "bottom"), (-26, -52, "right", "top"),
)  # fmt: skip
"""Where a name may stand beside its point: right, up (in points), and its sides; the first that is free is taken."""


Box = tuple[float, float, float, float]
"""Left, lower, right, upper."""


class Anchor(NamedTuple):
    """A point that gets a name."""

    x: float
    y: float
    bar: float
    """How far its bar reaches up and down."""
    name: str
    colour: str


def picture(contest: Contest, labels: Sequence[str], title: str) -> Picture:
    """Points on the front are filled, the others are hollow."""
    from matplotlib.ticker import LogLocator

    figure, axes = panels(HEIGHT)
    panel = axes[0, 0]
    measure = contest.points[0].group.measure
    drawn = [
        (point, label) for point, label in zip(contest.points, labels, strict=True) if math.isfinite(point.score.mean)
    ]
    low = _low([point for point, _ in drawn])
    panel.set(xscale="log", xlabel="total megabytes, up and down, over the whole run, log scale", title=title)
    panel.set_ylabel(f"test {measure.heading}")
    anchors = [_draw(panel, point, label, low, point in contest.front) for point, label in drawn]
    left, right = _limits([point.total / 1e6 for point, _ in drawn])
    panel.set_xlim(left, right)
    if low is not None:
        panel.set_ylim(low - 0.05 * DEEP, None)
    panel.margins(y=0.12)
    plain_log(panel.xaxis)
    panel.xaxis.set_major_locator(LogLocator(subs=STEPS))
    crowded = len(drawn) >= CROWD
    if crowded:
        named = _worth_a_name(contest, [point for point, _ in drawn])
        anchors = [each if name else each._replace(name="") for each, name in zip(anchors, named, strict=True)]
    if narrow():
        panel.set_xlabel("total megabytes, up and down, log scale")
    if narrow() or crowded:
        anchors = _numbered(panel, anchors)
    _name(figure, panel, anchors, _draw_front(panel, contest.front, right))
    seeds = sorted({point.score.count for point in contest.points})
    many = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    caption = (
        f"{title}: test {measure.name} after the last round against all bytes of the run, up and down; {many} "
        f"seed{'s' * (many != '1')}, bars are one standard deviation. Filled points are on the front, the step line."
        + f" Points without a {'number' if crowded else 'name'} are of the algorithm of their colour."
        * any(not each.name for each in anchors)
    )
    return finish(figure, f"frontier {title}", "", title, caption)


def _numbered(panel: Any, anchors: Sequence[Anchor]) -> list[Anchor]:
    """The points with numbers in place of names, which stand below the panel."""
    numbers = count(1)
    numbered = [each._replace(name=str(next(numbers))) if each.name else each for each in anchors]
    names = [
        (f"{number.name}  {short(each.name, 50 if narrow() else 72)}", each.colour)
        for each, number in zip(anchors, numbered, strict=True)
        if each.name
    ]
    name_below(panel, names, lines=False, columns=1 if narrow() else 2)
    return numbered


def _worth_a_name(contest: Contest, points: Sequence[Point]) -> list[bool]:
    """Whether each point is on the front, or the best of an algorithm that has none there."""
    there = {point.group.algorithm for point in contest.front}
    best: dict[str, Point] = {}
    for point in points:
        other = best.setdefault(point.group.algorithm, point)
        best[point.group.algorithm] = max(other, point, key=lambda each: each.goodness)
    absent = [point for algorithm, point in best.items() if algorithm not in there]
    return [any(point is each for each in (*contest.front, *absent)) for point in points]


def _limits(sizes: Sequence[float]) -> tuple[float, float]:
    """From left to right, with room for a name on both sides."""
    span = max(max(sizes) / min(sizes), 10.0)
    return min(sizes) / span**0.18, max(sizes) * span**0.14


def _low(points: Sequence[Point]) -> float | None:
    """The lower edge where some points lie far below the best; None where all fit."""
    measure = points[0].group.measure
    scores = [point.score.mean for point in points]
    if not measure.percent or not measure.higher_is_better or max(scores) - min(scores) <= DEEP:
        return None
    near = [score for score in scores if score > max(scores) - DEEP]
    return min(near) - 0.08 * DEEP


def _draw(panel: Any, point: Point, label: str, low: float | None, on_front: bool) -> Anchor:
    """One point, and where its name belongs."""
    colour, x, y = colour_of(point.group.algorithm), point.total / 1e6, point.score.mean
    if low is not None and y < low:
        panel.plot([x], [low], marker="v", markersize=8, color=colour, markerfacecolor="white", linestyle="none")
        return Anchor(x, low, 0.0, f"{label}: {y:.1f}", colour)
    panel.errorbar(
        [x], [y], [point.score.std or 0.0], color=colour, marker="o", markersize=7.5, capsize=2.5, elinewidth=1,
        markerfacecolor=colour if on_front else "white", markeredgewidth=1.6, linestyle="none", zorder=3,
    )  # fmt: skip
    return Anchor(x, y, point.score.std or 0.0, label, colour)


def _draw_front(panel: Any, front: Sequence[Point], right: float) -> list[tuple[float, float]]:
    """The step line; its corners."""
    corners: list[tuple[float, float]] = []
    for point in front:
        x, y = point.total / 1e6, point.score.mean
        corners += [(x, corners[-1][1]), (x, y)] if corners else [(x, y)]
    if corners:
        corners.append((right, corners[-1][1]))
        panel.plot(*zip(*corners, strict=True), color=PALE, linewidth=1.3, zorder=1)
    return corners


def _name(figure: Any, panel: Any, anchors: Sequence[Anchor], corners: Sequence[tuple[float, float]]) -> None:
    """A name at each point, where it covers no other name, no point and no line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    renderer = canvas.get_renderer()
    figure.draw_without_rendering()  # places are known only after the layout
    figure.set_layout_engine("none")
    box, unit = panel.get_window_extent(renderer), figure.dpi / 72

    def around(points: Sequence[tuple[float, float]], by: float) -> Box:
        """The box of some places of the panel, and a rim of so many points."""
        xs, ys = zip(*(panel.transData.transform(point) for point in points), strict=True)
        return min(xs) - by * unit, min(ys) - by * unit, max(xs) + by * unit, max(ys) + by * unit

    taken = [around([(each.x, each.y)], 6) for each in anchors]
    taken += [around([(each.x, each.y - each.bar), (each.x, each.y + each.bar)], 2) for each in anchors]
    taken += [around(pair, 1) for pair in pairwise(corners)]
    for anchor in sorted((each for each in anchors if each.name), key=lambda each: -each.y):
        tried = []
        for place in PLACES:
            note = _annotate(panel, anchor, place)
            area = _extent(note, renderer)
            own = (area.x0, area.y0, area.x1, area.y1)
            tried.append((sum(_overlap(own, other) for other in taken) + _outside(own, box), note, own))
            if tried[-1][0] == 0:
                break
        best = min(tried, key=lambda each: each[0])
        for each in tried:
            if each is not best:
                each[1].remove()
        taken.append(best[2])


def _annotate(panel: Any, anchor: Anchor, place: tuple[int, int, str, str]) -> Any:
    """A name beside a point, with a line to it where it stands further away."""
    right, up, side, height = place
    line = {"arrowstyle": "-", "color": PALE, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
    return panel.annotate(
        short(anchor.name, 44), (anchor.x, anchor.y), (right, up), textcoords="offset points", ha=side, va=height,
        fontsize=9.5, color=anchor.colour, zorder=4, annotation_clip=False, arrowprops=line if abs(up) > 12 else None,
    )  # fmt: skip


def _extent(note: Any, renderer: Any) -> Any:
    """Where its letters are, without the line to the point."""
    from matplotlib.text import Text

    note.update_positions(renderer)
    return Text.get_window_extent(note, renderer)


def _overlap(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


def _outside(one: Box, box: Any) -> float:
    """How far a name stands outside the panel, in the area of a name so wide."""
    beyond = (box.x0 - one[0], one[2] - box.x1, box.y0 - one[1], one[3] - box.y1)
    return 30 * sum(max(0.0, float(each)) for each in beyond)

"""The chapter on accuracy against bytes: for each comparison a figure, what it says in words, and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ternfed.paper.frontier import NEAR, Contest, Point, contests, lead, left_out, matches, protocol_of, worthwhile
from ternfed.paper.groups import Group, difference
from ternfed.paper.rows import SHOWN
from ternfed.report.chapter import Chapter, Part
from ternfed.report.frontier_figure import picture
from ternfed.report.frontier_tables import READING, megabytes, sheets_of
from ternfed.report.labels import algorithm_label, clients_label, comparison_of, point_labels, rounds_label
from ternfed.report.style import slug


def frontier(groups: Sequence[Group]) -> Chapter | None:
    """One part for each comparison of two algorithms at least, and which runs were left out; None without any."""
    found, stale = contests(groups), left_out(groups)
    if not found and not stale:
        return None
    parts = []
    for contest, title in zip(found, _titles([contest.points[0].group for contest in found]), strict=True):
        labels = point_labels([point.group for point in contest.points])
        parts.append(
            Part(
                title,
                (_protocol(contest), *sentences(contest, labels)),
                picture(contest, labels, title),
                tuple(sheets_of(contest, labels, title)),
            )
        )
    notes = ("Left out, because their runs have other settings than their rows now: " + ", ".join(stale) + ".",)
    kinds = {sheet.name.rpartition("-")[2] for part in parts for sheet in part.sheets}
    reading = tuple(text for kind, text in READING.items() if kind in kinds)
    return Chapter("frontier", SHOWN["frontier"], tuple(parts), reading, notes if stale else ())


def _titles(groups: Sequence[Group]) -> list[str]:
    """Data, network and partition of each comparison; clients and rounds where those are the same, or a number."""
    short = [comparison_of(group).text() for group in groups]
    titles = [
        f"{comparison_of(group).text(with_clients=True)}, {rounds_label(group)}" if short.count(text) > 1 else text
        for text, group in zip(short, groups, strict=True)
    ]
    names = [slug(title) for title in titles]  # of figures and tables: no two may have the same
    earlier = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{title} ({number + 1})" if number else title for title, number in zip(titles, earlier, strict=True)]


def sentences(contest: Contest, labels: Sequence[str]) -> Iterator[str]:
    """Who is on the front, and what T-FedAvg needs beside the best rival at equal accuracy."""
    names = {id(point): label for point, label in zip(contest.points, labels, strict=True)}

    def told(point: Point) -> str:
        measure = point.group.measure
        score = f"{point.score.mean:.2f}%" if measure.percent else f"{measure.name} {point.score.mean:.4g}"
        return f"{names[id(point)]} ({score}, {megabytes(point.total)} MB)"

    yield f"On the front, from the fewest bytes to the most: {'; '.join(map(told, contest.front))}."
    if choices := worthwhile(contest):
        yield _choosing(contest, choices, names)
    if learned := [worth for point in contest.points if (worth := _learned(contest, point, told(point)))]:
        yield f"What learning the trits is worth: {'; '.join(learned)}."
    pairs = matches(contest)
    if not pairs:
        return
    rivals = [point for point in contest.points if point not in [pair.own for pair in pairs]]
    if not rivals:
        return
    said = []
    for pair in pairs:
        if pair.rival is None or pair.times is None:
            said.append(f"{told(pair.own)} has no rival as accurate")
        else:
            said.append(f"{told(pair.own)} needs {_times(pair.times)} {told(pair.rival)}")
    yield (
        f"Beside the cheapest rival that is as accurate or more (at most {NEAR:g} points less count as equal): "
        f"{'; '.join(said)}."
    )
    yardstick = contest.floats or rivals[-1]
    best = max(rivals, key=lambda point: lead(point, yardstick))
    behind = min(lead(best, pair.own) for pair in pairs)
    if behind > NEAR:
        yield (
            f"No point of T-FedAvg is within {NEAR:g} points of the most accurate rival, {told(best)}; the nearest is "
            f"{behind:.2f} below."
        )


def _learned(contest: Contest, point: Point, told: str) -> str | None:
    """A point beside the same with trits that never change; None where no such control ran."""
    control = contest.control_of(point)
    if control is None or (ahead := difference(point.group, control)) is None:
        return None
    gain, seeds = point.group.measure.goodness(ahead.mean), f"{ahead.count} seed{'s' * (ahead.count != 1)}"
    unit = "points " if point.group.measure.percent else ""
    side = "above" if gain >= 0 else "below"
    return f"{told} is {abs(gain):.2f} {unit}{side} the same with frozen trits ({seeds})"


def _choosing(contest: Contest, choices: Sequence[Point], names: Mapping[int, str]) -> str:
    """Which one to use: the cheapest for each accuracy that is worth its bytes."""

    def when(place: int, point: Point) -> str:
        score, need = f"{point.score.mean:.1f}%", "are enough" if place == 0 else "must be reached"
        return f"{names[id(point)]} when {score} {need} ({megabytes(point.total)} MB)"

    used = "; ".join(when(place, point) for place, point in enumerate(choices))
    front = {point.group.algorithm for point in contest.front}
    told = [point.group.algorithm for point in contest.points if math.isfinite(point.goodness)]
    never = [_off_front(contest, name) for name in dict.fromkeys(told) if name not in front]
    meaning = "in brackets, how many times the bytes of the cheapest that is as accurate its best point needs"
    others = f" Never on the front: {', '.join(never)}; {meaning}." if never else ""
    more = f" More bytes buy at most {NEAR:g} points." if contest.front[-1] is not choices[-1] else ""
    return f"Use {used}.{more}{others}"


def _off_front(contest: Contest, algorithm: str) -> str:
    """An algorithm, and what its most economical point needs beside others."""
    found = [match.times for match in matches(contest, algorithm) if match.times is not None]
    return f"{algorithm_label(algorithm)} ({1 / max(found):.3g})" if found else algorithm_label(algorithm)


def _protocol(contest: Contest) -> str:
    group = contest.points[0].group
    whose, (rounds, epochs) = protocol_of(group), group.planned
    clients, _, share = clients_label(group).partition(", ")
    own = "One's own protocol" if whose is None else f"Protocol: {whose}"
    return f"{own}. {clients} clients, {share}; {rounds} rounds of {epochs} local epochs."


def _times(times: float) -> str:
    if 0.995 <= times < 1.005:
        return "as many bytes as"
    return f"{times:.3g} times fewer bytes than" if times > 1 else f"{1 / times:.3g} times the bytes of"

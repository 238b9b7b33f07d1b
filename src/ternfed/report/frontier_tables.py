"""The tables of one comparison of accuracy against bytes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from ternfed.paper.frontier import Contest, Point, bytes_to_reach, score_within
from ternfed.paper.groups import Group
from ternfed.paper.inference import products
from ternfed.paper.model_size import model_size
from ternfed.report.accuracy import accuracy_text, score_heading, seeds_text
from ternfed.report.choosing import best_rate, judged_text, rate_of
from ternfed.report.labels import setting_label
from ternfed.report.style import slug
from ternfed.report.tables import NONE, Sheet

EXCHANGE = ("broadcast", "prepare", "upload")
"""Phases of a round in which messages are made, encoded, decoded and checked."""

FIFTH = 5
"""By how many the rounds are divided whose last part is averaged."""
READING = {
    "points": (
        "Every point",
        "Accuracy on test data after the last round, ± the standard deviation over seeds. Last fifth: the mean of the "
        "last fifth of the rounds; where it is far lower, the score swings from round to round, and the last round may "
        "have been a lucky one. Bytes are lengths of messages that were really encoded, all layers and headers "
        "counted, the mean over seeds: per client and round, and both directions of the whole run. Of FedAvg's: total "
        "bytes against FedAvg in float32. On the front: no other point has at most as many bytes and is at least as "
        "accurate, over the seeds that both have.",
    ),
    "reach": (
        "Bytes to reach an accuracy",
        "Total bytes, up and down, up to the end of the first round whose mean test accuracy over the seeds is at "
        "least the one on top; – where no round's is. Nothing was stopped there: rates that decay over the whole run "
        "reach a level late. The highest level is the whole number one to two points below FedAvg in float32, the "
        "others are 2 and 5 points lower.",
    ),
    "budget": (
        "Accuracy for a budget",
        "Mean test accuracy after the last round at whose end all bytes, up and down, are within the budget; – where "
        "the first round is not. A run that ends below a budget keeps its last accuracy. Budgets are three steps of a "
        "1-3-10 scale around the median of what the points needed.",
    ),
    "beside": (
        "Seconds and the model",
        "Messages: seconds per round, all clients in one process, to make, encode, decode and check all downloads and "
        "uploads (phases broadcast, prepare, upload); compare them on one machine only. Model: the last one as a file, "
        "ternary layers as .tern codes trits of the last round's share of zeros, as many bits as a broadcast may need "
        "for each number that it rounds to 8 bits or fewer, 4 bytes for every other number, a bit for each weight that "
        "a mask keeps or leaves out (FedPM), without the settings that an export notes beside them. Products: "
        "multiplications of matrix products and convolutions for one sample. A ternary or masked layer adds and "
        "subtracts, and multiplies once for each of its outputs; what that is worth in milliseconds depends on the "
        "runtime (docs/edge.md has what is measured).",
    ),
    "search": (
        "Rates that were tried",
        "Accuracy on validation data, split from the training set and held out on the server: the mean of the last "
        "tenth of the rounds, of three at least. 'Ended': no seed finished, because training diverged on every client "
        "of that round or the run was stopped.",
    ),
}
"""How each table is called, and how it is read."""


def sheets_of(contest: Contest, labels: Sequence[str], title: str) -> Iterator[Sheet]:
    """Every table that the runs have something for."""
    name = f"frontier-{slug(title)}"
    yield _points(contest, labels, f"{name}-points")
    heading = score_heading([point.group for point in contest.points])
    reach = [[bytes_to_reach(point, level) for point in contest.points] for level in contest.levels]
    if any(value is not None for column in reach for value in column):
        tops = [f"{level:g}% (MB)" for level in contest.levels]
        cells = [[NONE if value is None else megabytes(value) for value in column] for column in reach]
        yield _by_point(f"{name}-reach", READING["reach"][0], labels, tops, cells)
    within = [[score_within(point, budget) for point in contest.points] for budget in contest.budgets]
    if any(value is not None for column in within for value in column):
        tops = [f"at {budget / 1e6:,g} MB: {heading}" for budget in contest.budgets]
        digits = 2 if contest.points[0].group.measure.percent else 4
        cells = [[NONE if value is None else f"{value:.{digits}f}" for value in column] for column in within]
        yield _by_point(f"{name}-budget", READING["budget"][0], labels, tops, cells)
    if (beside := _beside(contest, labels, f"{name}-beside")) is not None:
        yield beside
    if contest.searched:
        yield _search(contest.searched, f"{name}-search")


def megabytes(size: float) -> str:
    """Three digits at least: `1,024`, `34.1`, `2.05`, `0.0123`."""
    return _amount(size / 1e6)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:#.3g}"


def _points(contest: Contest, labels: Sequence[str], name: str) -> Sheet:
    floats, front = contest.floats, contest.front
    headings = (
        "algorithm", score_heading([point.group for point in contest.points]), "last fifth", "seeds",
        "per client and round, up / down (kB)", "whole run, up + down (MB)", "of FedAvg's",
        "on the front",
    )  # fmt: skip
    rows = []
    for point, label in zip(contest.points, labels, strict=True):
        group = point.group
        each = [_amount(size / group.exchanges() / 1e3) for size in (point.up, point.down)]
        rows.append(
            (
                label,
                accuracy_text(group),
                accuracy_text(group, max(1, group.length // FIFTH)),
                seeds_text(group),
                " / ".join(each),
                megabytes(point.total),
                NONE if floats is None else _part(point.total / floats.total),
                "yes" if point in front else "no",
            )
        )
    return Sheet(name, READING["points"][0], headings, tuple(rows))


def _part(share: float) -> str:
    return f"1/{1 / share:.3g}" if share < 0.995 else f"{share:.3g}"


def _by_point(
    name: str, title: str, labels: Sequence[str], tops: Sequence[str], columns: Sequence[Sequence[str]]
) -> Sheet:
    rows = tuple(zip(labels, *columns, strict=True))
    return Sheet(name, title, ("algorithm", *tops), rows).without_empty()


def _beside(contest: Contest, labels: Sequence[str], name: str) -> Sheet | None:
    """Seconds and model sizes."""
    rows = []
    for point, label in zip(contest.points, labels, strict=True):
        seconds, weight, used = exchange_seconds(point), model_size(point.group), products(point.group)
        rows.append(
            (
                label,
                _machine(point.group) if seconds is not None else NONE,
                NONE if seconds is None else f"{seconds[0]:.3g}",
                NONE if seconds is None else f"{100 * seconds[0] / seconds[1]:.0f}",
                NONE if weight is None else f"{weight.own / 1e3:,.1f}",
                NONE if weight is None else _part(weight.own / weight.float32),
                NONE if used is None else _amount(used.own / 1e3),
                NONE if used is None else _part(used.own / used.float32),
            )
        )
    if all(cell == NONE for row in rows for cell in row[1:]):
        return None
    headings = (
        "algorithm", "machine", "messages (s per round)", "of the round (%)", "model, at most (kB)", "of float32",
        "products per sample (thousand)", "of float32's",
    )  # fmt: skip
    return Sheet(name, READING["beside"][0], headings, tuple(rows), texts=2).without_empty()


def exchange_seconds(point: Point) -> tuple[float, float] | None:
    """Mean seconds per round for messages, and for everything; None where nothing was timed."""
    timed = [record.seconds for run in point.group.shown for record in run.rounds if record.seconds]
    if not timed or not any(phase in seconds for seconds in timed for phase in EXCHANGE):
        return None
    messages = statistics.fmean(sum(seconds.get(phase, 0.0) for phase in EXCHANGE) for seconds in timed)
    return messages, max(statistics.fmean(sum(seconds.values()) for seconds in timed), messages, 1e-9)


def _machine(group: Group) -> str:
    """Where its runs were timed: the GPU, or the processor."""
    found = [entry for run in group.shown for entry in run.environment[:1]]
    names = [str(entry.get("processor") if entry.get("device") == "cpu" else entry.get("device")) for entry in found]
    return ", ".join(dict.fromkeys(names)) or NONE


def _search(groups: Sequence[Group], name: str) -> Sheet:
    """The rates that each algorithm was tried with: one row per algorithm, schedule and length."""
    kinds: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        schedule = str(group.setting("training", "schedule") or "constant")
        kinds.setdefault((setting_label(group, groups), " × ".join(map(str, group.planned)), schedule), []).append(
            group
        )
    rows = []
    for (label, rounds, schedule), tried in kinds.items():
        by_rate = {rate_of(group): group for group in sorted(tried, key=rate_of)}
        texts = "; ".join(f"{rate:g}: {judged_text(group)}" for rate, group in by_rate.items())
        rows.append((label, rounds, schedule, texts, best_rate(by_rate)))
    headings = ("algorithm", "rounds × epochs", "schedule", "rate: validation (%)", "best")
    return Sheet(name, READING["search"][0], headings, tuple(rows), texts=4)

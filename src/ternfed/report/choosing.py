"""Tables of what settings were chosen by: the search, the ablation, the rates of FedAvg. Validation data alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ternfed.paper.belonging import belonging
from ternfed.paper.groups import Group
from ternfed.paper.rows import SHOWN
from ternfed.report.accuracy import (
    FLIPS,
    FLIPS_NOTE,
    bits_text,
    flips_text,
    megabytes_text,
    range_text,
    seeds_text,
    title_of,
    validation_text,
)
from ternfed.report.labels import Comparison, by_comparison, comparison_of, rounds_label
from ternfed.report.tables import NONE, Sheet
from ternfed.runs.records import judged_rounds


def ablation(groups: Sequence[Group]) -> Sheet | None:
    """The recipe with one choice changed at a time, judged on validation data."""
    found = belonging(groups, "ablation")
    if not found:
        return None
    found = sorted(found, key=lambda group: not title_of(group).startswith("The recipe"))
    full = found[0].validation() if title_of(found[0]).startswith("The recipe") else None
    headings = (
        "change", "data", "rounds × epochs", "seeds", "validation (%)", "difference", "bits per ternary weight up",
        FLIPS, "Strategy I (%)",
    )  # fmt: skip
    rows = []
    for number, group in enumerate(found):
        value, one = group.validation(), group.strategy_one()
        apart = NONE if full is None or value is None or number == 0 else f"{value.mean - full.mean:+.2f}"
        rows.append(
            (
                title_of(group),
                comparison_of(group).text(),
                rounds_label(group),
                seeds_text(group),
                validation_text(group),
                apart,
                bits_text(group),
                flips_text(group),
                NONE if one is None else f"{100 * one:.3g}",
            )
        )
    notes = (
        "Accuracy on validation data, split from the training set and held out on the server, after the last round. "
        f"Difference: from the full recipe, in points. {FLIPS_NOTE}",
    )
    return Sheet("ablation", SHOWN["ablation"], headings, tuple(rows), texts=3, notes=notes).without_empty()


def search(groups: Sequence[Group]) -> Sheet | None:
    """What was tried for the recipe: the runs of one comparison together, best first."""

    def rank(group: Group) -> tuple[Comparison, int, float]:
        value = group.validation(3)
        return comparison_of(group), group.length, 0.0 if value is None else -value.mean

    found = sorted(belonging(groups, "search"), key=rank)
    if not found:
        return None
    headings = (
        "data", "rounds × epochs", "tried", "seeds", "validation, last three rounds (%)", "last round (%)",
        "up (MB)", "down (MB)", "bits per ternary weight up", FLIPS,
    )  # fmt: skip
    rows = tuple(
        (
            comparison_of(group).text(),
            rounds_label(group),
            title_of(group),
            seeds_text(group),
            validation_text(group, 3),
            validation_text(group),
            *(megabytes_text(group, way) for way in ("up", "down")),
            bits_text(group),
            flips_text(group),
        )
        for group in found
    )
    notes = (
        "Accuracy on validation data, split from the training set and held out on the server. The mean of the last "
        f"three rounds depends less on chance than the last round alone. {FLIPS_NOTE}",
    )
    return Sheet("search", SHOWN["search"], headings, rows, texts=3, notes=notes).without_empty()


def tuning(groups: Sequence[Group]) -> Sheet | None:
    """Learning rates that were tried for FedAvg: one row per comparison and schedule, one column per rate."""
    found = [group for group in belonging(groups, "tuning") if group.algorithm == "fedavg"]
    if not found:
        return None
    rates = sorted({rate_of(group) for group in found})
    rows = []
    for comparison, tried in by_comparison(found).items():
        for kind in dict.fromkeys(map(_kind, tried)):
            by_rate = {rate_of(group): group for group in tried if _kind(group) == kind}
            cells = (judged_text(by_rate[rate]) if rate in by_rate else NONE for rate in rates)
            seeds = range_text([len(group.runs) for group in by_rate.values()])
            schedule, rounds, epochs = kind
            rows.append((comparison.text(), f"{rounds} × {epochs}", schedule, seeds, *cells, best_rate(by_rate)))
    headings = ("data", "rounds × epochs", "schedule", "seeds", *(f"rate {rate:g}" for rate in rates), "best")
    notes = (
        "Accuracy in percent on validation data, split from the training set and held out on the server: the mean of "
        "the last tenth of the rounds, of three at least; ± is the standard deviation over seeds. 'Ended': no seed "
        "finished, because training diverged on every client of that round or the run was stopped.",
    )
    title = "The learning rate of FedAvg, judged on validation data"
    return Sheet("tuning", title, headings, tuple(rows), texts=3, notes=notes)


def best_rate(by_rate: Mapping[float, Group]) -> str:
    """The rate that judged best, all its seeds finished, and whether better ones may lie beyond those tried."""
    whole = {rate: group for rate, group in by_rate.items() if all(run.finished for run in group.runs)}
    judged = {rate: group.validation(judged_rounds(group.length)) for rate, group in whole.items()}
    best = max(((value.mean, rate) for rate, value in judged.items() if value is not None), default=None)
    if best is None:
        return NONE
    beyond = {min(by_rate): " (smallest tried)", max(by_rate): " (largest tried)"} if len(by_rate) > 1 else {}
    return f"{best[1]:g}{beyond.get(best[1], '')}"


def judged_text(group: Group) -> str:
    """The mean validation score of a run's last rounds, or where it ended."""
    done = sum(run.finished for run in group.runs)
    if not done:
        return f"ended in round {max(len(run.rounds) for run in group.runs) + 1}"
    seeds = "" if done == len(group.runs) else f" ({done} of {len(group.runs)} seeds)"
    return validation_text(group, judged_rounds(group.length)) + seeds


def rate_of(group: Group) -> float:
    """Its learning rate."""
    return float(group.setting("training", "rate"))


def _kind(group: Group) -> tuple[str, int, int]:
    """Schedule, rounds and epochs: runs of one kind are compared."""
    return str(group.setting("training", "schedule") or "constant"), *group.planned

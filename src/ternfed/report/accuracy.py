"""Tables of accuracies: the summary, and the paper's with its numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ternfed.paper.belonging import apart, belonging
from ternfed.paper.groups import Group, place
from ternfed.paper.rows import SHOWN
from ternfed.report.labels import (
    Comparison,
    comparison_of,
    data_label,
    distinguish,
    method_label,
    model_label,
    rounds_label,
    split_label,
)
from ternfed.report.tables import NONE, Sheet
from ternfed.task import ACCURACY

LAST = "Test accuracy in percent after the last round; ± is the standard deviation over seeds."
UNEQUAL = (
    "Rows of one column may have different numbers of seeds: the table of controls compares them seed by seed, over "
    "the seeds that both have."
)
SEED_BY_SEED = (
    "Differences are taken seed by seed over the seeds that both rows have, because rows may have different numbers of "
    "them; ± is the standard deviation of the difference."
)


FLIPS = "flips, first / mean / last (%)"
FLIPS_NOTE = (
    "Flips: share of the broadcast's trits that differ from those of the one before, in the first round, on average "
    "and in the last; 'frozen' where they did not move for a quarter of the rounds while the rates had not decayed, so "
    "that only the scales and what is not ternary learned."
)


def anchor(number: int) -> str:
    """Where the page tells everything about a group."""
    return f"runs-{number}"


def summary(groups: Sequence[Group]) -> Sheet | None:
    """One row per group, without the points of sweeps, of the search and of the ablation."""
    chosen = [(number, group) for number, group in enumerate(groups) if id(group) not in apart(groups)]
    if not chosen:
        return None
    headings = (
        "run", "data", "model", "clients", "algorithm", "rounds × epochs", "seeds", score_heading(groups), "paper (%)",
        score_heading(groups, "validation"), "up (MB)", "down (MB)", "float32 ÷ up", "float32 ÷ down",
        "bits per ternary weight up", FLIPS, "Strategy I (%)", "skipped (%)",
    )  # fmt: skip
    names = _names([group for _, group in chosen])
    runs = _run_names([group for _, group in chosen])
    rows = tuple(_summary_row(group, runs[at], names[at]) for at, (_, group) in enumerate(chosen))
    left = len(groups) - len(chosen)
    metric = score_heading(groups)
    known = metric == ACCURACY.measure.heading
    last, score = (LAST, "accuracy") if known else (LAST.replace("accuracy in percent", metric), "the same")
    notes = (
        f"{last} Validation: {score} on data held out on the server. Up and down: every byte of every message as "
        "really encoded, over the whole run; float32 ÷ up and float32 ÷ down: how many times larger the same messages "
        f"are as raw float32. {FLIPS_NOTE} Strategy I: share of rounds with a quantized broadcast. Skipped: share of "
        "uploads that clients withheld."
        + (f" {left} points of sweeps, of the search and of the ablation have tables of their own." if left else ""),
    )
    links = tuple(anchor(number) for number, _ in chosen)
    return Sheet("summary", "Summary", headings, rows, texts=6, notes=notes, links=links, names=1).without_empty()


def _run_names(groups: Sequence[Group]) -> list[str]:
    """The name of each group; where another has the same, the folder of its first run too."""
    names = [group.name for group in groups]
    folders = [group.runs[0].folder.name for group in groups]
    return [
        f"{name} ({folder})" if names.count(name) > 1 else name for name, folder in zip(names, folders, strict=True)
    ]


def _names(groups: Sequence[Group]) -> list[str]:
    """The algorithm of each group, and what sets it apart from its likes in the same comparison."""
    names = list(map(method_label, groups))
    by_place: dict[Comparison, list[int]] = {}
    for number, group in enumerate(groups):
        by_place.setdefault(comparison_of(group), []).append(number)
    for numbers in by_place.values():
        for at, label in distinguish([groups[number] for number in numbers]).items():
            names[numbers[at]] = label
    return names


def _summary_row(group: Group, run: str, name: str) -> tuple[str, ...]:
    comparison = comparison_of(group)
    one = group.strategy_one()
    return (
        run,
        f"{comparison.data}, {comparison.split}",
        comparison.model,
        comparison.clients,
        name,
        rounds_label(group),
        seeds_text(group),
        accuracy_text(group),
        paper_text(group),
        validation_text(group),
        *(megabytes_text(group, way) for way in ("up", "down")),
        *(NONE if (times := group.compression(way)) is None else f"{times:.1f}" for way in ("up", "down")),
        bits_text(group),
        flips_text(group),
        NONE if one is None else f"{100 * one:.3g}",
        f"{100 * group.skipped():.1f}" if group.algorithm == "cmfl" and group.length else NONE,
    )


def iid(groups: Sequence[Group]) -> Sheet | None:
    return _pivot("iid", belonging(groups, "iid"), lambda group: f"{data_label(group)}, {model_label(group)}")


def non_iid(groups: Sequence[Group]) -> Sheet | None:
    def column(group: Group) -> str:
        return f"{data_label(group)}, {model_label(group)}, {split_label(group)}"

    return _pivot("non-iid", belonging(groups, "non-iid"), column)


def centralized(groups: Sequence[Group]) -> Sheet | None:
    """Table I: what the networks reach when all data lies in one place."""
    found = belonging(groups, "centralized")
    if not found:
        return None
    headings = ("model", "data", "optimizer", "learning rate", "epochs", "seeds", score_heading(found), "paper (%)")
    rows = tuple(
        (
            model_label(group),
            data_label(group),
            str(group.setting("training", "optimizer")),
            f"{group.setting('training', 'rate'):g}",
            str(group.length * group.setting("training", "epochs")) + ("" if group.finished else ", unfinished"),
            seeds_text(group),
            accuracy_text(group),
            paper_text(group),
        )
        for group in found
    )
    return Sheet("centralized", SHOWN["centralized"], headings, rows, texts=3, notes=(LAST,)).without_empty()


def participation(groups: Sequence[Group]) -> Sheet | None:
    """Accuracy and uploads by the share of clients that take part."""
    found = belonging(groups, "participation")
    if not found:
        return None
    columns = _series(found, lambda group: f"{method_label(group)}, {split_label(group)}")
    headings = ["λ"]
    for column in columns:
        headings += [f"{column}: {score_heading(found)}", "up (MB)"]
    rows = []
    for share in sorted({share_of(group) for group in found}):
        row = [f"{share:g}"]
        for own in columns.values():
            group = _one([group for group in own if share_of(group) == share])
            row += [NONE, NONE] if group is None else [accuracy_text(group), megabytes_text(group, "up")]
        rows.append(tuple(row))
    notes = (f"{LAST} {_circumstances(found)}",)
    return Sheet("participation", "Participation ratio in numbers", tuple(headings), tuple(rows), notes=notes)


def balance(groups: Sequence[Group]) -> Sheet | None:
    """Accuracy by β = median / max of the clients' sizes."""
    found = belonging(groups, "balance")
    if not found:
        return None
    columns = _series(found, method_label)
    rows = []
    for value in sorted({beta(group) for group in found}):
        own = [_one([group for group in series if beta(group) == value]) for series in columns.values()]
        rows.append((f"{value:g}", *(NONE if group is None else accuracy_text(group) for group in own)))
    notes = (f"{LAST} {_circumstances(found)}",)
    return Sheet("balance", "Unbalanced clients in numbers", ("β", *columns), tuple(rows), notes=notes)


def accuracy_text(group: Group, rounds: int = 1) -> str:
    """After the last round, or the mean of the last ones."""
    value = group.accuracy(rounds)
    if value is None:
        return NONE
    unfinished = "" if group.finished else f" (round {group.length} of {group.setting('federation', 'rounds')})"
    return value.text(_digits(group)) + unfinished


def flips_text(group: Group) -> str:
    """The share of trits that flipped in the first round, on average and in the last, and whether they rested."""
    shares = group.flips()
    if shares is None:
        return NONE
    return " / ".join(f"{100 * share:.2g}" for share in shares) + (", frozen" if group.warnings else "")


def score_heading(groups: Sequence[Group], instead: str | None = None) -> str:
    """The heading of a column of scores: the metric's, or this word in its place; `score` where metrics differ."""
    measures = {group.measure for group in groups if group.length} or {ACCURACY.measure}
    if len(measures) > 1:
        return instead or "score"
    (measure,) = measures
    return measure.heading if instead is None else replace(measure, name=instead).heading


def _digits(group: Group) -> int:
    return 2 if group.measure.percent else 4


def paper_text(group: Group) -> str:
    paper = None if group.row is None else group.row.paper
    if paper is None:
        return NONE
    return f"{paper.mean:.2f}" + ("" if paper.std is None else f" ± {paper.std:.2f}")


def seeds_text(group: Group) -> str:
    left = len(group.runs) - sum(run.finished for run in group.runs)
    return f"{len(group.shown)}, {left} more unfinished" if left and group.finished else str(len(group.runs))


def _pivot(name: str, found: Sequence[Group], column_of: Callable[[Group], str]) -> Sheet | None:
    """Algorithms by what they were run on, the paper's row below ours."""
    if not found:
        return None
    columns: dict[str, dict[str, Group]] = {}
    for column in dict.fromkeys(map(column_of, found)):
        inside = [group for group in found if column_of(group) == column]
        columns[column] = {label: inside[number] for number, label in distinguish(inside).items()}
    rows: list[tuple[str, ...]] = []
    quiet = []
    algorithms = {label: group.algorithm for own in columns.values() for label, group in own.items()}
    for label in sorted(algorithms, key=lambda label: (place("algorithm", algorithms[label]), label)):
        groups = [own.get(label) for own in columns.values()]
        mixed = [len(_lengths(own.values())) > 1 for own in columns.values()]
        rows.append((label, *(_pivot_cell(group, many) for group, many in zip(groups, mixed, strict=True))))
        papers = [NONE if group is None else paper_text(group) for group in groups]
        if any(text != NONE for text in papers):
            quiet.append(len(rows))
            rows.append((f"paper: {label}", *papers))
    quiet += [len(rows), len(rows) + 1]
    rows.append(("seeds", *(range_text([len(group.shown) for group in own.values()]) for own in columns.values())))
    rows.append(("rounds × epochs", *(", ".join(_lengths(own.values())) or NONE for own in columns.values())))
    several = any(len({len(group.shown) for group in own.values()}) > 1 for own in columns.values())
    notes = (LAST, *([UNEQUAL] if several else []))
    return Sheet(name, SHOWN[name], ("", *columns), tuple(rows), notes=notes, quiet=tuple(quiet))


def _pivot_cell(group: Group | None, mixed: bool) -> str:
    if group is None:
        return NONE
    return accuracy_text(group) + (
        f" ({rounds_label(group)})" if mixed and group.finished and not group.central else ""
    )


def _lengths(groups: Iterable[Group]) -> list[str]:
    return list(dict.fromkeys(rounds_label(group) for group in groups if not group.central))


def range_text(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _circumstances(groups: Sequence[Group]) -> str:
    """What a sweep holds fixed."""
    data = ", ".join(dict.fromkeys(f"{data_label(group)}, {model_label(group)}" for group in groups))
    seeds = range_text([len(group.shown) for group in groups])
    return f"{data}; rounds × epochs: {', '.join(_lengths(groups))}; seeds: {seeds}."


def _series(groups: Sequence[Group], label: Callable[[Group], str]) -> dict[str, list[Group]]:
    """A sweep's groups by label, and by network where there are several."""
    several = len({(data_label(group), model_label(group)) for group in groups}) > 1
    series: dict[str, list[Group]] = {}
    for group in groups:
        where = f"{data_label(group)}, {model_label(group)}: " if several else ""
        series.setdefault(where + label(group), []).append(group)
    return series


def share_of(group: Group) -> float:
    """λ."""
    return float(group.setting("federation", "participation"))


def beta(group: Group) -> float:
    """β of a partition; one that is not unbalanced has 1."""
    return float(group.setting("data", "balance") or 1.0)


def _one(groups: Sequence[Group]) -> Group | None:
    """Of several that a table cannot tell apart, the one with the most seeds."""
    return max(groups, key=lambda group: (group.finished, len(group.shown)), default=None)


def validation_text(group: Group, rounds: int = 1) -> str:
    return NONE if (value := group.validation(rounds)) is None else value.text(_digits(group))


def bits_text(group: Group) -> str:
    return NONE if (bits := group.bits_up()) is None else f"{bits:.3f}"


def megabytes_text(group: Group, way: str) -> str:
    total = group.total(lambda record: float(getattr(record, f"bytes_{way}")))
    return NONE if group.central or not group.length else f"{total / 1e6:,.2f}"


def title_of(group: Group) -> str:
    return group.name if group.row is None else group.row.about.title

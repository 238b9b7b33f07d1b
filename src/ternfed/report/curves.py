"""Pictures of accuracy: over rounds and bits, by participation, by unbalancedness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ternfed.paper.belonging import belonging, compared
from ternfed.paper.groups import Group, shown_score
from ternfed.paper.numbers import MEGABIT
from ternfed.report.accuracy import beta, share_of
from ternfed.report.labels import by_comparison, data_label, distinguish, method_label, model_label, split_label
from ternfed.report.style import (
    Picture,
    by_round,
    colour_of,
    dash_of,
    finish,
    label_ends,
    panels,
    plain_log,
    shade,
)
from ternfed.runs.records import Round

Numbers = NDArray[np.float64]
BITS = "uploaded so far (Mb = 2²⁰ bits)"
HEIGHT = 3.5
"""Inches of a panel."""


class Curve(NamedTuple):
    """A value by round: the mean over the seeds, and their standard deviation."""

    mean: Numbers
    std: Numbers | None


def curve(group: Group, value: Callable[[Round], float | None]) -> Curve:
    """A value of each round that all shown seeds have; what a round has not is NaN."""
    table = [[value(record) for record in run.rounds[: group.length]] for run in group.shown]
    numbers = np.array([[np.nan if x is None else x for x in row] for row in table], dtype=np.float64)
    numbers = numbers.reshape(len(table), group.length)
    return Curve(numbers.mean(0), numbers.std(0, ddof=1) if len(table) > 1 else None)


def accuracy_curve(group: Group) -> Curve:
    return curve(group, shown_score)


def uploaded(group: Group) -> Numbers:
    """Mb uploaded up to each round, the mean over the seeds."""
    sums: Numbers = np.cumsum(curve(group, lambda record: 8 * record.bytes_up / MEGABIT).mean)
    return sums


def convergence(groups: Sequence[Group]) -> Iterator[Picture]:
    """One picture for each data, model and partition: all algorithms over rounds, and over bits uploaded."""
    chosen = [group for group in compared(groups) if group.length > 1]
    comparisons = by_comparison(chosen)
    alone = [group for group in chosen if group.central and not any(group in inside for inside in comparisons.values())]
    for comparison, inside in comparisons.items():
        several = sum(other[:3] == comparison[:3] for other in comparisons) > 1
        title = comparison.text() + (f", {comparison.clients}" if several else "")
        five = any(group.shows("convergence-nc5") for group in inside) or comparison.split == "N_c = 5"
        section = "Convergence with five classes per client" if five else "Convergence"
        labels = distinguish(inside)
        yield _pair(inside, [labels[place] for place in range(len(inside))], f"convergence {title}", section, title)
    if alone:
        figure, axes = panels(HEIGHT)
        for group in alone:
            _line(axes[0, 0], np.arange(1, group.length + 1), accuracy_curve(group), colour_of(group.algorithm), "-")
        names = [f"{data_label(group)}, {model_label(group)}" for group in alone]
        _over_rounds(axes[0, 0], alone, names, [colour_of(group.algorithm) for group in alone])
        axes[0, 0].set_title("Centralized training")
        caption = f"Test {alone[0].measure.name}."
        yield finish(figure, "convergence centralized", "Convergence", "Centralized training", caption)


def _pair(groups: Sequence[Group], labels: Sequence[str], name: str, section: str, title: str) -> Picture:
    figure, axes = panels(HEIGHT + 0.3, 1, 2, sharey=True, width_ratios=(1, 1))
    seen: dict[str, int] = {}
    looks = []
    for group in groups:
        place = seen.setdefault(group.algorithm, 0)
        seen[group.algorithm] += 1
        looks.append((colour_of(group.algorithm), dash_of(group.algorithm, place)))
    _draw_pair(axes[0], groups, labels, looks)
    axes[0, 0].set_title(title)
    seeds = sorted({len(group.shown) for group in groups})
    band = " The band is one standard deviation over seeds." if seeds[-1] > 1 else ""
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    unfinished = "" if all(group.finished for group in groups) else " Some of these runs are unfinished."
    what = f"Test {groups[0].measure.name} over rounds and over bits uploaded by all clients"
    caption = f"{what}; {count} seed{'s' * (count != '1')}."
    return finish(figure, name, section, title, caption + band + unfinished)


def _draw_pair(axes: Any, groups: Sequence[Group], labels: Sequence[str], looks: Sequence[tuple[str, Any]]) -> None:
    """Accuracy over rounds on the first axes, over bits uploaded on the second."""
    for group, (colour, dash) in zip(groups, looks, strict=True):
        found = accuracy_curve(group)
        _line(axes[0], np.arange(1, group.length + 1), found, colour, dash)
        if not group.central:
            _line(axes[1], uploaded(group), found, colour, dash)
    axes[1].set(xlabel=BITS, xscale="log")
    axes[1].tick_params(labelleft=True)
    plain_log(axes[1].xaxis)
    _over_rounds(axes[0], groups, labels, [colour for colour, _ in looks])


def _line(panel: Any, places: Any, found: Curve, colour: str, dash: Any) -> None:
    mean, std = found
    panel.plot(places, mean, color=colour, linestyle=dash)
    if std is not None:
        panel.fill_between(places, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)


def _over_rounds(panel: Any, groups: Sequence[Group], labels: Sequence[str], colours: Sequence[str]) -> None:
    means = [accuracy_curve(group).mean for group in groups]
    measure = groups[0].measure
    panel.set(ylabel=f"test {measure.heading}", ylim=_limits(means) if measure.percent else None)
    by_round(panel, max(group.length for group in groups))
    ends = [(float(mean[-1]), label, colour) for mean, label, colour in zip(means, labels, colours, strict=True)]
    label_ends(panel, ends, HEIGHT - 0.7)


def _limits(means: Sequence[Numbers]) -> tuple[float, float]:
    """From where every curve has left its first rounds behind, so that the differences are seen, to a bit above."""
    early = [mean[min(len(mean) - 1, len(mean) // 12)] for mean in means]
    finite = [value for value in early if np.isfinite(value)] or [0.0]
    top = max((float(np.nanmax(mean)) for mean in means if np.isfinite(mean).any()), default=100.0)
    low = max(0.0, min(finite) - 2)
    return (low if top - low > 4 else max(0.0, top - 4)), min(100.0, top + max(0.5, 0.04 * (top - low)))


def participation(groups: Sequence[Group]) -> Iterator[Picture]:
    """λ's influence: over rounds and over bits uploaded, one row of panels per partition."""
    families: dict[tuple[str, str, str], list[Group]] = {}
    for group in belonging(groups, "participation"):
        if group.length > 1:
            families.setdefault((data_label(group), model_label(group), method_label(group)), []).append(group)
    for (data, model, algorithm), family in families.items():
        splits = list(dict.fromkeys(map(split_label, family)))
        figure, axes = panels(HEIGHT * len(splits) + 0.2, len(splits), 2, sharex="col", sharey="row")
        shares = sorted({share_of(group) for group in family})
        for row, split in zip(axes, splits, strict=True):
            inside = [group for group in family if split_label(group) == split]
            looks = [(shade(shares.index(share_of(group)), len(shares)), "-") for group in inside]
            _draw_pair(row, inside, [f"λ = {share_of(group):g}" for group in inside], looks)
            row[0].set_title(f"{data}, {model}, {split}")
        for row in axes[:-1]:
            for panel in row:
                panel.set_xlabel("")
        title = f"{algorithm}: {data}, {model}"
        caption = (
            "Test accuracy by the share λ of clients that take part in each round. "
            "The band is one standard deviation over seeds."
        )
        name = f"participation {data} {model} {algorithm}"
        yield finish(figure, name, "Participation ratio", title, caption)


def balance(groups: Sequence[Group]) -> Iterator[Picture]:
    """Accuracy after the last round by β, one line per algorithm."""
    families: dict[tuple[str, str], list[Group]] = {}
    for group in belonging(groups, "balance"):
        if group.length:
            families.setdefault((data_label(group), model_label(group)), []).append(group)
    for (data, model), family in families.items():
        figure, axes = panels(HEIGHT + 0.4)
        panel = axes[0, 0]
        ends = []
        for label in dict.fromkeys(map(method_label, family)):
            inside = sorted((group for group in family if method_label(group) == label), key=beta)
            spreads = [value for group in inside if (value := group.accuracy()) is not None]
            means = [value.mean for value in spreads]
            errors = [value.std or 0.0 for value in spreads]
            colour = colour_of(inside[0].algorithm)
            panel.errorbar(
                [beta(group) for group in inside], means, errors, color=colour, marker="o", markersize=4.5, capsize=2.5,
                elinewidth=1, linestyle=dash_of(inside[0].algorithm, 0),
            )  # fmt: skip
            ends.append((means[-1], label, colour))
        panel.set(xlabel="β = median / max of the clients' sizes", ylabel=f"test {family[0].measure.heading}")
        panel.set_title(f"{data}, {model}")
        label_ends(panel, ends, HEIGHT - 0.6)
        caption = "Test accuracy after the last round. The bars are one standard deviation over seeds."
        title = f"{data}, {model}"
        yield finish(figure, f"balance {data} {model}", "Unbalanced clients", title, caption)

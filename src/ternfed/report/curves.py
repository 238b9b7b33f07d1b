"""Pictures of accuracy and loss: over rounds and bytes, by participation, by unbalancedness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ternfed.paper.belonging import belonging, compared
from ternfed.paper.groups import Group, shown_score
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
MEGABYTES = "uploaded so far (megabytes, log scale)"
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
    """Megabytes uploaded up to each round, the mean over the seeds."""
    sums: Numbers = np.cumsum(curve(group, lambda record: record.bytes_up / 1e6).mean)
    return sums


def convergence(groups: Sequence[Group]) -> Iterator[Picture]:
    """One picture for each data, model and partition: all algorithms over rounds, and over megabytes uploaded."""
    chosen = [group for group in compared(groups) if group.length > 1]
    comparisons = by_comparison(chosen)
    alone = [group for group in chosen if group.central and not any(group in inside for inside in comparisons.values())]
    for comparison, inside in comparisons.items():
        several = sum(other[:3] == comparison[:3] for other in comparisons) > 1
        title = comparison.text(with_clients=several)
        five = any(group.shows("convergence-nc5") for group in inside) or comparison.split == "N_c = 5"
        section = "Convergence with five classes per client" if five else "Convergence"
        labels = distinguish(inside)
        yield _pair(inside, [labels[place] for place in range(len(inside))], f"convergence {title}", section, title)
    if alone:
        figure, axes = panels(HEIGHT)
        names = [f"{data_label(group)}, {model_label(group)}" for group in alone]
        for group, name in zip(alone, names, strict=True):
            places, colour = np.arange(1, group.length + 1), colour_of(group.algorithm)
            _line(axes[0, 0], places, accuracy_curve(group), colour, "-", name)
        _over_rounds(axes[0, 0], alone, names, [colour_of(group.algorithm) for group in alone])
        axes[0, 0].set_title("Centralized training")
        caption = f"Test {alone[0].measure.name}."
        yield finish(figure, "convergence centralized", "Convergence", "Centralized training", caption)


def _pair(groups: Sequence[Group], labels: Sequence[str], name: str, section: str, title: str) -> Picture:
    figure, axes = panels(HEIGHT + 0.3, 1, 2, sharey=True, width_ratios=(1, 1))
    _draw_pair(axes[0], groups, labels, _looks(groups))
    axes[0, 0].set_title(title)
    seeds = sorted({len(group.shown) for group in groups})
    band = " The band is one standard deviation over seeds." if seeds[-1] > 1 else ""
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    unfinished = "" if all(group.finished for group in groups) else " Some of these runs are unfinished."
    what = f"Test {groups[0].measure.name} over rounds and over megabytes uploaded by all clients"
    caption = f"{what}; {count} seed{'s' * (count != '1')}."
    return finish(figure, name, section, title, caption + band + unfinished)


def _looks(groups: Sequence[Group]) -> list[tuple[str, Any]]:
    """Colour and dash of each: the colour of its algorithm, and another dash for a second group of it."""
    seen: dict[str, int] = {}
    looks = []
    for group in groups:
        place = seen.setdefault(group.algorithm, 0)
        seen[group.algorithm] += 1
        looks.append((colour_of(group.algorithm), dash_of(group.algorithm, place)))
    return looks


def _draw_pair(axes: Any, groups: Sequence[Group], labels: Sequence[str], looks: Sequence[tuple[str, Any]]) -> None:
    """Accuracy over rounds on the first axes, over megabytes uploaded on the second."""
    for group, label, (colour, dash) in zip(groups, labels, looks, strict=True):
        found = accuracy_curve(group)
        _line(axes[0], np.arange(1, group.length + 1), found, colour, dash, label)
        if not group.central:
            _line(axes[1], uploaded(group), found, colour, dash, label)
    axes[1].set(xlabel=MEGABYTES, xscale="log")
    axes[1].tick_params(labelleft=True)
    plain_log(axes[1].xaxis)
    _over_rounds(axes[0], groups, labels, [colour for colour, _ in looks])


def _line(panel: Any, places: Any, found: Curve, colour: str, dash: Any, name: str) -> None:
    mean, std = found
    panel.plot(places, mean, color=colour, linestyle=dash, label=name)
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
    """All rounds of every curve, and a bit above and below."""
    finite = [mean[np.isfinite(mean)] for mean in means if np.isfinite(mean).any()]
    top = max((float(mean.max()) for mean in finite), default=100.0)
    low = max(0.0, min((float(mean.min()) for mean in finite), default=0.0) - 2)
    return (low if top - low > 4 else max(0.0, top - 4)), min(100.0, top + max(0.5, 0.04 * (top - low)))


def losses(groups: Sequence[Group]) -> Iterator[Picture]:
    """One picture for each data, model and partition: the loss on test data, and that of the clients' training."""
    chosen = [group for group in compared(groups) if group.length > 1]
    comparisons = by_comparison(chosen)
    for comparison, inside in comparisons.items():
        several = sum(other[:3] == comparison[:3] for other in comparisons) > 1
        title = comparison.text(with_clients=several)
        figure, axes = panels(HEIGHT + 0.3, 1, 2)
        labels, looks = distinguish(inside), _looks(inside)
        values = ((axes[0, 0], lambda record: record.loss), (axes[0, 1], lambda record: record.train_loss))
        for panel, value in values:
            ends = []
            for place, (group, (colour, dash)) in enumerate(zip(inside, looks, strict=True)):
                found = curve(group, value)
                if np.isfinite(found.mean).any():
                    _line(panel, np.arange(1, group.length + 1), found, colour, dash, labels[place])
                    ends.append((float(found.mean[-1]), labels[place], colour))
            by_round(panel, max(group.length for group in inside))
            label_ends(panel, ends if panel is axes[0, 0] else [], HEIGHT - 0.7)
        axes[0, 0].set(ylabel="test loss", title=title)
        axes[0, 1].set(ylabel="training loss")
        caption = "Loss on test data, and the mean over the clients' last local epochs on their own data."
        yield finish(figure, f"loss {title}", "Loss", title, caption)


def participation(groups: Sequence[Group]) -> Iterator[Picture]:
    """λ's influence: over rounds and over megabytes uploaded, one row of panels per partition."""
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

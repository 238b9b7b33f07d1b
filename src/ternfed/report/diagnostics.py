"""Pictures of what happens inside a run: who holds what, bits by layer, trits that change, strategies, seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternfed.paper.belonging import belonging, compared
from ternfed.paper.groups import Group
from ternfed.report.accuracy import beta
from ternfed.report.curves import Numbers, curve
from ternfed.report.labels import by_comparison, data_label, distinguish, model_label, split_label
from ternfed.report.style import (
    INK,
    Picture,
    by_round,
    by_share,
    colour_of,
    finish,
    label_ends,
    name_rows,
    narrow,
    panels,
    plain_log,
    shade,
)
from ternfed.runs.records import Round

PHASES = {
    "broadcast": "#a9cce3", "prepare": "#86bcb6", "train": "#4c6a92", "upload": "#b07aa1", "aggregate": "#e3c567",
    "evaluate": "#bab0ac",
}  # fmt: skip
"""None of them an algorithm's colour."""
ONE, TWO = "#d55e00", "#f3d9c8"
"""Strategy I and II."""
NOTHING = (1.0, 1.0, 1.0, 0.0)
"""Where a heatmap has no value the page shows through, light or dark."""


def distributions(groups: Sequence[Group]) -> Iterator[Picture]:
    """Classes by clients: the partitions of one data set side by side, and the sizes of unbalanced ones."""
    noted = [group for group in groups if group.runs[0].partition is not None and not group.central]
    swept = {id(group) for group in belonging(groups, "balance")}
    panes: dict[str, dict[tuple[str, int], NDArray[np.int64]]] = {}
    sizes: dict[str, dict[float, NDArray[np.int64]]] = {}
    of: dict[str, set[int]] = {}
    for group in noted:
        of.setdefault(data_label(group), set()).add(group.runs[0].seed)
    seeds = {data: " or ".join(map(str, sorted(own))) for data, own in of.items()}
    for group in noted:
        counts = np.array(group.runs[0].partition, dtype=np.int64)
        if counts.ndim != 2 or not counts.size:
            continue
        if id(group) in swept:
            sizes.setdefault(data_label(group), {}).setdefault(beta(group), np.sort(counts.sum(1))[::-1])
        else:
            panes.setdefault(data_label(group), {}).setdefault((split_label(group), len(counts)), counts)
    for data, found in panes.items():
        ordered = dict(sorted(found.items(), key=lambda item: (item[0][0] == "IID", item[0])))
        yield _distribution(data, ordered, seeds[data])
    for data, by_beta in sizes.items():
        figure, axes = panels(3.4)
        ends = []
        for place, (value, own) in enumerate(sorted(by_beta.items())):
            colour = shade(place, len(by_beta))
            axes[0, 0].plot(np.arange(1, len(own) + 1), np.maximum(own, 1), color=colour)
            ends.append((max(1.0, float(own[-1])), f"β = {value:g}", colour))
        axes[0, 0].set(xlabel="client, by size", ylabel="samples, log scale", title=data, yscale="log")
        axes[0, 0].set_xlim(0, max(map(len, by_beta.values())))
        plain_log(axes[0, 0].yaxis)
        label_ends(axes[0, 0], ends, 2.5)
        caption = f"Samples per client, largest first (seed {seeds[data]})."
        yield finish(figure, f"sizes {data}", "Data distributions", f"{data}: sizes of unbalanced clients", caption)


def _distribution(data: str, panes: dict[tuple[str, int], NDArray[np.int64]], seed: str) -> Picture:
    import matplotlib
    from matplotlib.colors import ListedColormap
    from matplotlib.ticker import MaxNLocator

    figure, axes = panels(3.6, 1, len(panes), sharey=True)
    blues = matplotlib.colormaps["Blues"](np.linspace(0.18, 0.95, 256))  # one sample is not none
    colours = ListedColormap(blues).with_extremes(bad=NOTHING)
    most = max(int(counts.max()) for counts in panes.values())
    drawn: Any = None
    for panel, ((split, clients), counts) in zip(axes[0], panes.items(), strict=True):
        shown = np.where(counts.T > 0, counts.T.astype(float), np.nan)
        drawn = panel.imshow(
            shown, cmap=colours, vmin=0, vmax=most, aspect="auto", interpolation="none", origin="lower"
        )  # fmt: skip
        panel.set(xlabel="client", title=f"{data}, {split}, {clients} clients")
        panel.grid(visible=False)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        panel.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        if clients <= 10 and len(panes) <= 3:
            for column, row in zip(*counts.nonzero(), strict=True):
                ink = "white" if counts[column, row] > 0.5 * most else INK
                panel.text(column, row, f"{counts[column, row]:,}", ha="center", va="center", fontsize=8, color=ink)
    axes[0, 0].set_ylabel("class")
    figure.colorbar(drawn, ax=axes[0].tolist(), label="samples", pad=0.01, aspect=22).outline.set_visible(False)
    caption = f"How many samples of each class each client holds (seed {seed}); empty: none."
    return finish(figure, f"distribution {data}", "Data distributions", data, caption)


def layers(groups: Sequence[Group]) -> Iterator[Picture]:
    """Bits per weight of each ternary layer over the run: one picture per group, or per network with few layers."""
    caption = (
        "Entropy of a layer's trits in the uploads, given those of the broadcast that both sides know: "
        "what the layer costs on the wire. Mean over clients and seeds."
    )
    few: dict[str, dict[str, Numbers]] = {}
    for title, group in _ternary(groups):
        names = list(group.shown[0].rounds[0].layer_bits or {})
        bits = {name.removesuffix(".weight"): curve(group, partial(_layer_bits, name)).mean for name in names}
        network = f"{data_label(group)}, {model_label(group)}"
        if 0 < len(names) <= 3:
            split = title.removeprefix(f"{network}, ")
            few.setdefault(network, {}).update({f"{split}: {name}": value for name, value in bits.items()})
        elif names:
            figure = _many_layers(list(bits), np.stack(list(bits.values())))
            figure.axes[0].set_title(title)
            yield finish(figure, f"layers {title}", "Compression by layer", title, caption)
    for network, lines in few.items():
        figure = _few_layers(lines)
        figure.axes[0].set_title(network)
        yield finish(figure, f"layers {network}", "Compression by layer", network, caption)


def _few_layers(lines: Mapping[str, Numbers]) -> Any:
    figure, axes = panels(3.3)
    panel, ends = axes[0, 0], []
    for place, (name, bits) in enumerate(lines.items()):
        colour = shade(place + 1, len(lines) + 2)
        panel.plot(np.arange(1, len(bits) + 1), bits, color=colour)
        ends.append((float(bits[-1]), name, colour))
    panel.set(ylabel="bits per weight, upload")
    by_round(panel, max(map(len, lines.values())))
    panel.set_ylim(0, None)
    label_ends(panel, ends, 2.5)
    return figure


def _many_layers(names: Sequence[str], table: Numbers) -> Any:
    from matplotlib.ticker import MaxNLocator

    rounds = table.shape[1]
    figure, axes = panels(1.3 + 0.21 * len(names), 1, 2, sharey=True, width_ratios=(3, 1))
    drawn = axes[0, 0].imshow(
        table, aspect="auto", interpolation="none", cmap="YlOrBr", vmin=0,
        extent=(0.5, rounds + 0.5, len(names) - 0.5, -0.5),
    )  # fmt: skip
    name_rows(axes[0, 0], names)
    axes[0, 0].set(xlabel="round")
    axes[0, 0].xaxis.set_major_locator(MaxNLocator(nbins=5 if narrow() else "auto", integer=True))
    axes[0, 0].grid(visible=False)
    bar = figure.colorbar(drawn, ax=axes[0, 0], label="bits per weight, upload", pad=0.01, aspect=30)
    bar.outline.set_visible(False)
    means = np.nanmean(table, axis=1)
    axes[0, 1].barh(range(len(names)), means, color=colour_of("tfedavg"), height=0.7)
    for place, value in enumerate(means):
        axes[0, 1].text(value, place, f" {value:.2g}", va="center", fontsize=8.5)
    axes[0, 1].set(xlabel="mean over the run")
    axes[0, 1].xaxis.set_major_locator(MaxNLocator(nbins=3))
    axes[0, 1].grid(axis="y", visible=False)
    axes[0, 1].margins(x=0.2)
    return figure


def changed(groups: Sequence[Group]) -> Iterator[Picture]:
    """The share of trits that a broadcast changes, by round; one panel for each network."""
    networks: dict[tuple[str, str], list[Group]] = {}
    for _, group in _ternary(groups):
        networks.setdefault((data_label(group), model_label(group)), []).append(group)
    if not networks:
        return
    columns = 2 if len(networks) > 1 and not narrow() else 1
    rows = -(-len(networks) // columns)
    figure, axes = panels(2.9 * rows + 0.3, rows, columns)
    for panel in axes.flat[len(networks) :]:
        panel.set_visible(False)
    for panel, ((data, model), inside) in zip(axes.flat, networks.items(), strict=False):
        ends = []
        for place, (label, group) in enumerate(_by_split(inside)):
            share = 100 * curve(group, lambda record: record.changed).mean
            colour = shade(place + 1, len(inside) + 2)
            panel.plot(np.arange(1, len(share) + 1), share, color=colour)
            ends.append((float(share[-1]), label, colour))
        panel.set_title(f"{data}, {model}")
        by_round(panel, max(group.length for group in inside))
        by_share(panel, "trits changed (%)")
        label_ends(panel, ends, 2.1)
    caption = (
        "Share of the broadcast's trits that differ from the previous broadcast's, on a logarithmic scale that ends "
        "at zero. Mean over seeds."
    )
    yield finish(figure, "changed trits", "Share of changed trits", "Changed trits by round", caption)


def _by_split(groups: Sequence[Group]) -> Iterator[tuple[str, Group]]:
    """Groups of one network, each with its partition, and what sets it apart from others with the same one."""
    for split in dict.fromkeys(map(split_label, groups)):
        alike = [group for group in groups if split_label(group) == split]
        for place, label in distinguish(alike).items():
            yield split if len(alike) == 1 else f"{split}: {label}", alike[place]


def strategies(groups: Sequence[Group]) -> Iterator[Picture]:
    """One strip per group: which strategy each round had."""
    from matplotlib.colors import LinearSegmentedColormap

    found = [(title, group) for title, group in _ternary(groups) if group.strategy_one() is not None]
    if not found:
        return
    longest = max(group.length for _, group in found)
    table = np.full((len(found), longest), np.nan)
    for place, (_, group) in enumerate(found):
        table[place, : group.length] = curve(group, lambda record: float(record.strategy == "I")).mean
    figure, axes = panels(1.2 + 0.3 * len(found))
    panel = axes[0, 0]
    colours = LinearSegmentedColormap.from_list("strategies", [TWO, ONE]).with_extremes(bad=NOTHING)
    panel.imshow(
        table, aspect="auto", interpolation="none", cmap=colours, vmin=0, vmax=1,
        extent=(0.5, longest + 0.5, len(found) - 0.5, -0.5),
    )  # fmt: skip
    name_rows(panel, [title for title, _ in found])
    panel.hlines(np.arange(1, len(found)) - 0.5, 0.5, longest + 0.5, color="white", linewidth=2)
    panel.set(xlabel="round")
    panel.grid(visible=False)
    for place, (_, group) in enumerate(found):
        one = group.strategy_one() or 0.0
        panel.text(longest + 0.5, place, f"  {100 * one:.3g}%", va="center", fontsize=9)
    caption = (
        "Full colour: Strategy I, the quantized model is broadcast. Faint: Strategy II, the full-precision model is. "
        "In between: seeds differ. At the right, the share of rounds with Strategy I."
    )
    yield finish(figure, "strategies", "Strategy by round", "Strategy by round", caption)


def seconds(groups: Sequence[Group]) -> Iterator[Picture]:
    """Where the time of a round goes: one bar per group."""
    from matplotlib.patches import Patch

    found = []
    for comparison, inside in by_comparison([group for group in compared(groups) if _phases(group)]).items():
        labels = distinguish(inside)
        found += [(f"{comparison.text()}: {labels[place]}", group) for place, group in enumerate(inside)]
    if not found:
        return
    figure, axes = panels(1.5 + 0.3 * len(found))
    panel = axes[0, 0]
    for place, (_, group) in enumerate(found):
        means = _phases(group)
        total, left = sum(means.values()), 0.0
        for phase, value in means.items():
            panel.barh(place, 100 * value / total, left=left, color=PHASES.get(phase, "#bbbbbb"), height=0.72)
            left += 100 * value / total
        panel.text(101, place, f"{total:.3g} s", va="center", fontsize=9)
    name_rows(panel, [title for title, _ in found])
    panel.invert_yaxis()
    panel.set(xlabel="share of a round's time (%)", xlim=(0, 100))
    panel.grid(visible=False)
    known = [phase for phase in PHASES if any(phase in _phases(group) for _, group in found)]
    handles = [Patch(facecolor=PHASES[phase], label=phase) for phase in known]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=3 if narrow() else len(handles), frameon=False, fontsize=9.5
    )
    caption = "At the right, the mean seconds per round. The settings below say on which machine."
    yield finish(figure, "seconds", "Seconds by phase", "Seconds by phase", caption)


def _ternary(groups: Sequence[Group]) -> list[tuple[str, Group]]:
    """Groups whose broadcasts have trits, each with a title; not the control, whose trits never change."""
    found = []
    learning = [group for group in compared(groups) if group.length > 1 and group.role != "frozen"]
    for comparison, inside in by_comparison(learning).items():
        own = [group for group in inside if any(record.changed is not None for record in group.shown[0].rounds)]
        labels = distinguish(own)
        alone = len(own) == 1 and own[0].algorithm == "tfedavg"
        found += [
            (comparison.text() if alone else f"{comparison.text()}: {labels[at]}", group)
            for at, group in enumerate(own)
        ]
    return found


def _layer_bits(name: str, record: Round) -> float | None:
    return None if record.layer_bits is None else record.layer_bits.get(name)


def _phases(group: Group) -> dict[str, float]:
    """Mean seconds of a round by phase, over the rounds that were timed; {} where none was."""
    timed = [record.seconds for run in group.shown for record in run.rounds if record.seconds]
    names = dict.fromkeys(name for seconds in timed for name in seconds)
    means = {name: sum(seconds.get(name, 0.0) for seconds in timed) / len(timed) for name in names}
    return means if sum(means.values()) > 0 else {}

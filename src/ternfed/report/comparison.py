"""A picture of a few runs side by side, made from their records alone: the demonstration's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ternfed.paper.groups import ORDER, shown_score
from ternfed.report.labels import algorithm_label
from ternfed.report.style import (
    by_round,
    by_share,
    colour_of,
    dash_of,
    drawing,
    label_ends,
    name_below,
    panels,
    plain_log,
)
from ternfed.runs.records import Round

HEIGHT = 3.8
LONG = 30
"""Letters of a name that has no room between two panels."""


def comparison_picture(runs: Mapping[str, Sequence[Round]], path: str | Path, title: str = "") -> Path:
    """The score over rounds and over bytes sent, and the share of trits that flipped where trits travel.

    One line per run, as a PNG or whatever the path ends in.
    """
    path = Path(path)
    with drawing():
        figure = comparison_figure(runs, title)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return path


def comparison_figure(runs: Mapping[str, Sequence[Round]], title: str = "") -> Any:
    """The same as a figure, to be drawn inside `drawing`."""
    measure = next(iter(runs.values()))[0].measure
    looks = _looks(list(runs))
    flips = {name: [r for r in rounds if r.changed is not None] for name, rounds in runs.items()}
    longest = max(map(len, runs.values()))
    figure, axes = panels(HEIGHT, 1, 3 if any(flips.values()) else 2)
    over_rounds, over_bytes = axes[0, :2]
    over_bytes.sharey(over_rounds)
    ends = []
    for name, rounds in runs.items():
        scores = [shown_score(record) for record in rounds]
        sent = list(accumulate((record.bytes_up + record.bytes_down) / 1e6 for record in rounds))
        over_rounds.plot([record.round for record in rounds], scores, label=name, **looks[name])
        over_bytes.plot(sent, scores, label=name, **looks[name])
        ends.append((scores[-1], name, looks[name]["color"]))
    over_rounds.set(ylabel=f"test {measure.heading}", title=title)
    by_round(over_rounds, longest)
    over_bytes.set(xlabel="megabytes sent, both directions, log scale", xscale="log")
    plain_log(over_bytes.xaxis)
    if max(map(len, runs)) > LONG:
        name_below(over_rounds, [(name, looks[name]["color"]) for name in runs])
    else:
        label_ends(over_rounds, ends, HEIGHT - 0.9)
    for panel in axes[0, 2:]:
        for name, rounds in flips.items():
            shares = [100 * (record.changed or 0.0) for record in rounds]
            panel.plot([record.round for record in rounds], shares, clip_on=False, label=name, **looks[name])
        by_round(panel, longest)
        by_share(panel, "trits that flipped (%)")
    return figure


def _looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The colour of each run's algorithm, and a dash for the second, third, … of one algorithm."""
    looks, seen = {}, dict.fromkeys(map(_algorithm, names), 0)
    for name in names:
        algorithm = _algorithm(name)
        looks[name] = {"color": colour_of(algorithm), "linestyle": dash_of(algorithm, seen[algorithm])}
        seen[algorithm] += 1
    return looks


def _algorithm(label: str) -> str:
    """The algorithm that a run is named after (`T-FedAvg, frozen`), so that it has its colour here too."""
    first = label.partition(",")[0]
    return next((name for name in ORDER["algorithm"] if algorithm_label(name) == first), label)

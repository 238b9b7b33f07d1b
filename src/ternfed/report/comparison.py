"""A picture of a few runs side by side, made from their records alone: the demonstration's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from ternfed.paper.groups import ORDER, shown_score
from ternfed.report.labels import algorithm_label
from ternfed.report.style import by_round, colour_of, drawing, label_ends, panels, plain_log
from ternfed.runs.records import Round

HEIGHT = 3.8


def comparison_picture(runs: Mapping[str, Sequence[Round]], path: str | Path, title: str = "") -> Path:
    """The score over rounds and over bytes sent, one line per run, as a PNG or whatever the path ends in."""
    measure = next(iter(runs.values()))[0].measure
    path = Path(path)
    with drawing():
        figure, axes = panels(HEIGHT, 1, 2, sharey=True)
        over_rounds, over_bytes = axes[0]
        ends = []
        for name, rounds in runs.items():
            scores = [shown_score(record) for record in rounds]
            sent = list(accumulate((record.bytes_up + record.bytes_down) / 1e6 for record in rounds))
            colour = colour_of(_algorithm(name))
            over_rounds.plot([record.round for record in rounds], scores, color=colour)
            over_bytes.plot(sent, scores, color=colour)
            ends.append((scores[-1], name, colour))
        over_rounds.set(ylabel=f"test {measure.heading}", title=title)
        by_round(over_rounds, max(map(len, runs.values())))
        over_bytes.set(xlabel="megabytes sent, both directions", xscale="log")
        over_bytes.tick_params(labelleft=True)
        plain_log(over_bytes.xaxis)
        label_ends(over_rounds, ends, HEIGHT - 0.9)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    return path


def _algorithm(label: str) -> str:
    """The algorithm that a run is named after, so that it has its colour here too."""
    return next((name for name in ORDER["algorithm"] if algorithm_label(name) == label), label)

"""Pictures of runs, made from their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ternfed.runs.folder import Round

COLOURS = ("#3b6ea5", "#c8553d", "#588157", "#8d6a9f", "#b08900")


def comparison_picture(runs: Mapping[str, Sequence[Round]], path: str | Path, title: str = "") -> Path:
    """The score over rounds and over bytes sent, one line a run, as a PNG or whatever the path ends in."""
    plt = _pyplot()
    figure, (over_rounds, over_bytes) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for (name, rounds), colour in zip(runs.items(), COLOURS, strict=False):
        scores = [record.measure.scaled(record.score) for record in rounds]
        over_rounds.plot([record.round for record in rounds], scores, color=colour, label=name)
        over_bytes.plot(_sent(rounds), scores, color=colour, label=name)
    measure = next(iter(runs.values()))[0].measure
    over_rounds.set(xlabel="round", ylabel=f"test {measure.heading}")
    over_bytes.set(xlabel="megabytes sent, both directions", xscale="log")
    for axes in (over_rounds, over_bytes):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    over_rounds.legend(frameon=False)
    if title:
        figure.suptitle(title)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _sent(rounds: Sequence[Round]) -> list[float]:
    total, sums = 0.0, []
    for record in rounds:
        total += (record.bytes_up + record.bytes_down) / 1e6
        sums.append(total)
    return sums


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'ternfed[report]'") from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt

"""What client-level privacy costs: ε against accuracy on MNIST.

    ternfed bench privacy --into docs/security.md

A thousand clients of about sixty samples, half of them in each of ten rounds: noise is shared by all who take part,
so that it needs many. One seed; the clip was not tuned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ternfed.bench.tables import markdown
from ternfed.data.sets import load
from ternfed.engines.simulate import play
from ternfed.experiment.accountant import epsilon
from ternfed.experiment.experiment import Experiment
from ternfed.round.federation import open_federation

CLIP = 0.5
NOISES = (None, 1.0, 4.0)
ALGORITHMS = ("fedavg",)
SETTINGS = (
    "data.dataset=mnist", "federation.clients=1000", "federation.participation=0.5", "federation.rounds=10",
    "training.epochs=2", "training.batch=20", "training.rate=0.1",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One run."""

    algorithm: str
    noise: float | None
    epsilon: float | None
    score: float
    """Test accuracy after the last round."""


def run(folder: Path | None = None) -> Iterator[Cell]:
    """Every algorithm with every noise."""
    data = load("mnist", folder)
    for algorithm in ALGORITHMS:
        for noise in NOISES:
            private = () if noise is None else (f"privacy.clip={CLIP}", f"privacy.noise={noise}")
            experiment = Experiment.from_toml("", [*SETTINGS, f"algorithm.name={algorithm}", *private])
            *_, (_, last) = play(open_federation(experiment, data))
            yield Cell(algorithm, noise, epsilon(experiment, last.round), last.score)


def table(cells: Sequence[Cell]) -> str:
    """One row per noise, one column per algorithm."""
    rows = []
    for noise in dict.fromkeys(cell.noise for cell in cells):
        own = [cell for cell in cells if cell.noise == noise]
        spent = own[0].epsilon
        rows.append(
            (
                "none" if noise is None else f"{noise:g}",
                "∞" if spent is None else f"{spent:.1f}",
                *(f"{100 * cell.score:.1f}" for cell in own),
            )
        )
    names = tuple(dict.fromkeys(cell.algorithm for cell in cells))
    return markdown(("noise z", "ε at δ = 10⁻⁵", *names), rows)

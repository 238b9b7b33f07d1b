"""The threshold at which CMFL's clients would upload a wanted share of their updates.

    ternfed bench cmfl-threshold mnist-relu-iid-cmfl --data DIR --rounds 20
    ternfed bench cmfl-threshold cifar10-cnn-iid-cmfl --data DIR --rounds 10 --device cuda

Runs the row with a threshold of 0, where everybody uploads, and looks at the relevances: no accuracy, of test data or
other, has a part in the choice. The paper's CMFL uploads 0.29 of FedAvg's bits (MLP, ResNet) or 0.25 (CNN).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ternfed.algorithms import cmfl
from ternfed.algorithms.algorithm import Weights
from ternfed.bench.tables import markdown
from ternfed.engines.simulate import play
from ternfed.paper.rows import find_rows
from ternfed.round.federation import open_federation

SHARES = (0.25, 0.29, 0.5, 0.75, 0.9)


def relevances(name: str, data: Path | None = None, rounds: int = 20, device: str = "cpu") -> list[float]:
    """e(u, ū) of every client and round, but for those without a last global update to compare with."""
    seen: list[float] = []
    measure = cmfl.relevance

    def watched(update: Weights, last: Weights) -> float:
        seen.append(measure(update, last))
        return seen[-1]

    rows = find_rows()
    if name not in rows:
        raise ValueError(f"{name}: no row has this name; ternfed reproduce --list shows them")
    settings = ["algorithm.threshold=0.0", f"federation.rounds={rounds}", "data.hold_out=0.1"]
    experiment = rows[name].experiment(100, settings)
    cmfl.relevance = watched
    try:
        for _ in play(open_federation(experiment, experiment.load_data(data), device)):
            pass
    finally:
        cmfl.relevance = measure
    return seen


def table(name: str, seen: Sequence[float]) -> str:
    """The threshold for each share of uploads, as Markdown."""
    values = torch.tensor(seen, dtype=torch.float64)
    rows = [(f"{share}", f"{values.quantile(1 - share):.4f}") for share in SHARES]
    head = f"{name}: {len(seen)} updates, relevance {values.min():.3f} to {values.max():.3f}"
    return f"{head}\n\n{markdown(('share that uploads', 'threshold'), rows)}"

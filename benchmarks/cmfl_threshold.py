"""The threshold at which CMFL's clients would upload a wanted share of their updates.

python benchmarks/cmfl_threshold.py mnist-relu-iid-cmfl --data DIR --rounds 20
python benchmarks/cmfl_threshold.py cifar10-cnn-iid-cmfl --data DIR --rounds 10 --device cuda

Runs the row with a threshold of 0, where everybody uploads, and looks at the relevances: no accuracy, of test data or
other, has a part in the choice. The paper's CMFL uploads 0.29 of FedAvg's bits (MLP, ResNet) or 0.25 (CNN).
"""

import argparse
from pathlib import Path

import torch

from ternfed.algorithms import cmfl
from ternfed.data.sets import load
from ternfed.engines.simulate import play
from ternfed.paper.rows import find_rows
from ternfed.round.federation import open_federation


def relevances(name: str, data: Path | None, rounds: int, device: str) -> list[float]:
    """e(u, ū) of every client and round, but for those without a last global update to compare with."""
    seen: list[float] = []
    measure = cmfl.relevance

    def watched(update: dict[str, torch.Tensor], last: dict[str, torch.Tensor]) -> float:
        seen.append(measure(update, last))
        return seen[-1]

    settings = ["algorithm.threshold=0.0", f"federation.rounds={rounds}", "data.hold_out=0.1"]
    experiment = find_rows()[name].experiment(100, settings)
    cmfl.relevance = watched
    try:
        for _ in play(open_federation(experiment, load(experiment.data.dataset, data), device)):
            pass
    finally:
        cmfl.relevance = measure
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    seen = torch.tensor(relevances(given.row, given.data, given.rounds, given.device), dtype=torch.float64)
    print(f"{given.row}: {len(seen)} updates, relevance {seen.min():.3f} to {seen.max():.3f}")
    print("| share that uploads | threshold |")
    print("|---|---|")
    for share in (0.25, 0.29, 0.5, 0.75, 0.9):
        print(f"| {share} | {seen.quantile(1 - share):.4f} |")


if __name__ == "__main__":
    main()

"""A task of your own: the progress of diabetes that nine of ten patients stay below, judged by how many really do.

python examples/own_task.py [ROUNDS]
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from ternfed import federate, from_arrays
from ternfed.task import Measure, Metric, Task


def pinball(outputs: Tensor, targets: Tensor) -> Tensor:
    """Smallest where nine of ten targets lie below the outputs (Koenker and Bassett 1978)."""
    missing = targets - outputs.reshape(targets.shape)
    return torch.maximum(0.9 * missing, -0.1 * missing).mean()


COVERED = Metric(
    Measure("covered", percent=True),
    add=lambda outputs, targets: (targets <= outputs.reshape(targets.shape)).sum(),
    finish=lambda below, samples: float(below) / samples,
)
TASK = Task("upper bound", pinball, COVERED, predict=lambda outputs: outputs)


def main(rounds: int = 15) -> None:
    x, y = load_diabetes(return_X_y=True)
    x, y = x / x.std(0), (y - y.mean()) / y.std()
    test = np.arange(len(x)) % 5 == 4
    data = from_arrays("diabetes", x[~test], y[~test], x[test], y[test], task=TASK)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    settings = ("federation.clients=10", f"federation.rounds={rounds}", "data.hold_out=0.1", "training.batch=8")
    sent = 0
    for record in federate(model, data, *settings, "training.rate=0.05", task=TASK):
        sent += record.bytes_up
        print(f"round {record.round}: {record.measure.text(record.score)}, {sent:,} bytes sent up")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

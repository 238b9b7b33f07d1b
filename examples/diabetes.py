"""Regression: how far diabetes goes within a year, from ten measurements of a patient, in ten hospitals.

python examples/diabetes.py [ROUNDS]
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

from ternfed import federate, from_arrays
from ternfed.task import REGRESSION


def main(rounds: int = 30) -> None:
    x, y = load_diabetes(return_X_y=True)
    x, y = x / x.std(0), (y - y.mean()) / y.std()  # a squared error of 1 is what the mean alone would give
    test = np.arange(len(x)) % 5 == 4
    data = from_arrays("diabetes", x[~test], y[~test], x[test], y[test], task=REGRESSION)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    settings = ("task.name=regression", "task.metric=r2", "federation.clients=10", f"federation.rounds={rounds}")
    sent = 0
    for record in federate(model, data, *settings, "data.hold_out=0.1", "training.batch=8", "training.rate=0.02"):
        sent += record.bytes_up
        print(f"round {record.round}: {record.measure.text(record.score)}, {sent:,} bytes sent up")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

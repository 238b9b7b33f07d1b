"""A classifier: handwritten digits on twenty clients that have two of the ten digits each.

python examples/digits.py [ROUNDS]
"""

import sys

import torch
from torch import nn

from ternfed import federate, load


def main(rounds: int = 15) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    settings = ("federation.clients=20", "data.classes_per_client=2", f"federation.rounds={rounds}")
    sent = 0
    for record in federate(model, load("digits"), *settings, "training.rate=0.1", "training.batch=16"):
        sent += record.bytes_up
        print(f"round {record.round}: {record.measure.text(record.score)}, {sent:,} bytes sent up")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

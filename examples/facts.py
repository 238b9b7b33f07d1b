"""Several labels per sample: is a digit even, is it above four, has it a loop? Each client hands over a `DataLoader`.

python examples/facts.py [ROUNDS]
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ternfed import federate, load

FACTS = torch.tensor([[d % 2 == 0, d > 4, d in (0, 6, 8, 9)] for d in range(10)]).float()


def main(rounds: int = 10) -> None:
    digits = load("digits")
    own = zip(digits.train.inputs.chunk(10), FACTS[digits.train.labels].chunk(10), strict=True)
    clients = [DataLoader(TensorDataset(inputs, labels), batch_size=32) for inputs, labels in own]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    settings = ("task.name=multilabel", f"federation.rounds={rounds}", "training.rate=0.2", "training.batch=16")
    sent = 0
    for record in federate(model, clients, *settings, test=(digits.test.inputs, FACTS[digits.test.labels])):
        sent += record.bytes_up
        print(f"round {record.round}: {record.measure.text(record.score)}, {sent:,} bytes sent up")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

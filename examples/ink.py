"""Segmentation: which pixels of a noisy digit are ink, by a small network that halves the picture and doubles it again.

python examples/ink.py [ROUNDS]
"""

import sys

import torch
from torch import Tensor, nn

from ternfed import federate, from_arrays, load
from ternfed.task import SEGMENTATION


def noisy(pictures: Tensor, seed: int) -> Tensor:
    return pictures + 0.25 * torch.randn(pictures.shape, generator=torch.Generator().manual_seed(seed))


def main(rounds: int = 10) -> None:
    digits, parts = load("digits"), list[Tensor]()
    for seed, samples in enumerate((digits.train, digits.test)):
        parts += [noisy(samples.inputs, seed), (samples.inputs[:, 0] > 0.5).long()]
    data = from_arrays("ink", *parts, task=SEGMENTATION)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=4), nn.ReLU(), nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ReLU(),
        nn.Conv2d(16, 2, 3, padding=1),
    )  # fmt: skip
    settings = ("task.name=segmentation", "federation.clients=10", f"federation.rounds={rounds}")
    training = ("training.optimizer=adam", "training.rate=0.005", "training.batch=16", "training.epochs=2")
    sent = 0
    for record in federate(model, data, *settings, *training):
        sent += record.bytes_up
        print(f"round {record.round}: {record.measure.text(record.score)}, {sent:,} bytes sent up")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

"""Sensors: which of four machines hums, from 128 samples of its vibration; twenty clients with a machine or two each.

python examples/signals.py [ROUNDS]
"""

import sys

import torch
from torch import Tensor, nn

from ternfed import federate, from_arrays

FREQUENCIES = torch.tensor([5.0, 8.0, 12.0, 17.0])


def signals(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """(count, 1, 128) vibrations with an overtone, a random phase and as much noise as signal; (count) machines."""
    source = torch.Generator().manual_seed(seed)
    machines = torch.randint(len(FREQUENCIES), (count,), generator=source)
    phase = torch.rand(count, 1, generator=source) + torch.linspace(0, 1, 128) * FREQUENCIES[machines, None]
    waves = torch.sin(2 * torch.pi * phase) + 0.5 * torch.sin(4 * torch.pi * phase)
    return (waves + 0.8 * torch.randn(count, 128, generator=source)).unsqueeze(1), machines


def main(rounds: int = 10) -> None:
    data = from_arrays("signals", *signals(2000, seed=0), *signals(500, seed=1))

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 32, 9, stride=2), nn.ReLU(),
        nn.Conv1d(32, 32, 9), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, len(FREQUENCIES)),
    )  # fmt: skip
    settings = ("federation.clients=20", "federation.participation=0.5", f"federation.rounds={rounds}")
    sent = 0
    for record in federate(
        model, data, *settings, "data.classes_per_client=2", "training.optimizer=adam", "training.rate=0.005",
        "training.schedule=cosine",
        "training.batch=16",
    ):  # fmt: skip
        sent += record.bytes_up
        print(f"round {record.round}: {record.measure.text(record.score)}, {sent:,} bytes sent up")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))

"""10,000 clients, 1,000 a round, on data of the digits' size: seconds a round and peak memory.

python benchmarks/many_clients.py
"""

import resource
import time

import torch
from torch import nn

import ternfed

CLIENTS, ROUNDS = 10_000, 3


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 64, generator=generator)
    labels = torch.randint(10, (3 * CLIENTS + 1000,), generator=generator)
    inputs = centres[labels] + torch.randn(len(labels), 64, generator=generator)
    train = slice(0, 3 * CLIENTS)
    data = ternfed.from_arrays("blobs", inputs[train], labels[train], inputs[3 * CLIENTS :], labels[3 * CLIENTS :])
    for algorithm in ("fedavg", "tfedavg"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 10))
        settings = (
            f"algorithm.name={algorithm}",
            f"federation.clients={CLIENTS}",
            "federation.participation=0.1",
            f"federation.rounds={ROUNDS}",
            "training.rate=0.1",
        )
        start = time.perf_counter()
        for record in ternfed.federate(model, data, *settings):
            seconds, start = time.perf_counter() - start, time.perf_counter()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(
                f"{algorithm}, round {record.round}: {record.clients} clients, {seconds:.1f} s "
                f"({', '.join(f'{phase} {time:.1f}' for phase, time in record.seconds.items())}), "
                f"{100 * record.score:.1f}% correct, peak memory {peak:.2f} GB",
                flush=True,
            )


if __name__ == "__main__":
    main()

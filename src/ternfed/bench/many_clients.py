"""10,000 clients, 1,000 per round, on data of the digits' size: seconds per round and peak memory."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ternfed.bench.tables import markdown
from ternfed.data.sets import from_arrays
from ternfed.data.values import DataSet
from ternfed.engines.simulate import federate
from ternfed.sweep.trial import one_thread


@dataclass(frozen=True)
class RoundCost:
    """One round of one algorithm."""

    algorithm: str
    round: int
    clients: int
    seconds: float
    phases: Mapping[str, float]
    accuracy: float
    memory: int
    """Peak resident bytes of the process so far."""


def run(clients: int = 10_000, rounds: int = 3) -> Iterator[RoundCost]:
    """FedAvg, then T-FedAvg: three samples per client, a tenth of the clients in each round."""
    data = _data(clients)
    with one_thread():
        for algorithm in ("fedavg", "tfedavg"):
            start = time.perf_counter()
            for record in federate(_model(), data, *_settings(algorithm, clients, 0.1, rounds)):
                seconds, start = time.perf_counter() - start, time.perf_counter()
                peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                yield RoundCost(algorithm, record.round, record.clients, seconds, record.seconds, record.score, peak)


def ratio(participants: int = 1_000, rounds: int = 5, clients: int = 10_000) -> float:
    """The CPU time of a round of T-FedAvg by that of FedAvg: medians of rounds played in turns, after the first."""
    data, times = _data(clients), {name: list[float]() for name in ("fedavg", "tfedavg")}
    with one_thread():
        playing = {
            name: federate(_model(), data, *_settings(name, clients, participants / clients, rounds + 1))
            for name in times
        }
        for _ in range(rounds + 1):
            for name, played in playing.items():
                start = time.process_time()
                next(played)
                times[name].append(time.process_time() - start)
    return statistics.median(b / a for a, b in zip(times["fedavg"][1:], times["tfedavg"][1:], strict=True))


def _data(clients: int) -> DataSet:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 64, generator=generator)
    labels = torch.randint(10, (3 * clients + 1000,), generator=generator)
    inputs = centres[labels] + torch.randn(len(labels), 64, generator=generator)
    own = 3 * clients
    return from_arrays("blobs", inputs[:own], labels[:own], inputs[own:], labels[own:])


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 10))


def _settings(algorithm: str, clients: int, share: float, rounds: int) -> tuple[str, ...]:
    return (
        f"algorithm.name={algorithm}",
        f"federation.clients={clients}",
        f"federation.participation={share}",
        f"federation.rounds={rounds}",
        "training.rate=0.1",
    )


def table(rows: Iterable[RoundCost]) -> str:
    """The rounds as a Markdown table."""
    return markdown(
        ("algorithm", "round", "clients", "seconds", "of which", "correct", "peak memory"),
        [
            (
                row.algorithm,
                f"{row.round}",
                f"{row.clients}",
                f"{row.seconds:.1f}",
                ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in row.phases.items()),
                f"{100 * row.accuracy:.1f}%",
                f"{row.memory / 1e9:.2f} GB",
            )
            for row in rows
        ],
    )

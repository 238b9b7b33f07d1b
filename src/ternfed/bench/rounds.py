"""The local training of one federated round: ours against the loops people write, measured in turns in one run.

MLP 784-30-20-10, 10 clients with 600 samples each, 5 local epochs, batch 64, SGD, one thread. Every side draws its own
orders, trains all clients and returns their models. FedJAX takes part when TERNFED_FEDJAX_PYTHON names a Python that
has it: bench/fedjax_round.py says which versions.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ternfed.algorithms.algorithm import Local, Network, Training
from ternfed.bench.tables import markdown
from ternfed.data.values import Samples
from ternfed.models import mlp
from ternfed.quantize.ternary import Quantizer, start_factors
from ternfed.sweep.trial import one_thread
from ternfed.training.batched import train_batched
from ternfed.training.plain import train_one
from ternfed.training.work import TrainingData, Work

CLIENTS, SAMPLES, EPOCHS, BATCH, RATE = 10, 600, 5, 64, 0.01
FEDJAX = "TERNFED_FEDJAX_PYTHON"
PLAIN, FEDAVG, TFEDAVG = "plain PyTorch loop", "ternfed, FedAvg", "ternfed, T-FedAvg"

Side = Callable[[], float]
"""Plays one round and returns its seconds."""


@dataclass(frozen=True)
class RoundSpeed:
    """How long one side takes for a round; ratios are medians over neighbouring measurements."""

    who: str
    seconds: float
    fastest: float
    speedup: float
    """So many times faster than the plain loop."""
    against_fedavg: float
    """So many times the seconds of our own FedAvg."""


def run(
    rounds: int = 15,
    others: Mapping[str, Callable[[], object]] | None = None,
    scripts: Mapping[str, tuple[str, str]] | None = None,
) -> Iterator[RoundSpeed]:
    """Every side in turns, `rounds` times; `others` are further sides, a whole simulated round say.

    `scripts` are other simulators: by name, the Python that has one, and the script of this folder that plays it.
    """
    named = {"FedJAX": (os.environ[FEDJAX], "fedjax_round.py")} if FEDJAX in os.environ else {}
    with one_thread(), ExitStack() as stack:
        stack.enter_context(_one_core())
        sides = {who: _timed(play) for who, play in {**_sides(), **(others or {})}.items()}
        for who, (python, script) in {**named, **(scripts or {})}.items():
            sides[who] = stack.enter_context(_script(python, script))
        for side in sides.values():
            side()
        times = [{who: side() for who, side in sides.items()} for _ in range(rounds)]
    for who in sides:
        yield RoundSpeed(
            who=who,
            seconds=statistics.median(row[who] for row in times),
            fastest=min(row[who] for row in times),
            speedup=statistics.median(row[PLAIN] / row[who] for row in times),
            against_fedavg=statistics.median(row[who] / row[FEDAVG] for row in times),
        )


def table(rows: list[RoundSpeed]) -> str:
    """The rows as a Markdown table, with what is asked of our own."""
    asked = {FEDAVG: "≥ 2.5× the plain loop, not slower than FedJAX", TFEDAVG: "≤ 1.2× our FedAvg"}
    return markdown(
        ("who", "s/round, median", "fastest", "× faster than the plain loop", "× the time of our FedAvg", "asked"),
        [
            (r.who, f"{r.seconds:.3f}", f"{r.fastest:.3f}", f"{r.speedup:.2f}", f"{r.against_fedavg:.2f}",
             asked.get(r.who, ""))
            for r in rows
        ],
    )  # fmt: skip


def _sides() -> dict[str, Callable[[], object]]:
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(CLIENTS * SAMPLES, 784, generator=source)
    labels = torch.randint(10, (CLIENTS * SAMPLES,), generator=source)
    parts = list(torch.arange(CLIENTS * SAMPLES).view(CLIENTS, SAMPLES))
    torch.manual_seed(0)
    network = Network.of(mlp())
    feed = TrainingData(Samples(inputs, labels), (0.0,), (1.0,))
    quantizer = Quantizer()
    fedavg = Training(rate=RATE, epochs=EPOCHS, batch=BATCH)
    tfedavg = Training(rate=RATE, epochs=EPOCHS, batch=BATCH, quantizer=quantizer, ternary=network.ternary)
    loaders = [DataLoader(TensorDataset(inputs[part], labels[part]), BATCH, shuffle=True) for part in parts]

    def works(training: Training) -> list[Work]:
        weights = network.weights()
        factors = {name: start_factors(weights[name], quantizer) for name in training.ternary}
        local = Local(weights, {}, {n: f for n, f in factors.items() if f is not None}, quantizer.factor)
        return [Work.draw(local, part, training, None, seed=0, round=0, client=k) for k, part in enumerate(parts)]

    return {
        PLAIN: lambda: [_loop(network.model, _batches(inputs, labels, part)) for part in parts],
        "with DataLoader": lambda: [_loop(network.model, chain(*[loader] * EPOCHS)) for loader in loaders],
        "ternfed, one client at a time": lambda: [train_one(network, fedavg, feed, work) for work in works(fedavg)],
        FEDAVG: lambda: list(train_batched(network, fedavg, feed, works(fedavg))),
        TFEDAVG: lambda: list(train_batched(network, tfedavg, feed, works(tfedavg))),
    }


def _loop(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> nn.Module:
    """One client's training as anyone would write it."""
    model = deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for inputs, labels in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def _batches(inputs: Tensor, labels: Tensor, part: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(EPOCHS):
        for chosen in torch.split(part[torch.randperm(len(part))], BATCH):
            yield inputs[chosen], labels[chosen]


def _timed(play: Callable[[], object]) -> Side:
    def side() -> float:
        start = time.perf_counter()
        play()
        return time.perf_counter() - start

    return side


@contextmanager
def _one_core() -> Iterator[None]:
    """Everything from here on, child processes too, on one core: XLA has threads that no setting turns off."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _script(python: str, name: str) -> Iterator[Side]:
    """Another simulator in a process of its own that plays a round whenever it is asked to."""
    script = Path(__file__).with_name(name)  # as a script: that Python has no ternfed
    command = [python, str(script), *map(str, (CLIENTS, SAMPLES, EPOCHS, BATCH, RATE))]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def answer() -> str:
            line = answers.readline().strip()
            if not line:
                said.seek(0)
                reason = (said.read().strip().splitlines() or ["it said nothing"])[-1][:200]
                raise RuntimeError(f"{name} ended: {reason}")
            return line

        def side() -> float:
            print("round", file=asks, flush=True)
            return float(answer())

        if (first := answer()) != "ready":
            raise RuntimeError(f"{name} began with {first[:80]!r}")
        yield side
        asks.close()

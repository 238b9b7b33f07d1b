"""Milliseconds of a local step on an NVIDIA GPU: `CapturedTrainer` as the simulator calls it, start to finish.

CIFAR-sized random images, batch 64, Adam, augmentation on; five epochs (one in float32) of 150 steps. A time is the
wall clock of a whole call (loading the clients, all steps, fetching the results) over clients × steps: the median of
several calls, FedAvg, T-FedAvg and a plain loop in turns, after one call of each that captures its graphs. The plain
loop is PyTorch's own, one client after another, in the same precision and with channels last, its data on the GPU too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product

import torch
from torch import nn

from ternfed.algorithms.algorithm import Local, Network, Training
from ternfed.algorithms.optimizers import Adam
from ternfed.bench.tables import markdown
from ternfed.data.images import Augment
from ternfed.data.values import Samples
from ternfed.models import build
from ternfed.quantize.ternary import Quantizer, start_factors
from ternfed.training.captured import CapturedTrainer
from ternfed.training.work import TrainingData, Work, computing_in

BATCH, STEPS, CALLS = 64, 150, 3
EPOCHS = {"float32": 1, "bfloat16": 5}
"""A call must take a second or so: the GPU's clock falls while it waits, and rises slowly."""


@dataclass(frozen=True)
class Timing:
    """One line of the table."""

    model: str
    precision: str
    clients: int
    """Side by side in one graph."""
    compiled: bool
    fedavg: float
    """Milliseconds per step and client."""
    tfedavg: float
    ratio: float
    """The median of the ratios of neighbouring calls."""
    first: float
    """Seconds of the first call of FedAvg: capture, and compilation where there is one."""
    loop: float
    """Milliseconds of a step of the plain loop."""

    @property
    def speedup(self) -> float:
        """How many times the plain loop's speed FedAvg has."""
        return self.loop / self.fedavg


def run(
    models: tuple[str, ...] = ("resnet18", "cnn"),
    precisions: tuple[str, ...] = ("float32", "bfloat16"),
    clients: tuple[int, ...] = (1, 2, 5),
    compiled: tuple[bool, ...] = (False, True),
    device: str = "cuda",
) -> Iterator[Timing]:
    """Every case, one after another; nothing where there is no GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        return
    feed = _random_feed(max(clients) * BATCH * STEPS, device)
    for model, with_compiler, precision, count in product(models, compiled, precisions, clients):
        if with_compiler and precision == "float32":  # its time is in the convolutions, which are not compiled
            continue
        yield measure(model, precision, count, with_compiler, feed)


def measure(model: str, precision: str, clients: int, compiled: bool, feed: TrainingData) -> Timing:
    """FedAvg and T-FedAvg in turns."""
    network = Network.of(build(model))
    plain = Training(Adam(), rate=0.002, epochs=EPOCHS[precision], batch=BATCH, precision=precision)
    ternary = replace(
        plain, quantizer=Quantizer(), ternary=network.ternary, latent_rate=24.0, factor_rate=0.1, clip=1.0
    )
    jobs = [
        (
            CapturedTrainer(network, side, feed, side_by_side=clients, compiled=compiled),
            [_work(network, side, feed, client) for client in range(clients)],
        )
        for side in (plain, ternary)
    ]

    ways: list[Callable[[], object]] = [partial(_train, *job) for job in jobs]
    ways.append(partial(_loop, build(model), plain, feed, jobs[0][1][0]))
    first, *_ = (_seconds(way) for way in ways)
    times = [[_seconds(way) for way in ways] for _ in range(CALLS)]
    steps = EPOCHS[precision] * STEPS * clients
    return Timing(
        model=model,
        precision=precision,
        clients=clients,
        compiled=compiled,
        fedavg=1e3 * statistics.median(row[0] for row in times) / steps,
        tfedavg=1e3 * statistics.median(row[1] for row in times) / steps,
        ratio=statistics.median(row[1] / row[0] for row in times),
        first=first,
        loop=1e3 * statistics.median(row[2] for row in times) / STEPS,
    )


def _seconds(way: Callable[[], object]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def _train(trainer: CapturedTrainer, works: list[Work]) -> None:
    for _ in trainer.train(works):  # each outcome is fetched from the GPU
        pass


def _loop(model: nn.Module, training: Training, feed: TrainingData, work: Work) -> None:
    """The first epoch of one client, as anyone would write it."""
    device = feed.samples.inputs.device
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=training.rate)
    for _, order, offsets, flips in islice(work.steps(training.batch), STEPS):
        inputs, labels = feed.batch(order.to(device), *(None if t is None else t.to(device) for t in (offsets, flips)))
        with computing_in(training.precision, device):
            loss = nn.functional.cross_entropy(model(inputs.to(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    loss.item()  # the GPU is done then


def table(rows: list[Timing]) -> str:
    """The rows as a Markdown table."""
    return markdown(
        ("model", "precision", "clients at once", "compiled", "plain loop (ms)", "FedAvg (ms)", "T-FedAvg (ms)",
         "ratio", "first call (s)"),
        [
            (r.model, r.precision, f"{r.clients}", "yes" if r.compiled else "no", f"{r.loop:.3f}", f"{r.fedavg:.3f}",
             f"{r.tfedavg:.3f}", f"{r.ratio:.3f}", f"{r.first:.1f}")
            for r in rows
        ],
    )  # fmt: skip


def _random_feed(count: int, device: str) -> TrainingData:
    source = torch.Generator(device).manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), generator=source, dtype=torch.uint8, device=device)
    labels = torch.randint(10, (count,), generator=source, device=device)
    return TrainingData(Samples(images, labels), (0.4914, 0.4824, 0.4467), (0.247, 0.244, 0.262), Augment())


def _work(network: Network, training: Training, feed: TrainingData, client: int) -> Work:
    tensors = network.weights()
    weights = {name: tensors[name] for name in network.parameters}
    factors = {}
    if training.quantizer is not None:
        started = {name: start_factors(weights[name], training.quantizer) for name in training.ternary}
        factors = {name: factor for name, factor in started.items() if factor is not None}
    local = Local(weights, {name: tensors[name] for name in network.buffers}, factors, 0.7)
    indices = torch.arange(client * BATCH * STEPS, (client + 1) * BATCH * STEPS)
    return Work.draw(local, indices, training, feed.augment, seed=0, round=1, client=client)

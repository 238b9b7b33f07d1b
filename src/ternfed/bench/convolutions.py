"""A training step of several clients' convolutional networks on a CPU: one after another against side by side.

*Side by side* is one grouped convolution for the layers of all clients, as `torch.func.vmap` makes it of stacked
weights. Both sides in turns, medians, one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from ternfed.bench.tables import markdown
from ternfed.models import cnn
from ternfed.sweep.trial import one_thread

CLIENTS, BATCH = 3, 64


@dataclass(frozen=True)
class ConvolutionSpeed:
    """Seconds of a step of all clients, and how many times the loop's speed that is."""

    way: str
    seconds: float
    speedup: float


def run(repeats: int = 5) -> Iterator[ConvolutionSpeed]:
    """The CNN, every way in turns."""
    with one_thread():
        ways = _ways()
        for way in ways.values():
            way()
        times = [{name: _seconds(way) for name, way in ways.items()} for _ in range(repeats)]
    first = next(iter(ways))
    for name in ways:
        ratio = statistics.median(row[first] / row[name] for row in times)
        yield ConvolutionSpeed(name, statistics.median(row[name] for row in times), ratio)


def table(rows: list[ConvolutionSpeed]) -> str:
    """The rows as a Markdown table."""
    return markdown(
        ("way", "ms per step of all clients", "× the loop's speed"),
        [(row.way, f"{1e3 * row.seconds:.0f}", f"{row.speedup:.2f}") for row in rows],
    )


def _ways() -> dict[str, Callable[[], object]]:
    torch.manual_seed(0)
    models = [cnn() for _ in range(CLIENTS)]
    inputs, labels = torch.randn(CLIENTS, BATCH, 3, 32, 32), torch.randint(10, (CLIENTS, BATCH))
    ordered: list[nn.Module] = [cnn() for _ in range(CLIENTS)]
    for net in ordered:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def loop(nets: Sequence[nn.Module], precision: torch.dtype | None = None) -> None:
        for net, batch, wanted in zip(nets, inputs, labels, strict=True):
            net.zero_grad()
            with torch.autocast("cpu", precision or torch.bfloat16, precision is not None):
                loss = nn.functional.cross_entropy(net(batch), wanted)
            loss.backward()  # type: ignore[no-untyped-call]

    parameters, buffers = stack_module_state(models)

    def loss_of(own: dict[str, Tensor], fixed: dict[str, Tensor], batch: Tensor, wanted: Tensor) -> Any:
        return nn.functional.cross_entropy(functional_call(models[0], (own, fixed), (batch,)), wanted)

    together = vmap(grad(loss_of))
    return {
        "one after another": lambda: loop(models),
        "one after another, channels last": lambda: loop(ordered),
        "one after another, bfloat16": lambda: loop(models, torch.bfloat16),
        "side by side, grouped": lambda: together(parameters, buffers, inputs, labels),
    }


def _seconds(way: Callable[[], object]) -> float:
    start = time.thread_time()
    way()
    return time.thread_time() - start

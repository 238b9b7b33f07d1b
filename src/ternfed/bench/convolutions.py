"""Local training of several clients' convolutional networks on a CPU: every way there is against the plain loop.

The plain loop is PyTorch's own, in float32, one client after another. ternfed's sides are what a run calls
(`training/choose.py`), once per `training.precision`. *Side by side* is one grouped convolution for the layers of all
clients, as `torch.func.vmap` makes it of stacked weights; it and channels last are what was tried, and are not used
(docs/speed.md). All sides in turns, medians, one thread, CPU time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from ternfed.algorithms.algorithm import Local, Network, Training
from ternfed.bench.tables import markdown
from ternfed.data.values import Samples
from ternfed.models import cnn, resnet18
from ternfed.sweep.trial import one_thread
from ternfed.training.bfloat16 import cpu_has_bfloat16
from ternfed.training.choose import trainer_for
from ternfed.training.work import TrainingData, Work

CLIENTS, BATCH, STEPS, RATE = 3, 64, 2, 0.01
NETWORKS: Mapping[str, Callable[[], nn.Module]] = {"the CNN": cnn, "ResNet18*": resnet18}
LOOP = "plain loop, float32"


@dataclass(frozen=True)
class ConvolutionSpeed:
    """Seconds of a step of all clients, and how many times the loop's speed that is."""

    network: str
    way: str
    seconds: float
    speedup: float
    is_ours: bool
    """Whether a user gets it by a setting."""


def run(
    repeats: int = 5, networks: Mapping[str, Callable[[], nn.Module]] = NETWORKS, size: int = 32
) -> Iterator[ConvolutionSpeed]:
    """Every network with images of so many pixels a side, every way in turns."""
    for name, make in networks.items():
        with one_thread():
            ways = _ways(make, size, grouped=name == "the CNN")
            for way in ways.values():
                way()
            times = [{called: _seconds(way) for called, way in ways.items()} for _ in range(repeats)]
        for called in ways:
            speedup = statistics.median(row[LOOP] / row[called] for row in times)
            seconds = statistics.median(row[called] for row in times) / STEPS
            yield ConvolutionSpeed(name, called, seconds, speedup, called.startswith("ternfed"))


def table(rows: list[ConvolutionSpeed]) -> str:
    """The rows as a Markdown table, and a sentence where the CPU has no bfloat16."""
    text = markdown(
        ("network", "way", "ms per step of all clients", "× the loop's speed"),
        [(row.network, row.way, f"{1e3 * row.seconds:.0f}", f"{row.speedup:.2f}") for row in rows],
    )
    if cpu_has_bfloat16() is not False:
        return text
    return f"{text}\n\nThis CPU has no instructions for bfloat16 (avx512_bf16 or amx_bf16): it was not measured."


def _ways(make: Callable[[], nn.Module], size: int, grouped: bool) -> dict[str, Callable[[], object]]:
    """Each trains all clients, `STEPS` steps each, from the same weights and in the same order."""
    torch.manual_seed(0)
    model = make()
    last = deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    count = CLIENTS * STEPS * BATCH
    inputs, labels = torch.randn(count, 3, size, size), torch.randint(10, (count,))
    parts = torch.split(torch.arange(count), STEPS * BATCH)
    ways: dict[str, Callable[[], object]] = {
        LOOP: lambda: [_loop(model, inputs[part], labels[part]) for part in parts],
        "plain loop, channels last": lambda: [
            _loop(last, inputs[part].to(memory_format=torch.channels_last), labels[part]) for part in parts
        ],
        "ternfed, float32": _ours(model, inputs, labels, "float32"),
    }
    if cpu_has_bfloat16() is not False:
        ways["ternfed, bfloat16"] = _ours(model, inputs, labels, "bfloat16")
    if grouped:
        ways["side by side, grouped"] = _together(model, inputs, labels)
    return ways


def _loop(model: nn.Module, inputs: Tensor, labels: Tensor) -> nn.Module:
    """One client's training as anyone would write it."""
    own = deepcopy(model)
    optimizer = torch.optim.SGD(own.parameters(), lr=RATE)
    for batch, wanted in zip(torch.split(inputs, BATCH), torch.split(labels, BATCH), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(own(batch), wanted).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return own


def _ours(model: nn.Module, inputs: Tensor, labels: Tensor, precision: str) -> Callable[[], object]:
    """What a run does with its clients."""
    network = Network.of(model)
    training = Training(rate=RATE, epochs=1, batch=BATCH, precision=precision)
    trainer = trainer_for(network, training, TrainingData(Samples(inputs, labels), (0.0,), (1.0,)))
    weights = network.weights()
    local = Local({n: weights[n] for n in network.parameters}, {n: weights[n] for n in network.buffers}, {}, 0.7)
    parts = torch.split(torch.arange(len(inputs)), STEPS * BATCH)
    works = [Work.draw(local, part, training, None, seed=0, round=0, client=k) for k, part in enumerate(parts)]
    return lambda: list(trainer.train(works))


def _together(model: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], object]:
    """The gradients of all clients' steps, without an optimizer."""
    parameters, buffers = stack_module_state([model] * CLIENTS)
    batches = inputs.view(STEPS, CLIENTS, BATCH, *inputs.shape[1:]), labels.view(STEPS, CLIENTS, BATCH)

    def loss_of(own: dict[str, Tensor], fixed: dict[str, Tensor], batch: Tensor, wanted: Tensor) -> Any:
        return nn.functional.cross_entropy(functional_call(model, (own, fixed), (batch,)), wanted)

    together = vmap(grad(loss_of))
    return lambda: [together(parameters, buffers, batch, wanted) for batch, wanted in zip(*batches, strict=True)]


def _seconds(way: Callable[[], object]) -> float:
    start = time.thread_time()
    way()
    return time.thread_time() - start

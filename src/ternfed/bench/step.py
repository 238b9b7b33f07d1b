"""What FTTQ costs a training step: the same step with and without it, measured in turns in one run.

A step is what a user's loop does: forward, loss, backward, optimizer, at batch 64. On a CPU its CPU time counts, so
that other programs do not. On a GPU both sides run in bfloat16 (autocast, channels last) as captured graphs, so that
launch gaps hide nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ternfed.bench.tables import markdown
from ternfed.models import mlp, resnet18
from ternfed.quantize.layers import parameter_groups, ternarize_
from ternfed.sweep.trial import one_thread

BATCH = 64


@dataclass(frozen=True)
class StepRatio:
    """Median seconds of a step without and with FTTQ, and the median of the ratios of neighbouring measurements."""

    model: str
    device: str
    plain: float
    ternary: float
    ratio: float
    limit: float


def run(rounds: int = 41) -> Iterator[StepRatio]:
    """Every case this machine can measure, one after another."""
    with one_thread():
        yield measure("mlp", mlp(), (784,), "cpu", rounds=5 * rounds, steps=10, limit=1.45)
        yield measure("resnet18", resnet18(), (3, 32, 32), "cpu", rounds=max(3, rounds // 6), steps=1, limit=1.05)
        if torch.cuda.is_available():
            yield measure("resnet18", resnet18(), (3, 32, 32), "cuda", rounds=rounds, steps=50, limit=1.10)


def measure(
    name: str, model: nn.Module, shape: tuple[int, ...], device: str, *, rounds: int, steps: int, limit: float
) -> StepRatio:
    """Alternate blocks of steps of both models; medians over the blocks."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCH, *shape, generator=generator).to(device)
    labels = torch.randint(10, (BATCH,), generator=generator).to(device)
    if device == "cuda" and len(shape) == 3:
        inputs = inputs.to(memory_format=torch.channels_last)
    ternary = ternarize_(deepcopy(model))
    sides = [_stepper(side.to(device), inputs, labels) for side in (model, ternary)]
    for side in sides:
        _seconds(side, steps, device)
    times = [[_seconds(side, steps, device) for side in sides] for _ in range(rounds)]
    return StepRatio(
        model=name,
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu",
        plain=statistics.median(row[0] for row in times),
        ternary=statistics.median(row[1] for row in times),
        ratio=statistics.median(row[1] / row[0] for row in times),
        limit=limit,
    )


def table(rows: list[StepRatio]) -> str:
    """The rows as a Markdown table."""
    return markdown(
        ("model", "device", "plain (ms)", "FTTQ (ms)", "ratio", "at most"),
        [
            (r.model, r.device, f"{1e3 * r.plain:.3f}", f"{1e3 * r.ternary:.3f}", f"{r.ratio:.3f}", f"{r.limit:.2f}")
            for r in rows
        ],
    )


def _stepper(model: nn.Module, inputs: Tensor, labels: Tensor) -> Callable[[], None]:
    prepared = any("parametrizations" in name for name, _ in model.named_modules())
    groups = parameter_groups(model, 1e-3) if prepared else [{"params": list(model.parameters())}]
    if inputs.device.type == "cpu":
        plain = torch.optim.SGD(groups, lr=1e-3)

        def step() -> None:
            plain.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            plain.step()

        return step
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    adam = torch.optim.Adam(groups, lr=1e-3, fused=True, capturable=True)

    def graphed() -> None:
        adam.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()

    return capture(graphed)


def capture(step: Callable[[], None], warm_up: int = 5) -> Callable[[], None]:
    """The step as a CUDA graph: one launch replays all its kernels."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(_alive: Callable[[], None] = step) -> None:
        # The graph knows addresses only: the step must live on, because it keeps what lies there.
        graph.replay()

    return replay


def _seconds(step: Callable[[], None], steps: int, device: str) -> float:
    if device == "cpu":
        start = time.thread_time()
        for _ in range(steps):
            step()
        return (time.thread_time() - start) / steps
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps

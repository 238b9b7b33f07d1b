"""What a ternary model costs on a small device: against fp32 ONNX and PyTorch, one thread, in turns in one run.

Size is the file's. Memory is that of a fresh process that opens the file and predicts one sample. Milliseconds are
those of one call at batch 1 and at batch 64, in processor time: with one thread that is what the clock shows on a
machine that does nothing else. The sides take turns, so what still disturbs one disturbs all.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ternfed.bench.tables import Promise, markdown
from ternfed.edge import Inputs, Trained, export, trained
from ternfed.edge.graph import INPUT, float_onnx, to_onnx
from ternfed.edge.runtime import session
from ternfed.models import cnn, mlp, resnet18
from ternfed.quantize.choice import Predicate, ternary_names
from ternfed.quantize.ternary import requantize, twn
from ternfed.sweep.trial import one_thread

BATCHES = (1, 64)
BLOCK_SECONDS = 0.02
SIDES = ("PyTorch", "fp32 ONNX", "ternary ONNX")


@dataclass(frozen=True)
class Side:
    """One way to run a model: bytes of its file, of its process and of the runtime alone, seconds per call by batch."""

    name: str
    bytes: int
    memory: int
    runtime_memory: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class EdgeCase:
    """One model, three ways."""

    model: str
    sides: tuple[Side, ...]
    gains: tuple[tuple[float, float, float], ...]
    """fp32 ONNX / ternary ONNX at each batch: lower quartile, median and upper quartile over neighbouring blocks."""
    promises: tuple[Promise, ...]


def run(seconds: float = 8.0) -> Iterator[EdgeCase]:
    """Every model, one after another; `seconds` is the time spent on each at each batch size."""
    torch.manual_seed(0)
    image = Inputs((3, 32, 32))
    with one_thread():
        yield measure("MLP", _ternary(mlp(), None, Inputs((1, 28, 28))), seconds)
        yield measure("CNN", _ternary(cnn(), None, image), seconds)
        yield measure("ResNet18*", _ternary(resnet18(), None, image), seconds, smaller=14)
        for scales, words in ((1, "one scale"), (2, "two scales")):
            layer = nn.Sequential(nn.Linear(4096, 4096, bias=False))
            yield measure(f"4096×4096, {words}", _ternary(layer, _every, Inputs((4096,)), scales), seconds, faster=8)


def measure(name: str, model: Trained, seconds: float, smaller: float = 0, faster: float = 0) -> EdgeCase:
    """Three files of one model: their sizes, the memory of their processes, and their speed in turns."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / file for file in ("plain.safetensors", "plain.onnx", "ternary.onnx")]
        export(model, paths[0])
        paths[1].write_bytes(float_onnx(model.network, model.inputs).SerializeToString())
        paths[2].write_bytes(to_onnx(model, normalised=False).SerializeToString())
        sizes = [path.stat().st_size for path in paths]
        memory = [_torch_memory(model, Path(folder)), *(_onnx_memory(path, model.inputs) for path in paths[1:])]
        sessions = [session(str(path)) for path in paths[1:]]
    times = [turns([_torch_call(model, b), *(_onnx_call(s, model, b) for s in sessions)], seconds) for b in BATCHES]
    medians = [[statistics.median(column) for column in zip(*rows, strict=True)] for rows in times]
    gains = [_quartiles([row[1] / row[2] for row in rows]) for rows in times]
    sides = (
        Side(SIDES[i], sizes[i], *memory[i], seconds=tuple(each[i] for each in medians)) for i in range(len(SIDES))
    )
    promises = []
    if smaller:
        is_smaller = sizes[1] >= smaller * sizes[2]
        promises.append(Promise(name, f"file 1/{smaller:g}", f"1/{sizes[1] / sizes[2]:.1f}", is_smaller))
    if faster:
        promises.append(Promise(name, f"{faster:g}× at batch 1", _spread(gains[0]), gains[0][1] >= faster))
    for batch, gain in zip(BATCHES, gains, strict=True):
        # Equal speed measures as 1 ± noise: slower is what three quarters of the blocks say is slower.
        promises.append(Promise(name, f"not slower at batch {batch}", _spread(gain), gain[2] >= 1))
    return EdgeCase(name, tuple(sides), tuple(gains), tuple(promises))


def table(cases: list[EdgeCase]) -> str:
    """The cases as a Markdown table, then the promises one by one: median and quartiles."""
    sides = markdown(
        ("model", "run by", "file kB", "memory MB (its runtime alone)", "batch 1 ms", "batch 64 ms"),
        [
            (
                case.model,
                side.name,
                f"{side.bytes / 1e3:.1f}",
                f"{side.memory / 1e6:.0f} ({side.runtime_memory / 1e6:.0f})",
                f"{1e3 * side.seconds[0]:.3f}",
                f"{1e3 * side.seconds[1]:.2f}",
            )
            for case in cases
            for side in case.sides
        ],
    )
    promises = markdown(
        ("model", "promise: measured", "kept"),
        [
            (each.what, f"{each.promised}: {each.measured}", "yes" if each.kept else "**no**")
            for case in cases
            for each in case.promises
        ],
    )
    return f"{sides}\n\n{promises}"


def _spread(gain: tuple[float, float, float]) -> str:
    return f"{gain[1]:.2f}× ({gain[0]:.2f} to {gain[2]:.2f})"


def _every(name: str, module: nn.Module) -> bool:
    return True


def _ternary(network: nn.Module, where: Predicate | None, inputs: Inputs, scales: int = 2) -> Trained:
    """The network with its chosen weights made ternary, by the server's rule (two scales) or TWN's (one)."""
    for name in ternary_names(network, where):
        weight = network.get_parameter(name).data
        weight.copy_((requantize(weight) if scales == 2 else twn(weight)).dense())
    return trained(network, inputs)


def _torch_call(model: Trained, batch: int) -> Callable[[], Any]:
    samples = model.inputs.example(batch)

    def call() -> Any:
        with torch.inference_mode():
            return model.network(samples)

    return call


def _onnx_call(opened: Any, model: Trained, batch: int) -> Callable[[], Any]:
    feed = {INPUT: model.inputs.example(batch).numpy()}
    return lambda: opened.run(None, feed)


def turns(calls: list[Callable[[], Any]], seconds: float) -> list[list[float]]:
    """Seconds per call, one row per turn: a block of calls of each side, one side after the other, to and fro."""
    counts = []
    for call in calls:
        call()
        counts.append(max(1, round(BLOCK_SECONDS / _block(call, 1))))
    rows: list[list[float]] = []
    start = time.perf_counter()
    while len(rows) < 11 or time.perf_counter() - start < seconds:
        places = range(len(calls)) if len(rows) % 2 else reversed(range(len(calls)))
        row = {place: _block(calls[place], counts[place]) for place in places}
        rows.append([row[place] for place in range(len(calls))])
    return rows


def _block(call: Callable[[], Any], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return max(time.process_time() - start, 1e-9) / count


def _quartiles(values: list[float]) -> tuple[float, float, float]:
    lower, middle, upper = statistics.quantiles(values, n=4)
    return lower, middle, upper


RESIDENT = """
import sys
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
"""
ONNX_PROCESS = (
    RESIDENT
    + """
import numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
before = resident()
opened = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
sample = numpy.zeros([1, *map(int, sys.argv[2:])], numpy.float32)
for _ in range(3):
    opened.run(None, {"input": sample})
print(resident(), before)
"""
)
TORCH_PROCESS = (
    RESIDENT
    + """
import torch
torch.set_num_threads(1)
before = resident()
network = torch.load(sys.argv[1], weights_only=False)
sample = torch.zeros(1, *map(int, sys.argv[2:]))
with torch.inference_mode():
    for _ in range(3):
        network(sample)
print(resident(), before)
"""
)


def _onnx_memory(path: Path, inputs: Inputs) -> tuple[int, int]:
    return _memory(ONNX_PROCESS, path, inputs)


def _torch_memory(model: Trained, folder: Path) -> tuple[int, int]:
    path = folder / "network.pt"
    torch.save(model.network, path)
    return _memory(TORCH_PROCESS, path, model.inputs)


def _memory(script: str, path: Path, inputs: Inputs) -> tuple[int, int]:
    """Resident bytes of a fresh process after three predictions, and before it opened the model."""
    command = [sys.executable, "-c", script, str(path), *map(str, inputs.shape)]
    after, before = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(after), int(before)

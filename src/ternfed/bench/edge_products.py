"""Which forms of a ternary layer pay on this machine: each against the float layer, one thread, in turns.

A 2-bit product with every block size, then at every size of matrix; a convolution in int8, the form not taken.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ternfed.bench.edge import BATCHES, turns
from ternfed.bench.tables import markdown
from ternfed.edge.forms import BLOCK, Piece, product
from ternfed.edge.runtime import session
from ternfed.quantize.ternary import Ternary, requantize, twn

BLOCKS = (16, 32, 64, 128, 256)
SIZES = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Form:
    """A layer in one form: by batch, median milliseconds, and median of the ratios float / this form."""

    layer: str
    form: str
    milliseconds: tuple[float, ...]
    gains: tuple[float, ...]


def run(seconds: float = 4.0) -> Iterator[Form]:
    """Every layer in its forms; `seconds` is the time spent on each layer at each batch size."""
    weight = _weight(SIZES[-1], 1)
    layers = [_plain(weight), *(product("w", weight, None, "x", "", "y", block) for block in BLOCKS)]
    forms = ["float", *(f"2-bit, block {block}" for block in BLOCKS)]
    yield from measure(f"{SIZES[-1]}×{SIZES[-1]}, one scale", forms, layers, (SIZES[-1],), seconds)
    for size in SIZES:
        for scales, words in ((1, "one scale"), (2, "two scales")):
            weight = _weight(size, scales)
            layers = [_plain(weight), product("w", weight, None, "x", "", "y")]
            yield from measure(f"{size}×{size}, {words}", ["float", f"2-bit, block {BLOCK}"], layers, (size,), seconds)
    yield from measure("convolution 64→64, 3×3", ["float", "int8"], _convolutions(), (64, 32, 32), seconds)


def measure(
    layer: str, forms: Sequence[str], pieces: Sequence[Piece], shape: tuple[int, ...], seconds: float
) -> Iterator[Form]:
    """The forms of one layer in turns, the first being the float one."""
    sessions = [session(_model(piece, len(shape))) for piece in pieces]
    times, gains = [], []
    for batch in BATCHES:
        samples = np.maximum(np.random.default_rng(0).normal(size=(batch, *shape)), 0).astype(np.float32)
        rows = turns([_call(opened, samples) for opened in sessions], seconds)
        times.append([1e3 * statistics.median(column) for column in zip(*rows, strict=True)])
        gains.append([statistics.median(row[0] / row[place] for row in rows) for place in range(len(forms))])
    for place, form in enumerate(forms):
        yield Form(layer, form, tuple(each[place] for each in times), tuple(each[place] for each in gains))


def table(rows: list[Form]) -> str:
    """The rows as a Markdown table."""

    def cells(row: Form) -> list[str]:
        return [f"{ms:.3f} ({gain:.2f}×)" for ms, gain in zip(row.milliseconds, row.gains, strict=True)]

    return markdown(
        ("layer", "form", *(f"batch {batch}: ms (float / this)" for batch in BATCHES)),
        [(row.layer, row.form, *cells(row)) for row in rows],
    )


def _weight(size: int, scales: int) -> Ternary:
    weight = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    return twn(weight) if scales == 1 else requantize(weight)


def _plain(ternary: Ternary) -> Piece:
    piece = Piece()
    piece.node("MatMul", ["x", piece.constant("w", ternary.dense().T.contiguous().numpy())], "y")
    return piece


def _convolutions() -> tuple[Piece, Piece]:
    """A ternary 3×3 convolution on floats, and on activations in int8 (`ConvInteger`)."""
    codes = np.random.default_rng(0).integers(-1, 2, (64, 64, 3, 3)).astype(np.int8)
    window = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    plain, whole = Piece(), Piece()
    plain.node("Conv", ["x", plain.constant("w", codes.astype(np.float32) * np.float32(0.05))], "y", **window)
    whole.nodes.append(_dynamic())
    whole.node("ConvInteger", ["q", whole.constant("w", codes), "zero"], "sums", **window)
    whole.node("Cast", ["sums"], "floats", to=1)
    whole.node("Mul", ["step", whole.constant("s", np.array(0.05, np.float32))], "scale")
    whole.node("Mul", ["floats", "scale"], "y")
    return plain, whole


def _dynamic() -> Any:
    from onnx import helper

    return helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "step", "zero"])


def _call(opened: Any, samples: NDArray[np.float32]) -> Any:
    return lambda: opened.run(None, {"x": samples})


def _model(piece: Piece, dimensions: int) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    shape = [f"d{place}" for place in range(dimensions + 1)]
    ends: list[Any] = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    constants = [numpy_helper.from_array(value, name) for name, value in piece.constants.items()]
    graph = helper.make_graph(piece.nodes, "layer", ends[:1], ends[1:], constants)
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString())

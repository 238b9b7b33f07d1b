"""When the 2-bit product pays, and with which block: one matrix against its float product, one thread, in turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ternfed.bench.edge import BATCHES, turns
from ternfed.edge.forms import BLOCK, Piece, product
from ternfed.edge.predict import session
from ternfed.ternary import Ternary, requantize, twn

BLOCKS = (16, 32, 64, 128, 256)
SIZES = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Product:
    """One matrix: median milliseconds of the float product and of the 2-bit one, by batch."""

    size: int
    scales: int
    block: int
    plain: tuple[float, ...]
    packed: tuple[float, ...]


def run(seconds: float = 1.0) -> Iterator[Product]:
    """Every block for the largest matrix, then every size with the block that export uses."""
    for block in BLOCKS:
        yield measure(SIZES[-1], 1, block, seconds)
    for size in SIZES:
        for scales in (1, 2):
            yield measure(size, scales, BLOCK, seconds)


def measure(size: int, scales: int, block: int, seconds: float) -> Product:
    """One matrix of size × size, the two products in turns."""
    weight = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    ternary = twn(weight) if scales == 1 else requantize(weight)
    sessions = [session(_model(piece, size)) for piece in (_plain(ternary), _packed(ternary, block))]
    medians = []
    for batch in BATCHES:
        feed = {"x": np.random.default_rng(0).normal(size=(batch, size)).astype(np.float32)}
        rows = turns([lambda opened=opened, feed=feed: opened.run(None, feed) for opened in sessions], seconds)  # type: ignore[misc]
        medians.append([1e3 * statistics.median(column) for column in zip(*rows, strict=True)])
    return Product(size, scales, block, tuple(m[0] for m in medians), tuple(m[1] for m in medians))


def table(rows: list[Product]) -> str:
    """The rows as a Markdown table: how many times faster than float."""
    lines = ["| matrix | scales | block | " + " | ".join(f"batch {b}: float ms, 2-bit ms" for b in BATCHES) + " |"]
    lines.append("|---" * (3 + len(BATCHES)) + "|")
    for row in rows:
        times = [f"{a:.3f}, {b:.3f} ({a / b:.2f}×)" for a, b in zip(row.plain, row.packed, strict=True)]
        lines.append(f"| {row.size}×{row.size} | {row.scales} | {row.block} | {' | '.join(times)} |")
    return "\n".join(lines)


def _plain(ternary: Ternary) -> Piece:
    piece = Piece()
    dense: Tensor = ternary.dense()
    piece.node("MatMul", ["x", piece.constant("w", dense.T.contiguous().numpy())], "y")
    return piece


def _packed(ternary: Ternary, block: int) -> Piece:
    return product("w", ternary, None, "x", "", "y", block)


def _model(piece: Piece, size: int) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    ends: list[Any] = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name in "xy"]
    constants = [numpy_helper.from_array(value, name) for name, value in piece.constants.items()]
    graph = helper.make_graph(piece.nodes, "product", ends[:1], ends[1:], constants)
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString())

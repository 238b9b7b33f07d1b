"""How a ternary weight lies in an ONNX file, and the nodes that make it ready. Two forms:

- **unpacked at load** (convolutions and small matrices): five trits per byte, 1.6 bits per weight. Two lookups turn
  them into floats; their inputs are constant, so onnxruntime computes them once, when it opens the file, and runs the
  layer at the speed of a float one. w_p ≠ w_n costs nothing.
- **2-bit product** (large matrices): `MatMulNBits` of onnxruntime, four trits per byte, which multiplies from the
  packed weights with activations rounded to int8. One scale fits its grid {-1, 0, 1} · s. Two need two products:
  W = a·C + b·|C| with a = (w_p + w_n)/2, b = (w_p - w_n)/2; |C| is looked up from C at load, so the file holds C alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternfed.quantize.ternary import Ternary
from ternfed.wire.trits import digits, pack_neighbours

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

BLOCK = 128
"""Weights that share a scale in `MatMulNBits`. 16 and 256 have no int8 kernel: 300 times slower (docs/edge.md)."""
PRODUCT_FROM = 1 << 22
"""Matrices of so many weights use the 2-bit product; below, float is faster at batch 64 (docs/edge.md)."""

DOMAIN, UNPACK = "ternfed", "Unpack"


@dataclass(eq=False)
class Piece:
    """Nodes and constants to be added to a graph."""

    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self.constants[name] = value
        return name

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output


def unpacked(name: str, weight: Ternary, gain: Floats | None) -> Piece:
    """Makes the tensor `name`: scale × code, times one gain per output channel."""
    codes = weight.codes.numpy()
    piece = Piece()
    packed = piece.constant(f"{name}/packed", pack_neighbours(codes.reshape(-1)))
    levels = np.array([-weight.negative.item(), 0, weight.positive.item()], np.float32)
    scales = piece.constant(f"{name}/levels", levels)
    shape = piece.constant(f"shape/{'x'.join(map(str, codes.shape))}", np.array(codes.shape))
    plain = name if gain is None else f"{name}/plain"
    piece.node(UNPACK, [packed, scales, shape], plain, domain=DOMAIN)
    if gain is not None:
        gains = piece.constant(f"{name}/gain", gain.reshape(-1, *[1] * (codes.ndim - 1)))
        piece.node("Mul", [plain, gains], name)
    return piece


def unpack_function(opset: int) -> Any:
    """`Unpack(packed, levels, shape)` as an ONNX function that travels in the file: bytes to scale × code.

    First 243 × 5 floats of this layer, then one row of them per byte: no tensor of indices as large as the weight.
    """
    from onnx import TensorProto, helper, numpy_helper

    def constant(value: NDArray[Any], output: str) -> Any:
        return helper.make_node("Constant", [], [output], value=numpy_helper.from_array(value))

    nodes = [
        constant(digits(), "digits"),
        helper.make_node("Cast", ["digits"], ["places"], to=TensorProto.INT32),
        helper.make_node("Gather", ["levels", "places"], ["table"]),
        helper.make_node("Cast", ["packed"], ["rows"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "rows"], ["groups"]),
        constant(np.array([-1]), "all"),
        helper.make_node("Reshape", ["groups", "all"], ["padded"]),
        constant(np.array([0]), "start"),
        helper.make_node("ReduceProd", ["shape"], ["size"], keepdims=1),
        helper.make_node("Slice", ["padded", "start", "size"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["weight"]),
    ]
    return helper.make_function(
        DOMAIN, UNPACK, ["packed", "levels", "shape"], ["weight"], nodes, [helper.make_opsetid("", opset)]
    )


def product(
    name: str, weight: Ternary, gain: Floats | None, source: str, bias: str, output: str, block: int = BLOCK
) -> Piece:
    """output = source · (gain × weight)ᵀ + bias by 2-bit products; `bias` is the name of a tensor, or empty."""
    from onnx import TensorProto

    codes = weight.codes.numpy()
    rows, columns = codes.shape
    blocks = -(-columns // block)
    positive, negative = weight.positive.item(), weight.negative.item()
    piece = Piece()
    shape = piece.constant(f"{name}/blocks", np.array([rows, blocks]))
    options = {"K": columns, "N": rows, "bits": 2, "block_size": block, "accuracy_level": 4, "domain": "com.microsoft"}

    def scales(factor: float, suffix: str) -> str:
        values = np.float32(factor) * (np.ones((1, 1), np.float32) if gain is None else gain.reshape(-1, 1))
        return piece.node("Expand", [piece.constant(f"{name}/{suffix}", values), shape], f"{name}/{suffix}s")

    def multiply(packed: str, scale: str, bias: str, result: str) -> str:
        inputs = [source, packed, scale, *(["", "", bias] if bias else [])]
        return piece.node("MatMulNBits", inputs, result, **options)

    packed = piece.constant(f"{name}/packed", pack_pairs(codes, block))
    used = {scale for code, scale in ((1, positive), (-1, negative)) if (codes == code).any()}
    if len(used) <= 1:
        multiply(packed, scales(max(used, default=0.0), "scale"), bias, output)
        return piece
    table = piece.constant("sizes", _size_table())
    indices = piece.node("Cast", [packed], f"{name}/indices", to=TensorProto.INT32)
    sizes = piece.node("Gather", [table, indices], f"{name}/sizes")
    signed = multiply(packed, scales((positive + negative) / 2, "mean"), bias, f"{name}/signed")
    unsigned = multiply(sizes, scales((positive - negative) / 2, "half"), "", f"{name}/unsigned")
    piece.node("Add", [signed, unsigned], output)
    return piece


def pack_pairs(codes: NDArray[np.int8], block: int = BLOCK) -> Bytes:
    """Codes + 2 in two bits each, lowest first, rows filled with zeros to whole blocks: (rows, blocks, block / 4)."""
    rows, columns = codes.shape
    blocks = -(-columns // block)
    values = np.full((rows, blocks * block), 2, np.uint8)
    values[:, :columns] = codes + 2
    quads = values.reshape(rows, blocks, block // 4, 4)
    result: Bytes = quads[..., 0] | quads[..., 1] << 2 | quads[..., 2] << 4 | quads[..., 3] << 6
    return result


def _size_table() -> Bytes:
    """(256,): four codes in a byte to their absolute values in a byte."""
    codes = np.arange(256)[:, None] >> np.array([0, 2, 4, 6]) & 3
    sizes = 2 + np.abs(codes - 2) * (codes > 0)  # 0 never occurs
    packed: Bytes = (sizes << np.array([0, 2, 4, 6])).sum(1).astype(np.uint8)
    return packed

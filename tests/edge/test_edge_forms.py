"""How trits lie in an ONNX file: onnxruntime makes of them exactly the weights they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ternfed.edge.forms import BLOCK, Piece, product, unpack_function, unpacked
from ternfed.quantize.ternary import Ternary

onnx = pytest.importorskip("onnx", reason="the extra [edge]")
ort = pytest.importorskip("onnxruntime", reason="the extra [edge]")

OPSET = 20


def ternary(shape: tuple[int, ...], positive: float, negative: float, seed: int) -> Ternary:
    codes = torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
    return Ternary(codes, torch.tensor(positive), torch.tensor(negative))


def model_of(piece: Piece, output: str, inputs: list[Any]) -> bytes:
    from onnx import helper, numpy_helper

    out = [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in piece.constants.items()]
    graph = helper.make_graph(piece.nodes, "g", inputs, out, constants)
    domains = [("", OPSET), ("ternfed", 1), ("com.microsoft", 1)]
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*each) for each in domains], ir_version=10,
        functions=[unpack_function(OPSET)],
    )  # fmt: skip
    return bytes(made.SerializeToString())


def run(data: bytes, feed: dict[str, Any]) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    result: np.ndarray = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feed)[0]
    return result


scales = st.floats(2**-20, 2**10, width=32)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=5).map(tuple), positive=scales, negative=scales,
    seed=st.integers(0, 9),
)  # fmt: skip
def test_unpacked_weights_are_bit_for_bit_scale_times_code(
    shape: tuple[int, ...], positive: float, negative: float, seed: int
) -> None:
    weight = ternary(shape, positive, negative, seed)
    found = run(model_of(unpacked("w", weight, None), "w", []), {})
    np.testing.assert_array_equal(found, weight.dense().numpy())


def test_a_gain_multiplies_each_output_channel() -> None:
    weight = ternary((4, 3, 3, 3), 0.5, 0.25, 0)
    gain = np.array([1, -2, 0, 0.125], np.float32)
    found = run(model_of(unpacked("w", weight, gain), "w", []), {})
    np.testing.assert_array_equal(found, weight.dense().numpy() * gain[:, None, None, None])


def test_five_trits_share_a_byte() -> None:
    def packed(codes: np.ndarray) -> np.ndarray:
        weight = Ternary(torch.from_numpy(codes), torch.tensor(1.0), torch.tensor(1.0))
        return unpacked("w", weight, None).constants["w/packed"]

    assert packed(np.zeros((64, 64, 3, 3), np.int8)).nbytes == -(-64 * 64 * 9 // 5)
    assert packed(np.array([1, 1, 1, 1, 1], np.int8)).tolist() == [242]
    assert packed(np.array([-1, 0, 1], np.int8)).tolist() == [0 + 3 + 2 * 9 + 27 + 81]


def test_onnxruntime_unpacks_when_it_opens_the_file_and_never_again(tmp_path: Path) -> None:
    """The graph that is left to run holds the floats and no lookup."""
    piece = unpacked("w", ternary((8, 8), 0.5, 0.25, 0), np.ones(8, np.float32))
    piece.node("MatMul", ["x", "w"], "y")
    source = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 8])
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "after.onnx")
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    ort.InferenceSession(model_of(piece, "y", [source]), options, providers=["CPUExecutionProvider"])
    left = onnx.load(str(tmp_path / "after.onnx")).graph
    assert [node.op_type for node in left.node] == ["MatMul"]
    assert [(tuple(each.dims), each.data_type) for each in left.initializer] == [((8, 8), onnx.TensorProto.FLOAT)]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40), columns=st.integers(1, 3 * BLOCK), batch=st.integers(1, 5), positive=scales,
    negative=scales, same=st.booleans(), gained=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
def test_the_2_bit_product_is_off_by_no_more_than_rounding_the_activations_to_int8(
    rows: int, columns: int, batch: int, positive: float, negative: float, same: bool, gained: bool, seed: int
) -> None:
    """Each activation moves by at most half a step, max|x| of its block / 254; the weights stay exact."""
    weight = ternary((rows, columns), positive, positive if same else negative, seed)
    generator = np.random.default_rng(seed)
    gain = generator.normal(size=rows).astype(np.float32) if gained else None
    x = generator.normal(size=(batch, columns)).astype(np.float32)
    bias = generator.normal(size=rows).astype(np.float32)
    piece = product("w", weight, gain, "x", "b", "y")
    piece.constant("b", bias)
    source = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", columns])
    found = run(model_of(piece, "y", [source]), {"x": x})

    gains = np.ones(rows) if gain is None else gain.astype(np.float64)
    dense = weight.dense().numpy().astype(np.float64) * gains[:, None]
    padded = np.zeros((batch, -(-columns // BLOCK) * BLOCK))
    padded[:, :columns] = np.abs(x)
    step = np.repeat(padded.reshape(batch, -1, BLOCK).max(2), BLOCK, axis=1)[:, :columns] / 254
    # Of a·C + b·|C| both parts see the rounded activations, so what counts is |a| + |b|, the larger scale.
    scale = np.abs(gains)[:, None] * np.full((rows, columns), max(weight.positive.item(), weight.negative.item()))
    bound = step @ (scale * np.abs(weight.codes.numpy())).T
    # Float32 sums of up to 3·s·x, from which 2·s·x is taken for the zero point: 5 times 2⁻²³, with room for the order.
    rounding = 1e-6 * (np.abs(x) @ (5 * scale).T + np.abs(bias))
    assert (np.abs(found - (x @ dense.T + bias)) <= bound + rounding).all()

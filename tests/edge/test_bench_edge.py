"""`ternfed bench edge`: three ways to run a model, measured side by side."""

from __future__ import annotations

import pytest
import torch

from ternfed.bench.edge import SIDES, measure, table
from ternfed.edge import Inputs, trained
from ternfed.models import mlp
from ternfed.quantize.layers import ternarize_

pytest.importorskip("onnxscript", reason="the extra [edge]")


def test_a_row_holds_size_memory_and_time_of_each_side() -> None:
    torch.manual_seed(0)
    case = measure(
        "MLP", trained(ternarize_(mlp(hidden=(64, 64))), Inputs((1, 28, 28))), 0.05, smaller=1.01, faster=1e6
    )
    assert tuple(side.name for side in case.sides) == SIDES
    for side in case.sides:
        assert side.bytes > 40_000
        assert 10e6 < side.runtime_memory <= side.memory < 2e9
        assert all(0 < seconds < 1 for seconds in side.seconds)
    torch_side, plain, ternary = case.sides
    # 784·64 + 64·10 floats, and 64·64 as floats or five a byte.
    assert plain.bytes - ternary.bytes == pytest.approx(4096 * (4 - 1 / 5), abs=3000)
    assert torch_side.runtime_memory > plain.runtime_memory
    assert [promise.kept for promise in case.promises][:2] == [True, False]
    lines = table([case]).splitlines()
    assert len([line for line in lines if line.startswith("| MLP |")]) == 3 + len(case.promises)
    assert "**no**" in table([case])

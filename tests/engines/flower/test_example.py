"""`examples/flower` runs as it is under Flower's own commands, and its messages are ternary."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import torch

from ternfed.algorithms.algorithm import Network
from ternfed.bench.stock_flower import run_app, stock_flower
from ternfed.engines.flower.strategy import Carrier
from ternfed.models import mlp
from ternfed.quantize.layers import freeze, ternarize_

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower"


def test_flwr_run_runs_the_example_as_it_is_and_it_learns(tmp_path: Path) -> None:
    app = tmp_path / "ternary-digits"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    with stock_flower(tmp_path, 2) as environment:
        lines = "\n".join(line for _, line in run_app(app, environment, seconds=200))
    found = re.search(r"down (\d+) bytes, up (\d+); as float32 (\d+) each way", lines)
    assert found is not None, lines[-3000:]
    down, up, float32 = map(int, found.groups())
    # The first and the last layer, half of the weights, travel in full precision.
    assert 0 < up <= down < 0.6 * float32
    accuracies = [float(number) for number in re.findall(r"'?accuracy'?\"?: ([\d.]+)", lines)]
    assert accuracies, lines[-3000:]
    assert accuracies[-1] > 0.8


def test_weights_that_are_exactly_ternary_travel_without_loss() -> None:
    torch.manual_seed(0)
    carrier = Carrier(Network.of(mlp(inputs=12, classes=3)))
    frozen = dict(freeze(ternarize_(mlp(inputs=12, classes=3))).state_dict())
    back, codes = carrier.decode(carrier.encode(frozen))
    assert all(torch.equal(back[name], frozen[name]) for name in frozen)
    again, _ = carrier.decode(carrier.encode(frozen, codes), codes)
    assert all(torch.equal(again[name], frozen[name]) for name in frozen)


def test_what_two_layers_share_travels_once_and_arrives_under_both_names() -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(6, 4), "head": torch.nn.Linear(4, 6, bias=False)})
    model["head"].weight = model["embed"].weight
    carrier = Carrier(Network.of(model))
    state = dict(model.state_dict())
    back, _ = carrier.decode(carrier.encode(state))
    assert [slot.name for slot in carrier.schema.slots] == ["embed.weight"]
    assert all(torch.equal(back[name], state[name]) for name in state)

"""Multiplications of a trained model, from its settings and records alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from run_folders import known_run
from ternfed.experiment.experiment import Experiment
from ternfed.paper.groups import Group, collect
from ternfed.paper.inference import products
from ternfed.paper.model_size import model_size


def group(tmp_path: Path, *settings: str, zeros: float | None = None) -> Group:
    experiment = Experiment.from_toml("", [*settings, "federation.rounds=1"])
    known_run(tmp_path / "run", experiment, [{"score": 0.5, "zeros": zeros}])
    (found,) = collect([tmp_path / "run"]).groups
    return found


MLP = ("data.dataset=mnist", "model.name=mlp")


def test_floats_are_multiplied_one_by_one(tmp_path: Path) -> None:
    assert products(group(tmp_path, *MLP, "algorithm.name=fedavg")) == (24_320, 24_320)


@pytest.mark.parametrize(
    ("ternary", "left"), [("inner", 784 * 30 + 20 + 20 * 10), ("all", 30 + 20 + 10)], ids=["inner layer", "every layer"]
)
def test_a_ternary_layer_multiplies_once_for_each_output(tmp_path: Path, ternary: str, left: int) -> None:
    assert products(group(tmp_path, *MLP, f"model.ternary={ternary}", zeros=0.4)) == (left, 24_320)


def test_a_last_broadcast_without_trits_is_a_model_of_floats(tmp_path: Path) -> None:
    assert products(group(tmp_path, *MLP)) == (24_320, 24_320)


def test_a_kernel_is_used_at_every_place_of_the_image(tmp_path: Path) -> None:
    found = products(group(tmp_path, "data.dataset=cifar10", "model.name=resnet18", zeros=0.3))
    assert found is not None
    stem, head = 3 * 9 * 64 * 32 * 32, 64 * 10
    # Four kernels of 3×3 at 32×32 places, four at 16×16, 8×8 and 4×4, and a 1×1 where the image halves.
    places = 4 * 32**2 + 4 * 16**2 + 4 * 8**2 + 4 * 4**2
    halved = 16**2 + 8**2 + 4**2
    assert found.float32 == stem + head + 64 * 64 * (9 * places + halved)
    assert found.own == stem + head + 64 * (places + halved)


@pytest.mark.parametrize("name", ["charlstm", "chartransformer"])
def test_networks_for_text_count_too(tmp_path: Path, name: str) -> None:
    found = products(group(tmp_path, "data.dataset=shakespeare", f"model.name={name}", zeros=0.3))
    assert found is not None
    assert 0 < found.own < 0.5 * found.float32


def test_masks_are_bits_and_additions(tmp_path: Path) -> None:
    masked = group(tmp_path, *MLP, "algorithm.name=fedpm")
    assert model_size(masked) == (24_320 // 8, 4 * 24_320)
    assert products(masked) == (30 + 20 + 10, 24_320)


def test_a_network_of_ones_own_is_not_counted(tmp_path: Path) -> None:
    assert (
        products(group(tmp_path, "data.dataset=mnist", "model.name=own_parts:small_network", "algorithm.name=fedavg"))
        is None
    )

"""What a model weighs, told from settings and records, beside what its export really weighs."""

from __future__ import annotations

from pathlib import Path

import pytest

from run_folders import real_run
from ternfed.edge.files import export
from ternfed.edge.trained import open_trained
from ternfed.experiment.experiment import Experiment
from ternfed.paper.groups import collect
from ternfed.paper.model_size import model_size


def test_a_models_size_is_about_that_of_its_export(tmp_path: Path) -> None:
    folder = real_run(tmp_path / "run", "model.hidden=[200, 200]", "model.ternary=all")
    (group,) = collect([folder]).groups
    size = model_size(group)
    assert size is not None
    exported = export(open_trained(folder, which="last"), tmp_path / "model.tern")
    settings = len(Experiment.from_table({**group.settings, "name": "x", "seed": 0}).to_toml())
    assert size.float32 == exported.float32_bytes
    assert size.own == pytest.approx(exported.bytes, abs=settings + 0.1 * size.own)


def test_a_model_of_floats_has_four_bytes_for_every_number(tmp_path: Path) -> None:
    (group,) = collect([real_run(tmp_path / "run", "algorithm.name=fedavg", "model.hidden=[20]")]).groups
    assert model_size(group) == (4 * (64 * 20 + 20 * 10),) * 3  # it has no biases


@pytest.mark.parametrize("algorithm", ["fedpaq", "eden"])
def test_numbers_that_broadcasts_round_can_be_packed(tmp_path: Path, algorithm: str) -> None:
    rounding = ("algorithm.bits_down=3", "algorithm.finest_bits=4", "model.hidden=[20]")
    folder = real_run(tmp_path / "run", f"algorithm.name={algorithm}", *rounding)
    size = model_size(collect([folder]).groups[0])
    assert size == (4 * 1480, 1480 * 4 // 8 + 2 * (20 + 10), 4 * 1480)
    weights = open_trained(folder, which="last").weights
    rows = [row for name in weights for row in weights[name]]
    assert len(rows) == 30
    for row in rows:  # four bits are -7 to 7
        assert len(row.unique()) <= 15
        assert row.abs().max() <= 7 * row[row != 0].abs().min()


def test_of_a_ternary_model_the_rest_can_be_packed(tmp_path: Path) -> None:
    (group,) = collect([real_run(tmp_path / "run", "model.hidden=[200, 200]")]).groups
    size = model_size(group)
    assert size is not None
    others = 64 * 200 + 200 * 10
    assert size.own - size.packed == 4 * others - (others * 6 // 8 + 2 * (200 + 10))

"""What a model weighs, told from settings and records, beside what its export really weighs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from run_folders import real_run
from ternfed.edge.files import export, inspect
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
    assert model_size(group) == (4 * (64 * 20 + 20 * 10),) * 2  # it has no biases


@pytest.mark.parametrize("algorithm", ["fedpaq", "eden", "fedbat", "stc", "tfedavg"])
def test_numbers_that_broadcasts_round_take_as_many_bits_as_they_have(tmp_path: Path, algorithm: str) -> None:
    rounding = {"tfedavg": ["algorithm.rest_bits_down=3"], "stc": []}.get(algorithm, ["algorithm.bits_down=3"])
    settings = (f"algorithm.name={algorithm}", *rounding, "algorithm.finest_bits=4", "model.hidden=[200]")
    folder = real_run(tmp_path / "run", *settings, *(['model.ternary=["linear2"]'] if algorithm == "tfedavg" else []))
    (group,) = collect([folder]).groups
    size = model_size(group)
    assert size is not None
    floats = 64 * 200 + (0 if algorithm == "tfedavg" else 200 * 10)
    assert size.own == pytest.approx(floats / 2, rel=0.2)  # and a step per row, and trits
    model = open_trained(folder, which="last")
    written = export(model, tmp_path / "model.tern")
    assert 0.3 * size.own < written.bytes < size.own + 2000  # settings and names beside it; codes at their entropy
    again = open_trained(tmp_path / "model.tern").weights
    assert all(torch.equal(again[name], tensor) for name, tensor in model.weights.items())
    kinds = {line.kind for line in inspect(tmp_path / "model.tern").rows}
    assert kinds == ({"grid_rows", "ternary"} if algorithm == "tfedavg" else {"grid_rows"})

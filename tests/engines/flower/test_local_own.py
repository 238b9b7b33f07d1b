"""`ternfed server --local N` with parts of the user's own: real processes, and the bits of `ternfed run`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from ternfed.data.sets import from_arrays, save_arrays

OWN = """
import torch
from torch import nn

from ternfed.task import Measure, Metric, Task


def data():
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(240, 6, generator=draw)
    targets = inputs.sum(1, keepdim=True).sin()
    return inputs[:200], targets[:200], inputs[200:], targets[200:]


def net(inputs, classes):
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, classes))


def task():
    error = Metric(
        Measure("error", higher_is_better=False),
        add=lambda outputs, targets: (outputs - targets).abs().sum(),
        finish=lambda errors, samples: float(errors) / samples,
    )
    return Task("own", loss=nn.functional.mse_loss, metric=error, predict=lambda outputs: outputs)
"""
CODE = ("model.name=my_parts:net", "data.dataset=my_parts:data", "task.name=my_parts:task", "data.hold_out=0.1")
FILE = """
[federation]
aggregate = "mean"
[model]
name = "my_parts:net"
[data]
dataset = "my_parts:data"
hold_out = 0.1
[task]
name = "my_parts:task"
"""


def ternfed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ternfed", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def compare(folder: Path, *arguments: str) -> None:
    """Two local clients, and the same experiment in one process: the same records and the same weights."""
    two = ("--set", "federation.rounds=2", "--set", "federation.participation=1.0", "--json")
    over = ternfed(folder, "server", *arguments, "--local", "2", *two, "--out", "served")
    assert over.returncode == 0, over.stderr
    simulated = ternfed(folder, "run", *arguments, "--set", "federation.clients=2", *two, "--out", "simulated")
    assert simulated.returncode == 0, simulated.stderr
    assert json.loads(over.stdout)["rounds"] == 2
    for file in ("rounds.jsonl", "last.safetensors"):
        assert (folder / "served" / file).read_bytes() == (folder / "simulated" / file).read_bytes()


def test_network_data_and_task_of_a_module_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "my_parts.py").write_text(OWN)
    settings = [word for setting in (*CODE, "federation.aggregate=mean") for word in ("--set", setting)]
    compare(tmp_path, *settings)


def test_a_file_names_code_for_local_clients_only_where_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "my_parts.py").write_text(OWN + "\nprint('it ran')\n")
    (tmp_path / "own.toml").write_text(FILE)
    refused = ternfed(tmp_path, "server", "own.toml", "--local", "2", "--out", "refused")
    assert refused.returncode == 2
    assert "own.toml names code" in refused.stderr
    assert "--allow my_parts" in refused.stderr
    assert "it ran" not in refused.stdout
    assert not (tmp_path / "refused").exists()
    (tmp_path / "my_parts.py").write_text(OWN)
    compare(tmp_path, "own.toml", "--allow", "my_parts")


def test_a_folder_of_text_with_a_space_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "my texts").mkdir()
    for name in ("anna", "béla"):
        (tmp_path / "my texts" / f"{name}.txt").write_text(f"to be {name} or not to be ünique, " * 40)
    settings = ("data.dataset=text:my texts", "data.length=20", "model.width=8", "federation.aggregate=mean")
    compare(tmp_path, *(word for setting in settings for word in ("--set", setting)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrays", "parquet"])
def test_a_folder_of_arrays_with_numbers_to_predict(tmp_path: Path, kind: str) -> None:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(120, 5)).astype(np.float32)
    targets = inputs.sum(1, keepdims=True)
    folder = tmp_path / "rows"
    if kind == "arrays":
        save_arrays(
            from_arrays("rows", inputs[:90], targets[:90], inputs[90:], targets[90:], task="regression"), folder
        )
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        folder.mkdir()
        for split, part in (("train", slice(0, 90)), ("test", slice(90, 120))):
            columns = {"inputs": inputs[part].tolist(), "label": targets[part].tolist()}
            parquet.write_table(arrow.table(columns), folder / f"{split}.parquet")
    settings = (f"data.dataset={kind}:rows", "task.name=regression", "federation.aggregate=mean", "data.hold_out=0.1")
    compare(tmp_path, *(word for setting in settings for word in ("--set", setting)))

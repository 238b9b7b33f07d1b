"""Opening a file runs no code that the file names; a user may allow a module again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from safetensors import safe_open
from safetensors.torch import save
from verbs import Command

from ternfed.experiment.experiment import Experiment
from ternfed.files import KEY
from ternfed.named_function import FunctionMissing, NotAllowed, named_function
from ternfed.runs.folder import RunFolder
from ternfed.wire import load_tern, save_tern

BAIT = """
from pathlib import Path
from subprocess import Popen
from torch import nn
Path("bitten").touch()

def network(inputs: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))

class Model(nn.Module):
    pass

value = 5
"""
NAMED = [
    ("model", "name", "bait:network"),
    ("model", "name", "subprocess:Popen"),
    ("data", "dataset", "bait:network"),
    ("task", "name", "bait:network"),
    ("algorithm", "name", "bait:network"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the bait in it."""
    (tmp_path / "bait.py").write_text(BAIT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("bait", None)


def renamed(facts: str, section: str, key: str, name: str) -> str:
    table = json.loads(facts)
    table["settings"][section][key] = name
    if section == "task":
        table["settings"]["task"]["metric"] = "own"
    return json.dumps(table)


def lying_file(good: Path, to: Path, suffix: str, named: tuple[str, str, str]) -> Path:
    """A model file whose settings name code."""
    source, file = good / f"model.{suffix}", to / f"model.{suffix}"
    if suffix == "tern":
        tensors, notes = load_tern(source)
        save_tern(file, tensors, {**notes, KEY: renamed(notes[KEY], *named)})
    elif suffix == "safetensors":
        with safe_open(source, framework="pt") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # type: ignore[misc] # noqa: SIM118
            file.write_bytes(save(tensors, {KEY: renamed(stream.metadata()[KEY], *named)}))  # type: ignore[arg-type]
    else:
        onnx = pytest.importorskip("onnx")
        model = onnx.load(str(source))
        for each in model.metadata_props:
            each.value = renamed(each.value, *named)
        file.write_bytes(model.SerializeToString())
    return file


@pytest.mark.parametrize("suffix", ["tern", "safetensors", "onnx"])
@pytest.mark.parametrize("named", NAMED, ids=lambda named: f"{named[0]}.{named[1]}={named[2]}")
def test_a_model_file_runs_nothing(
    good: Path, here: Path, suffix: str, named: tuple[str, str, str], ternfed: Command
) -> None:
    file = lying_file(good, here, suffix, named)
    verbs: list[tuple[Any, ...]] = [("inspect", file), ("predict", file)]
    verbs += [("export", file, "--to", here / "out.tern")] if suffix != "onnx" else []
    for verb in verbs:
        result = ternfed(*verb)
        if verb[0] != "inspect":
            assert result.exit_code == 2, result.output
            assert f"give --allow {named[2].partition(':')[0]}" in result.stderr.replace("\n", " ")
        assert not (here / "bitten").exists()


def test_a_class_or_command_of_an_allowed_module_is_no_network(good: Path, here: Path, ternfed: Command) -> None:
    file = lying_file(good, here, "tern", ("model", "name", "subprocess:Popen"))
    result = ternfed("predict", file, "--allow", "subprocess")
    assert result.exit_code == 2
    assert "Popen of the module subprocess is neither a function nor a Module" in result.stderr.replace("\n", " ")


def test_what_the_user_allows_again_runs(good: Path, here: Path, ternfed: Command) -> None:
    file = lying_file(good, here, "tern", ("model", "name", "bait:network"))
    result = ternfed("predict", file, "--allow", "bait")
    assert (here / "bitten").exists()
    assert result.exit_code == 2  # its weights are others
    assert "--allow" not in result.stderr


@pytest.mark.parametrize("section", ["model", "algorithm", "data", "task"])
def test_a_run_folder_and_an_experiment_file_run_nothing(
    good: Path, here: Path, section: str, ternfed: Command
) -> None:
    shutil.copytree(good / "run", here / "run")
    config = here / "run" / "config.toml"
    table = tomllib.loads(config.read_text())
    table[section] = {"dataset" if section == "data" else "name": "bait:network"}
    config.write_text(tomli_w.dumps(table))
    for verb in (
        ("export", "run", "--to", "out.tern"),
        ("run", "--resume", "--out", "run"),
        ("run", config, "--out", "new"),
        ("plan", config),
        ("report", "run", "--out", "page"),
    ):
        result = ternfed(*verb)
        assert not (here / "bitten").exists(), verb
        if verb[0] != "report":
            assert result.exit_code == 2, result.output
            assert "give --allow bait" in result.stderr.replace("\n", " ")
    with pytest.raises(NotAllowed):
        RunFolder.resume(here / "run")
    with pytest.raises(NotAllowed):
        Experiment.from_file(config)


def test_a_name_on_the_command_line_is_the_users_own(here: Path) -> None:
    (here / "empty.toml").write_text("")
    assert Experiment.from_file(here / "empty.toml", ["model.name=bait:network"]).model.name == "bait:network"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bait:Popen", "Popen is not defined in the module bait"),
        ("bait:Path", "Path is not defined in the module bait"),
        ("bait:value", "has no function value"),
        ("bait:Model", "Model of the module bait is no function"),
        ("os:system", "system is not defined in the module os"),
    ],
)
def test_a_name_is_a_function_of_its_own_module(here: Path, name: str, reason: str) -> None:
    with pytest.raises(FunctionMissing, match=reason):
        named_function(name)


@pytest.mark.parametrize("command", [["-m", "ternfed"], ["-c", "from ternfed.cli.app import main; main()"]])
def test_a_module_in_the_current_folder_is_not_taken_for_a_library(good: Path, here: Path, command: list[str]) -> None:
    for library in ("zstandard", "constriction", "rich", "onnx"):
        (here / f"{library}.py").write_text('from pathlib import Path\nPath("bitten").touch()\n')
    safe = ["-P"] if command[0] == "-c" else []  # `-c` itself puts the current folder first; a script does not
    result = subprocess.run(
        [sys.executable, *safe, *command, "inspect", str(good / "model.tern")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert not (here / "bitten").exists()

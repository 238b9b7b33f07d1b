"""`ternfed plan` as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ternfed.cli import terminal
from ternfed.cli.app import app

MODULE = """
from torch import nn

def small(inputs: int, classes: int, width: int = 16) -> nn.Module:
    sizes = (nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, classes))
    return nn.Sequential(nn.Flatten(), *sizes)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(terminal, "out", Console(width=120))


def planned(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["plan", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_plan_shows_layers_costs_memory_and_files() -> None:
    shown = planned("mlp", "--up", "8", "--down", "16", "--rounds", "5")
    for words in ("linear2.weight", "ternary", "tfedavg, worst", "fedavg, typical", "8 Mbit/s up and 16 down",
                  "20.0% of the trits flip", "Memory on the server", "Memory on the client", ".tern"):  # fmt: skip
        assert words in shown


def test_the_page_shows_what_the_command_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    command, _, shown = page.partition("$ ternfed plan ")[2].partition("```")[0].partition("\n")
    said = " ".join(planned(*command.split()).split())
    for part in re.split(r"│ …[ │]*\n", shown):  # rows that the page leaves out
        assert " ".join(part.split()) in said


def test_names_of_layers_are_whole_however_narrow_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "out", Console(width=60))
    shown = planned("chartransformer", "--dataset", "shakespeare")
    assert "…" not in shown


def test_samples_per_client_are_those_of_the_data_or_as_given() -> None:
    assert "20 clients with 67 training samples each" in planned("mlp")
    assert "20 clients with 9 training samples each" in planned("mlp", "--samples", "9")
    unknown = planned("mlp", "--dataset", "flwrlabs/femnist", "--clients", "5")
    assert "How many samples a client has is not known (--samples says it)" in unknown


def test_json_is_one_object_and_nothing_else() -> None:
    value = json.loads(planned("mlp", "--algorithm", "fedpaq", "--set", "algorithm.bits_up=4", "--json"))
    assert value["traffic"]["algorithm"] == "fedpaq"
    assert value["traffic"]["up"]["best"] < value["traffic"]["up"]["typical"] < value["fedavg"]["up"]["typical"]
    assert value["server"]["total"] == sum(count for key, count in value["server"].items() if key != "total")
    assert [layer["name"] for layer in value["layers"]] == ["linear1.weight", "linear2.weight", "linear3.weight"]


def test_ones_own_function_and_an_experiment_that_names_it() -> None:
    Path("planned_models.py").write_text(MODULE, encoding="utf-8")
    Path("own.toml").write_text('[model]\nname = "planned_models:small"\nwidth = 32\n', encoding="utf-8")
    by_name = json.loads(planned("planned_models:small", "--json"))
    by_file = json.loads(planned("own.toml", "--allow", "planned_models", "--set", "model.width=16", "--json"))
    assert by_name == by_file
    assert by_name["ternary"] == 16 * 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], 'model.name = "nothing"'),
        (["nothing.toml"], "nothing.toml: cannot be read"),
        (["mlp", "--algorithm", "centralized"], "nothing travels"),
        (["mlp", "--algorithm", "nothing"], 'algorithm.name = "nothing"'),
        (["mlp", "--up", "0"], "--up 0.0"),
        (["mlp", "--down", "nan"], "--down nan"),
        (["mlp", "--flips", "1.5"], "--flips 1.5"),
        (["mlp", "--clients", "0"], "federation.clients = 0"),
        (["mlp", "--samples", "0"], "--samples 0: at least 1 is needed"),
        (["mlp", "--set", "model.hidden=[7]"], "no layer that can be ternary"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_sentence(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["plan", *arguments])
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

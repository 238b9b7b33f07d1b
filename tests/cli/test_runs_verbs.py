"""`ls` and `compare`: runs that are there, one line each and side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from run_folders import known_run
from ternfed.cli.app import app

SETTINGS = ["data.dataset=digits", "federation.clients=5", "federation.rounds=2"]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    judged = [{"score": 0.5, "validation": 0.9}, {"score": 0.625, "validation": 0.8}]
    known_run(tmp_path / "runs/one", SETTINGS, judged)
    floats = {"score": 0.75, "bytes_up": 4000, "bytes_down": 1000}
    known_run(tmp_path / "runs/deep/two", [*SETTINGS, "algorithm.name=fedavg", "training.rate=0.5"], [floats])
    return tmp_path / "runs"


class TestLs:
    def test_lists_the_runs_of_a_folder_with_state_and_best(self) -> None:
        result = call("ls")
        assert result.exit_code == 0, result.output
        heading, *lines = result.stdout.splitlines()
        assert heading.split()[:3] == ["run", "state", "algorithm"]
        two, one = sorted(lines, reverse=True)
        assert "finished, 2 rounds" in one
        assert "62.50%" in one
        assert "50.00%" in one  # the best by validation, not by test
        assert "stopped at 1 of 2" in two
        assert "4.0 kB" in two

    def test_gives_machines_everything(self) -> None:
        found = {Path(run["run"]).name: run for run in json.loads(call("ls", "runs", "--json").stdout)["runs"]}
        assert (found["one"]["best"], found["one"]["best_round"], found["two"]["state"]) == (0.5, 1, "stopped")

    def test_a_folder_without_runs_is_one_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        for folder in ("empty", "nowhere"):
            result = call("ls", folder)
            assert result.exit_code == 2
            assert result.stderr.startswith(f"ternfed: {folder}: ")


class TestCompare:
    def test_shows_what_differs_and_what_came_out(self) -> None:
        result = call("compare", "runs/one", "runs/deep/two")
        assert result.exit_code == 0, result.output
        rows = {line.split("│")[1].strip(): line.split("│")[2:4] for line in result.stdout.splitlines() if "│" in line}
        assert [cell.strip() for cell in rows["algorithm.name"]] == ["tfedavg", "fedavg"]
        assert "training.rate" in rows
        assert "data.dataset" not in rows
        assert [cell.strip() for cell in rows["test accuracy, last round"]] == ["62.50%", "75.00%"]
        assert [cell.strip() for cell in rows["megabytes up"]] == ["0.002", "0.004 (2.0 times)"]
        assert [cell.strip() for cell in rows["megabytes down"]] == ["0.004", "0.001 (1/4.0)"]

    def test_writes_the_same_as_a_page(self) -> None:
        pytest.importorskip("matplotlib")
        result = call("compare", "runs/one", "runs/deep/two", "--out", "pages/both.html", "--json")
        value = json.loads(result.stdout)
        assert {"algorithm.name", "training.rate"} <= set(value["differing"])
        text = Path(value["page"]).read_text(encoding="utf-8")
        for words in ("algorithm.name", "fedavg", "75.00%", "<svg", "0.004 (2.0 times)"):
            assert words in text

    def test_one_run_cannot_be_compared(self) -> None:
        result = call("compare", "runs/one")
        assert result.exit_code == 2
        assert "name at least two" in result.stderr

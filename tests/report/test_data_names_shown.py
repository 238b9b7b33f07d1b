"""A data set given as `module:function` is called by its own name wherever runs are shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from run_folders import known_run
from ternfed.cli.app import app
from ternfed.paper.groups import collect
from ternfed.report import accuracy
from ternfed.report.labels import by_comparison, data_label
from ternfed.report.tables import Sheet
from ternfed.runs.folder import read_run
from ternfed.runs.partition import partition_line
from ternfed.watch.follow import Board, Follower
from ternfed.watch.state import heads

OWN = """
import torch
from ternfed import from_arrays

def data(name, shift):
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + shift
    labels = (inputs[:, 0] > shift).long()
    return from_arrays(name, inputs[:40], labels[:40], inputs[40:], labels[40:])

def load():
    return data("Hospital: ward <7>", 0)

def other():
    return data("Street lamps", 1)
"""
SMALL = (
    "--set", "federation.clients=2", "--set", "federation.rounds=1", "--set", "training.batch=8",
    "--set", "algorithm.name=fedavg", "--set", "model.name=mlp", "--set", "model.hidden=[4, 4]",
)  # fmt: skip
KNOWN = ("federation.clients=2", "federation.participation=1", "federation.rounds=1", "algorithm.name=fedavg")


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two runs on data of the user's own, made as a user makes them."""
    place = tmp_path_factory.mktemp("own")
    (place / "shown_data.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        for function in ("load", "other"):
            out = place / "runs" / function
            call("run", "--set", f"data.dataset=shown_data:{function}", *SMALL, "--out", out)
        yield place / "runs"


def named(path: Path, setting: str, name: str | None, *more: str) -> Path:
    known_run(path, [f"data.dataset={setting}", *KNOWN, *more], [{}])
    if name is not None:
        (path / "partition.json").write_bytes(partition_line([[1, 2], [3, 4]], name))
    return path


def summary(path: Path) -> Sheet:
    sheet = accuracy.summary(collect([path]).groups)
    assert sheet is not None
    return sheet


def test_the_folder_keeps_it(runs: Path) -> None:
    found = read_run(runs / "load")
    assert found.data_name == "Hospital: ward <7>"
    assert found.partition is not None


def test_ls_shows_it(runs: Path) -> None:
    text = call("ls", runs)
    assert "Hospital: ward <7>" in text
    assert "Street lamps" in text
    assert "shown_data" not in text
    assert {run["data"] for run in json.loads(call("ls", runs, "--json"))["runs"]} == {
        "Hospital: ward <7>", "Street lamps",
    }  # fmt: skip


def test_compare_shows_it_beside_the_setting(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    text = call("compare", runs / "load", runs / "other", "--out", tmp_path / "both.html")
    rows = [[cell.strip() for cell in line.split("│")[1:4]] for line in text.splitlines() if "│" in line]
    at = rows.index(["data.dataset", "shown_data:load", "shown_data:other"])
    assert rows[at + 1] == ["data set's own name", "Hospital: ward <7>", "Street lamps"]
    page = (tmp_path / "both.html").read_text()
    assert "Hospital: ward &lt;7&gt;" in page
    assert "ward <7>" not in page


def test_compare_says_nothing_of_it_where_it_is_the_same(tmp_path: Path) -> None:
    named(tmp_path / "a", "own:load", "wards")
    named(tmp_path / "b", "own:load", "wards", "training.rate=0.5")
    assert "wards" not in call("compare", tmp_path)


def test_the_report_shows_it_in_the_table_and_on_the_page(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    call("report", runs, "--out", tmp_path)
    page, tables = (tmp_path / "index.html").read_text(), (tmp_path / "tables.md").read_text()
    assert "Hospital: ward &lt;7&gt;, IID" in page
    assert "ward <7>" not in page
    assert "| Hospital: ward &lt;7&gt;, IID |" in tables
    assert "| Street lamps, IID |" in tables
    assert (tmp_path / "figures" / "distribution-street-lamps.svg").is_file()


def test_the_live_page_shows_it_as_soon_as_it_is_known(tmp_path: Path) -> None:
    path = named(tmp_path / "a", "own:load", None)
    follower = Follower(path)

    def facts() -> dict[str, str]:
        seen = follower.look()
        assert seen is not None
        found: dict[str, str] = heads([seen])[0]["facts"]
        return found

    assert "data set" not in facts()
    (path / "partition.json").write_bytes(partition_line([[1]], "wards"))
    assert (facts()["data set"], facts()["data.dataset"]) == ("wards", "own:load")


def test_the_live_page_shows_it_of_several_runs_where_it_differs(tmp_path: Path) -> None:
    for name, setting, own in (("a", "own:load", "wards"), ("b", "own:other", "roads"), ("c", "digits", "digits")):
        named(tmp_path / name, setting, own)

    def apart(*folders: str) -> list[str | None]:
        board = Board([tmp_path / name for name in folders])
        board.find()
        return [head["apart"].get("data set") for head in heads(board.look())]

    assert apart("a", "b", "c") == ["wards", "roads", None]
    named(tmp_path / "d", "own:load", "wards", "training.rate=0.5")
    assert apart("a", "d") == [None, None]


def test_runs_of_older_versions_have_the_functions_name(tmp_path: Path) -> None:
    named(tmp_path, "own:load", None)
    assert summary(tmp_path).rows[0][1] == "load, IID"
    assert "own:load" in call("ls", tmp_path)


def test_an_older_run_is_compared_with_a_newer_one_on_the_same_data(tmp_path: Path) -> None:
    named(tmp_path / "old", "own:load", None)
    named(tmp_path / "new", "own:load", "wards", "training.rate=0.5")
    ((comparison, groups),) = by_comparison(collect([tmp_path]).groups).items()
    assert (comparison.data, len(groups)) == ("wards", 2)


def test_two_data_sets_of_one_name_are_told_apart_by_their_functions(tmp_path: Path) -> None:
    named(tmp_path / "a", "own:load", "wards")
    named(tmp_path / "b", "own:other", "wards")
    assert sorted(row[1] for row in summary(tmp_path).rows) == ["load, IID", "other, IID"]
    assert len(by_comparison(collect([tmp_path]).groups)) == 2
    text = call("ls", tmp_path) + call("compare", tmp_path)
    assert text.count("own:load") == text.count("own:other") == 2
    assert "own name" not in text


def test_and_by_their_modules_where_the_functions_are_alike(tmp_path: Path) -> None:
    named(tmp_path / "a", "first:load", "wards")
    named(tmp_path / "b", "second:load", "wards")
    assert sorted(row[1] for row in summary(tmp_path).rows) == ["first:load, IID", "second:load, IID"]


def test_names_known_to_ternfed_keep_their_labels(tmp_path: Path) -> None:
    named(tmp_path / "a", "mnist", "something else")
    named(tmp_path / "b", "own:mnist", "MNIST")
    assert sorted(map(data_label, collect([tmp_path]).groups)) == ["MNIST", "own:mnist"]


def test_a_long_name_keeps_the_room_that_a_table_has(tmp_path: Path) -> None:
    named(tmp_path, "own:load", "w" * 150)
    (group,) = collect([tmp_path]).groups
    assert data_label(group) == "w" * 31 + "…"

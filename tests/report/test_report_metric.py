"""Tables and pictures ask the records what their scores are."""

from pathlib import Path

from run_folders import known_run
from ternfed.paper.groups import Group, collect
from ternfed.report import accuracy
from ternfed.report.curves import convergence

ERROR = {"metric": "mse", "higher_is_better": False, "percent": False}
SETTINGS = ["data.dataset=digits", "federation.rounds=2", "algorithm.name=fedavg"]


def groups(folder: Path) -> list[Group]:
    return collect([folder]).groups


def test_a_column_of_errors_has_the_metrics_name_and_no_percent(tmp_path: Path) -> None:
    values = [{**ERROR, "score": score, "validation": score} for score in (0.5, 0.0123)]
    known_run(tmp_path / "a", SETTINGS, values)
    sheet = accuracy.summary(groups(tmp_path))
    assert sheet is not None
    row = dict(zip(sheet.headings, sheet.rows[0], strict=True))
    assert (row["mse"], row["validation"]) == ("0.0123", "0.0123")
    assert sheet.notes[0].startswith("Test mse after the last round;")


def test_a_column_of_different_metrics_is_one_of_scores(tmp_path: Path) -> None:
    known_run(tmp_path / "a", SETTINGS, [{**ERROR, "score": 0.25}] * 2)
    known_run(tmp_path / "b", [*SETTINGS, "training.rate=0.5"], [{"score": 0.9}] * 2)
    sheet = accuracy.summary(groups(tmp_path))
    assert sheet is not None
    column = [row[sheet.headings.index("score")] for row in sheet.rows]
    assert sorted(column) == ["0.2500", "90.00"]


def test_a_curve_of_errors_says_so_on_its_axis(tmp_path: Path) -> None:
    known_run(tmp_path / "a", SETTINGS, [{**ERROR, "score": score} for score in (0.5, 0.01)])
    (picture,) = convergence(groups(tmp_path))
    assert picture.caption.startswith("Test mse over rounds")

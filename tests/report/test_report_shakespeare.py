"""The table of Shakespeare's roles, from real tiny runs of the rows and from runs with known numbers."""

from __future__ import annotations

from pathlib import Path

from run_folders import known_run
from ternfed.data.text import text_files
from ternfed.paper.groups import collect
from ternfed.paper.reproduce import DataSets, run_cell
from ternfed.paper.rows import find_rows
from ternfed.report.shakespeare import shakespeare
from ternfed.report.tables import NONE, Sheet, into_page
from ternfed.report.write import all_sheets

ROWS = find_rows()


def known(path: Path, name: str, scores: tuple[float, ...], up: int, down: int) -> None:
    """One run of a row per seed, two rounds long in its record but finished by its settings."""
    for seed, score in enumerate(scores):
        own = ROWS[name].experiment(seed, ["federation.rounds=2"])
        known_run(
            path / name / f"seed-{seed}", own, [{"score": s, "bytes_up": up, "bytes_down": down} for s in (0.1, score)]
        )


def sheet_of(path: Path) -> Sheet:
    found = shakespeare(collect([path], ROWS).groups)
    assert found is not None
    return found


def test_what_is_asked_of_t_fedavg_is_reached_or_missed_by_name(tmp_path: Path) -> None:
    known(tmp_path, "shakespeare-lstm-fedavg", (0.50, 0.51), 30_000, 30_000)
    known(tmp_path, "shakespeare-lstm-tfedavg", (0.497, 0.508), 1_000, 1_200)
    known(tmp_path, "shakespeare-transformer-fedavg", (0.50, 0.51), 30_000, 30_000)
    known(tmp_path, "shakespeare-transformer-tfedavg", (0.49, 0.50), 1_000, 2_000)
    known(tmp_path, "shakespeare-transformer-fedpaq", (0.40,), 2_000, 3_000)
    rows = {row[:2]: row[3:] for row in sheet_of(tmp_path).rows}
    assert rows["LSTM", "FedAvg"] == ("50.50 ± 0.71", "–", "2", "–", "–", "0.1", "–")
    assert rows["LSTM", "T-FedAvg"] == ("50.25 ± 0.78", "-0.25 ± 0.07", "2", "1/30", "1/25", "0.0", "reached")
    assert rows["transformer", "T-FedAvg"][1:] == ("-1.00 ± 0.00", "2", "1/30", "1/15", "0.0", "missed: accuracy, down")
    assert rows["transformer", "FedPAQ"][0] == "40.00"
    assert rows["transformer", "FedPAQ"][-1] == "–"


def test_of_fedavg_at_several_rates_the_best_is_what_a_row_is_compared_with(tmp_path: Path) -> None:
    known(tmp_path, "shakespeare-lstm-tfedavg", (0.5,), 1_000, 1_000)
    for rate, score in (("0.9", 0.3), ("0.006", 0.6), ("0.8", 0.4)):
        fedavg = ROWS["shakespeare-lstm-fedavg"].experiment(0, ["federation.rounds=2", f"training.rate={rate}"])
        known_run(tmp_path / rate, fedavg, [{}, {"score": score}])
    (row,) = (row for row in sheet_of(tmp_path).rows if row[1] == "T-FedAvg")
    assert row[4] == "-10.00"


def test_settings_of_a_row_that_are_not_the_defaults_stand_beside_its_name(tmp_path: Path) -> None:
    known(tmp_path, "shakespeare-lstm-tfedavg", (0.5,), 1_000, 1_000)
    known(tmp_path, "shakespeare-lstm-tfedavg-restless", (0.51,), 1_000, 1_000)
    names = [row[1] for row in sheet_of(tmp_path).rows]
    assert names == ["T-FedAvg", "T-FedAvg, layers never rest, server factor 0.5"]


def test_without_runs_the_page_says_so() -> None:
    page = Path(__file__).parents[2] / "docs" / "results.md"
    _, empty = into_page(page.read_text(encoding="utf-8"), all_sheets(collect([])), "results.md")
    assert "shakespeare" in empty


def test_tiny_runs_of_all_rows_fill_it(real_data: Path, tmp_path: Path) -> None:
    (tmp_path / "shakespeare").mkdir()
    for file in text_files(real_data / "shakespeare")[:3]:
        (tmp_path / "shakespeare" / file.name).write_text(file.read_text(encoding="utf-8")[:3000], encoding="utf-8")
    tiny = ("federation.rounds=1", "federation.clients=3", "federation.participation=0.5", "model.width=8")
    names = [name for name in ROWS if name.startswith("shakespeare-")]
    for name in names:
        run_cell(ROWS[name], 0, tmp_path / "results", DataSets(tmp_path), "cpu", settings=tiny)
    found = sheet_of(tmp_path / "results")
    listed = [row[:2] for row in found.rows]
    assert len(listed) == len(set(listed)) == len(names)
    assert {model for model, _ in listed} == {"LSTM", "transformer"}
    restless, frozen = "T-FedAvg, layers never rest, server factor 0.5", "T-FedAvg, frozen (control)"
    assert {("LSTM", "FedAvg, rate 0.006"), ("LSTM", "FedAvg, float16"), ("LSTM", restless)} <= {*listed}
    assert {("transformer", "FedAvg"), ("transformer", "T-FedAvg"), ("transformer", frozen)} <= {*listed}
    assert "| transformer | T-FedAvg | 1 × 2 |" in found.markdown()
    asked = {row[1]: row[-1] for row in found.rows if row[0] == "transformer"}
    assert {asked["FedAvg"], asked["EDEN"], asked[frozen]} == {NONE} != {asked["T-FedAvg"]}


def test_bytes_are_compared_with_those_of_float32(tmp_path: Path) -> None:
    known(tmp_path, "shakespeare-lstm-fedavg", (0.5,), 30_000, 30_000)
    known(tmp_path, "shakespeare-lstm-fedavg-float16", (0.6,), 15_000, 15_000)
    assert [row[6] for row in sheet_of(tmp_path).rows] == [NONE, "1/2"]

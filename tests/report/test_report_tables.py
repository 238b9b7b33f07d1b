"""The tables: known numbers in, known cells out; and text that stays text in Markdown and on the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from run_folders import known_run, row
from ternfed.paper.groups import Collected, Elapsed, Group, collect
from ternfed.paper.rows import Row
from ternfed.report import accuracy, choosing, costs
from ternfed.report.page import page
from ternfed.report.tables import Sheet, into_page

CIFAR = ("data.dataset=cifar10", "training.epochs=1")
MNIST = ("data.dataset=mnist", "training.epochs=1")


def add(
    path: Path,
    settings: tuple[str, ...],
    *more: str,
    accuracies: tuple[float, ...] = (0.5,),
    rounds: int = 2,
    **values: Any,
) -> None:
    """One run per seed; every round has these values, the last one the seed's accuracy."""
    for seed, value in enumerate(accuracies):
        own = [*settings, *more, f"seed={seed}", f"federation.rounds={rounds}"]
        last = {**values, "score": value, "validation": value}
        known_run(path / f"seed-{seed}", own, [values] * (rounds - 1) + [last])


def groups(path: Path, rows: Mapping[str, Row] | None = None) -> tuple[Group, ...]:
    return collect([path], rows).groups


def cells(sheet: Sheet | None, column: str) -> dict[str, str]:
    """A column by the words of its rows."""
    assert sheet is not None
    place = sheet.headings.index(column)
    return {" | ".join(row[: sheet.texts]): row[place] for row in sheet.rows}


class TestSummary:
    def test_a_row_tells_what_came_out(self, tmp_path: Path) -> None:
        values = {"bytes_up": 2_000_000, "bytes_down": 500_000, "bytes_up_fp32": 20_000_000, "strategy": "I"}
        add(tmp_path, MNIST, accuracies=(0.9, 0.94), bits_per_weight_up=0.25, **values)
        sheet = accuracy.summary(groups(tmp_path))
        assert sheet is not None
        (found,) = (dict(zip(sheet.headings, row, strict=True)) for row in sheet.rows)
        assert found["data"] == "MNIST, IID"
        assert found["algorithm"] == "T-FedAvg"
        assert found["rounds × epochs"] == "2 × 1"
        assert found["seeds"] == "2"
        assert found["accuracy (%)"] == found["validation (%)"] == "92.00 ± 2.83"
        assert (found["up (MB)"], found["down (MB)"], found["float32 ÷ up"]) == ("4.00", "1.00", "10.0")
        assert (found["bits per ternary weight up"], found["Strategy I (%)"]) == ("0.250", "100")

    def test_a_row_tells_how_many_trits_flipped_and_that_they_are_frozen(self, tmp_path: Path) -> None:
        own = (*MNIST, "federation.rounds=8")
        known_run(tmp_path / "a", [*own], [{"changed": share} for share in (0.25, 0.125, *[0.0625] * 6)])
        known_run(tmp_path / "b", [*own, "training.rate=0.5"], [{"changed": 0.0}] * 8)
        known_run(tmp_path / "c", [*own, "algorithm.preset=frozen"], [{"changed": 0.0}] * 8)
        known_run(tmp_path / "d", [*own, "algorithm.name=fedavg"], [{}] * 8)
        sheet = accuracy.summary(groups(tmp_path))
        assert sheet is not None
        place = sheet.headings.index("flips, first / mean / last (%)")
        assert sorted(row[place] for row in sheet.rows) == ["0 / 0 / 0", "0 / 0 / 0, frozen", "25 / 9.4 / 6.2", "–"]

    def test_the_papers_number_stands_beside_ours_where_a_row_has_it(self, tmp_path: Path) -> None:
        add(tmp_path / "a", MNIST, "name=mine")
        add(tmp_path / "b", MNIST, "name=own", "training.rate=0.5")
        rows = {"mine": row("mine", "iid", paper=91.95, paper_std=0.11)}
        sheet = accuracy.summary(groups(tmp_path, rows))
        assert sheet is not None
        assert sorted(row[sheet.headings.index("paper (%)")] for row in sheet.rows) == ["91.95 ± 0.11", "–"]

    def test_without_rows_there_is_no_column_for_the_paper(self, tmp_path: Path) -> None:
        add(tmp_path, MNIST)
        sheet = accuracy.summary(groups(tmp_path))
        assert sheet is not None
        assert not any("paper" in heading for heading in sheet.headings)

    def test_an_unfinished_run_says_how_far_it_is(self, tmp_path: Path) -> None:
        known_run(tmp_path / "a", [*MNIST, "federation.rounds=9", "algorithm.name=fedavg"], [{"score": 0.125}])
        sheet = accuracy.summary(groups(tmp_path))
        assert sheet is not None
        assert "1 of 9 × 1, unfinished" in sheet.rows[0]
        assert "12.50 (round 1 of 9)" in sheet.rows[0]

    def test_floats_have_no_bits_per_ternary_weight_and_cmfl_says_what_it_skipped(self, tmp_path: Path) -> None:
        add(tmp_path, MNIST, "algorithm.name=cmfl", bits_per_weight_up=27.0, skipped=2)
        sheet = accuracy.summary(groups(tmp_path))
        assert sheet is not None
        assert "bits per ternary weight up" not in sheet.headings
        assert sheet.rows[0][sheet.headings.index("skipped (%)")] == "40.0"

    def test_points_of_a_sweep_are_left_to_the_sweeps_table(self, tmp_path: Path) -> None:
        add(tmp_path / "a", MNIST)
        add(tmp_path / "b", MNIST, "federation.participation=0.5")
        add(tmp_path / "c", MNIST, "data.balance=0.5")
        add(tmp_path / "d", MNIST, "data.balance=0.2")
        found = groups(tmp_path)
        sheet = accuracy.summary(found)
        assert sheet is not None
        assert [row[1] for row in sheet.rows] == ["MNIST, IID"]
        assert "3 points of sweeps" in sheet.notes[0]
        assert accuracy.participation(found) is not None
        assert accuracy.balance(found) is not None


class TestAccuracies:
    def test_the_papers_row_stands_below_ours(self, tmp_path: Path) -> None:
        add(tmp_path / "a", MNIST, "name=f", "algorithm.name=fedavg", accuracies=(0.9, 0.9))
        add(tmp_path / "b", MNIST, "name=t", accuracies=(0.91, 0.93))
        rows = {"f": row("f", "iid", paper=90.63, paper_std=0.17), "t": row("t", "iid", paper=91.95)}
        sheet = accuracy.iid(groups(tmp_path, rows))
        assert cells(sheet, "MNIST, MLP") == {
            "FedAvg": "90.00 ± 0.00",
            "paper: FedAvg": "90.63 ± 0.17",
            "T-FedAvg": "92.00 ± 1.41",
            "paper: T-FedAvg": "91.95",
            "seeds": "2",
            "rounds × epochs": "2 × 1",
        }

    def test_runs_of_different_length_in_one_column_say_so(self, tmp_path: Path) -> None:
        add(tmp_path / "a", MNIST, "algorithm.name=fedavg", rounds=2)
        add(tmp_path / "b", MNIST, rounds=4)
        column = cells(accuracy.iid(groups(tmp_path)), "MNIST, MLP")
        assert (column["FedAvg"], column["T-FedAvg"]) == ("50.00 (2 × 1)", "50.00 (4 × 1)")

    def test_groups_of_one_algorithm_are_told_apart_by_what_differs(self, tmp_path: Path) -> None:
        add(tmp_path / "a", MNIST, "training.rate=0.5", accuracies=(0.25,))
        add(tmp_path / "b", MNIST, "training.rate=0.1", accuracies=(0.75,))
        column = cells(accuracy.iid(groups(tmp_path)), "MNIST, MLP")
        assert column["T-FedAvg, rate 0.5"] == "25.00"
        assert column["T-FedAvg, rate 0.1"] == "75.00"

    def test_networks_and_partitions_are_columns(self, tmp_path: Path) -> None:
        add(tmp_path / "a", MNIST, "model.activation=none", "data.classes_per_client=2")
        add(tmp_path / "b", CIFAR, "model.name=cnn", "data.classes_per_client=5")
        sheet = accuracy.non_iid(groups(tmp_path))
        assert sheet is not None
        assert sheet.headings == ("", "MNIST, linear MLP, N_c = 2", "CIFAR-10, CNN, N_c = 5")

    def test_centralized_training_counts_epochs(self, tmp_path: Path) -> None:
        add(tmp_path, MNIST, "algorithm.name=centralized", rounds=3)
        assert cells(accuracy.centralized(groups(tmp_path)), "epochs") == {"MLP | MNIST | sgd": "3"}

    def test_the_ablation_is_judged_by_validation_against_the_full_recipe(self, tmp_path: Path) -> None:
        for name, rate, value in (("a", 0.1, 0.875), ("full", 0.2, 0.9), ("c", 0.3, 0.125)):
            settings = [*CIFAR, f"name={name}", f"training.rate={rate}", "federation.rounds=1"]
            known_run(tmp_path / name, settings, [{"score": 0.99, "validation": value}])
        rows = {
            "full": row("full", "ablation", title="The recipe, 1 round"),
            "a": row("a", "ablation", title="no latent rate"),
            "c": row("c", "ablation", title="no clipping"),
        }
        sheet = choosing.ablation(groups(tmp_path, rows))
        assert sheet is not None
        place = sheet.headings.index("difference")
        assert [(row[0], row[place]) for row in sheet.rows] == [
            ("The recipe, 1 round", "–"),
            ("no latent rate", "-2.50"),
            ("no clipping", "-77.50"),
        ]
        assert "99.00" not in sheet.markdown()

    def test_the_search_is_judged_by_the_last_three_validations_the_best_of_a_comparison_first(
        self, tmp_path: Path
    ) -> None:
        def tried(name: str, rounds: Sequence[float], *settings: str) -> None:
            given = [*CIFAR, f"name={name}", f"federation.rounds={len(rounds)}", *settings]
            known_run(tmp_path / name, given, [{"score": 0.99, "validation": value} for value in rounds])

        tried("a", (0.1, 0.2, 0.3, 0.4), "training.rate=0.3")
        tried("b", (0.4, 0.5))
        tried("c", (0.1, 0.5, 0.6, 0.7))
        sheet = choosing.search(groups(tmp_path, {name: row(name, "search", title=name.upper()) for name in "abc"}))
        assert sheet is not None
        first = sheet.headings.index("validation, last three rounds (%)")
        assert [(row[2], *row[first : first + 2]) for row in sheet.rows] == [
            ("B", "45.00", "50.00"),
            ("C", "60.00", "70.00"),
            ("A", "30.00", "40.00"),
        ]
        assert "99.00" not in sheet.markdown()


class TestCommunication:
    def test_the_formula_gives_the_papers_own_numbers_for_the_cnn(self, tmp_path: Path) -> None:
        """16196.59 Mb are 500 uploads of 1,061,460 numbers."""
        add(tmp_path, CIFAR, "model.name=cnn", "algorithm.name=fedavg", rounds=100)
        (group,) = groups(tmp_path)
        bits = costs.formula(group)
        assert bits is not None
        assert [f"{value / 2**20:.2f}" for value in bits] == ["16196.59", "16196.59"]

    def test_the_formula_mixes_the_two_strategies_downstream(self, tmp_path: Path) -> None:
        settings = [*CIFAR, "model.name=resnet18", "federation.rounds=4"]
        known_run(tmp_path, settings, [{"strategy": name} for name in ("I", "II", "I", "I")])
        (group,) = groups(tmp_path)
        full, ternary = 32 * 607_050, 2 * 602_112 + 32 * (607_050 - 602_112)
        assert costs.formula(group) == (20 * ternary, pytest.approx(20 * (0.25 * full + 0.75 * ternary), rel=1e-12))

    def test_uploads_that_cmfl_skips_cost_nothing_in_the_formula(self, tmp_path: Path) -> None:
        add(tmp_path, CIFAR, "model.name=resnet18", "algorithm.name=cmfl", skipped=1)
        (group,) = groups(tmp_path)
        assert costs.formula(group) == (pytest.approx(0.8 * 10 * 32 * 607_050, rel=1e-12), 10 * 32 * 607_050)

    def test_the_mlp_is_also_counted_without_its_first_layer(self, tmp_path: Path) -> None:
        """What the described network would cost: 800 numbers per upload, 600 of them ternary."""
        for name in ("fedavg", "tfedavg"):
            add(tmp_path / name, MNIST, f"algorithm.name={name}", rounds=100, clients=10, strategy="I")
        sheet = costs.communication(groups(tmp_path))
        assert sheet is not None
        assert "FedAvg 24.41 up and 24.41 down; T-FedAvg 7.25 up and 7.25 down" in sheet.notes[1]
        assert "paper, scaled (Mb)" not in sheet.headings

    def test_bytes_really_sent_stand_beside_formula_and_paper_scaled_to_our_rounds(self, tmp_path: Path) -> None:
        add(tmp_path / "f", CIFAR, "algorithm.name=fedavg", rounds=20, bytes_up=2**17 * 30, bytes_down=2**17 * 40)
        add(tmp_path / "t", CIFAR, rounds=10, bytes_up=2**17, bytes_down=2**18, strategy="I")
        sheet = costs.communication(groups(tmp_path))
        key = "CIFAR-10, ResNet18* | T-FedAvg"
        assert cells(sheet, "sent up / down (Mb)")[key] == "10.00 / 20.00"
        assert cells(sheet, "of FedAvg's")[key] == "1/30, 1/20"
        assert cells(sheet, "paper up / down (Mb)")[key] == "1,229.27 / 6,847.82"
        assert cells(sheet, "paper, scaled (Mb)")[key] == "122.93 / 684.78"

    def test_a_network_of_the_users_own_has_no_formula(self, tmp_path: Path) -> None:
        add(tmp_path, MNIST, "algorithm.name=fedavg")
        file = tmp_path / "seed-0" / "config.toml"
        file.write_text(file.read_text().replace('name = "mlp"', 'name = "mine:net"'))
        (group,) = groups(tmp_path)
        assert costs.formula(group) is None


def test_elapsed_times_are_ratios_to_fedavg_beside_the_papers() -> None:
    seconds = {"fedavg": 2.0, "cmfl": 3.0, "tfedavg": 2.5}
    sheet = costs.elapsed([Elapsed("resnet18", "H200", 20, seconds, {"fedavg": 10.0, "cmfl": 12.7, "tfedavg": 17.6})])
    assert list(cells(sheet, "× FedAvg").values()) == ["1.00", "1.50", "1.25"]
    assert list(cells(sheet, "paper, × FedAvg").values()) == ["1.00", "1.27", "1.76"]


class TestSweeps:
    def test_participation_has_a_row_per_share_and_columns_by_partition(self, tmp_path: Path) -> None:
        for number, (share, split) in enumerate((s, p) for s in (0.1, 0.5) for p in ("iid", "classes")):
            own = (f"federation.participation={share}", f"data.partition={split}")
            add(tmp_path / str(number), MNIST, *own, accuracies=(number / 10,))
        sheet = accuracy.participation(groups(tmp_path))
        assert cells(sheet, "T-FedAvg, IID: accuracy (%)") == {"0.1": "0.00", "0.5": "20.00"}
        assert cells(sheet, "T-FedAvg, N_c = 2: accuracy (%)") == {"0.1": "10.00", "0.5": "30.00"}

    def test_balance_has_a_row_per_beta_and_a_column_per_algorithm(self, tmp_path: Path) -> None:
        for number, (beta, name) in enumerate((b, n) for b in (0.1, 1.0) for n in ("fedavg", "tfedavg")):
            own = (f"data.balance={beta}", f"algorithm.name={name}")
            add(tmp_path / str(number), MNIST, *own, accuracies=(number / 10,))
        sheet = accuracy.balance(groups(tmp_path))
        assert cells(sheet, "FedAvg") == {"0.1": "0.00", "1": "20.00"}
        assert cells(sheet, "T-FedAvg") == {"0.1": "10.00", "1": "30.00"}


class _Cells(HTMLParser):
    """The tags of a page, and the cells of its one table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self._inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        self._inside = tag == "td"
        self.texts += [""] if self._inside else []

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.texts[-1] += data


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=20)


def shown(*words: str) -> _Cells:
    return _Cells(page(Collected(()), [Sheet("t", "T", ("a", "b"), (words,))], []))


@settings(deadline=None)  # two whole pages each
@given(st.lists(WORDS, min_size=2, max_size=2))
def test_the_page_shows_any_text_as_it_is(words: list[str]) -> None:
    found = shown(*words)
    assert found.tags == shown("plain", "text").tags
    assert [text.strip() for text in found.texts] == [word.strip() for word in words]


@given(st.lists(st.text(max_size=20), min_size=3, max_size=3))
def test_in_markdown_any_text_stays_in_its_cell(words: list[str]) -> None:
    lines = Sheet("t", "T", ("a", "b", "c"), (tuple(words),)).markdown().split("\n")
    assert len(lines) == 3
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", lines[2])) == 4
    assert "<" not in lines[2]


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 6))
def test_a_wide_table_becomes_several_that_a_page_has_room_for(columns: int, texts: int, names: int) -> None:
    headings = tuple(f"h{place}" for place in range(columns))
    rows = tuple(tuple(f"r{number}c{place}" for place in range(columns)) for number in range(3))
    sheet = Sheet("t", "T", headings, rows, texts=texts, names=min(names, texts))
    parts = [[line.strip("| ").split(" | ") for line in part.split("\n")] for part in sheet.markdown().split("\n\n")]
    assert all(len(part[0]) <= 8 for part in parts)
    assert {heading for part in parts for heading in part[0]} == set(headings)
    for first, _, *lines in parts:
        assert len({len(line) for line in (first, *lines)}) == 1
        assert [line[0] for line in lines] == ["r0c0", "r1c0", "r2c0"]  # each part names its rows
        assert all(
            cell.split("c")[1] == heading[1:] for line in lines for heading, cell in zip(first, line, strict=True)
        )


def test_a_part_of_a_wide_table_leaves_out_rows_that_say_nothing_there() -> None:
    headings = ("name", *(f"h{place}" for place in range(8)))
    rows = (("full", *"12345678"), ("half", *"1234", *"––––"))
    first, second = Sheet("t", "T", headings, rows).markdown().split("\n\n")
    assert "half" in first
    assert "half" not in second


@pytest.mark.parametrize("text", ["N_c = 2", "CIFAR-10, ResNet18*", "100 × 5", "92.25 ± 0.06", "λ = 0.1"])
def test_usual_names_need_no_backslash_in_markdown(text: str) -> None:
    assert Sheet("t", "T", (text,), ()).markdown().split("\n")[0] == f"| {text} |"


def test_notes_are_a_paragraph_of_lines_that_a_page_has_room_for() -> None:
    for start in ("+ 3", "- 3", "# 3", "12. April", "1) one"):
        note = f"{'word ' * 23}words {start} {'more ' * 30}"
        first, second, *_ = Sheet("t", "T", ("a",), (), notes=(note,)).markdown().split("\n\n")[1].split("\n")
        assert len(first) <= 120
        assert second.startswith(re.sub(r"([-+#.)])", r"\\\1", start, count=1))


class TestPages:
    SHEET = Sheet("iid", "T", ("a", "b"), (("x", "1"),))
    PAGE = "# Page\n<!-- report: iid -->\nold\n| lines |\n<!-- /report -->\nafter\n"

    def test_what_lies_between_the_marks_is_replaced_and_nothing_else(self) -> None:
        text, empty = into_page(self.PAGE, {"iid": self.SHEET}, "page.md")
        assert text == f"# Page\n<!-- report: iid -->\n\n{self.SHEET.markdown()}\n\n<!-- /report -->\nafter\n"
        assert empty == []
        assert into_page(text, {"iid": self.SHEET}, "page.md")[0] == text

    def test_a_table_without_runs_is_said_to_be_empty(self) -> None:
        text, empty = into_page(self.PAGE, {"iid": None}, "page.md")
        assert "*There are no runs for this table yet.*" in text
        assert empty == ["iid"]

    @pytest.mark.parametrize(
        ("page", "problem"),
        [
            ("<!-- report: wrong -->\n<!-- /report -->", "names no table; there are iid"),
            ("<!-- report: iid -->\n", "has no <!-- /report --> after it"),
            ("<!-- /report -->\n", "stands where no table began"),
            ("<!-- report: iid -->\n<!-- report: iid -->\n<!-- /report -->", "before the next one"),
        ],
    )
    def test_marks_that_make_no_sense_are_refused(self, page: str, problem: str) -> None:
        with pytest.raises(ValueError, match=problem):
            into_page(page, {"iid": self.SHEET}, "page.md")


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder, rate in (("mine", "0.1"), ("yours", "0.2")):
        known_run(tmp_path / folder, ["data.dataset=digits", "federation.rounds=2", f"training.rate={rate}"], [{}, {}])
    sheet = accuracy.summary(collect([tmp_path], {}).groups)
    assert sheet is not None
    assert [row[0] for row in sheet.rows] == ["digits-tfedavg (mine)", "digits-tfedavg (yours)"]

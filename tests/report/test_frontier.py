"""Accuracy against bytes: who is on the front, what an accuracy costs, what a budget buys, and who may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from run_folders import known_run, real_run
from ternfed.paper.frontier import (
    Contest,
    bytes_to_reach,
    contests,
    lead,
    left_out,
    matches,
    on_front,
    point_of,
    protocol_of,
    score_within,
)
from ternfed.paper.groups import Group, collect
from ternfed.paper.rows import Reproduce, Row
from ternfed.report.frontier import frontier
from ternfed.report.frontier_tables import exchange_seconds, megabytes
from ternfed.report.labels import setting_label
from ternfed.report.rivals import choice, headline, rivals
from ternfed.report.style import drawing
from ternfed.report.tables import NONE, Sheet
from ternfed.report.write import write_report

pytest.importorskip("matplotlib")

CELL = {"data": {"dataset": "mnist"}, "federation": {"rounds": 3}, "training": {"epochs": 1}}
FEDAVG, TFEDAVG = {"algorithm": {"name": "fedavg"}}, {"algorithm": {"name": "tfedavg"}}
TUNED = {**FEDAVG, "training": {"epochs": 1, "rate": 0.2}}
MB = 1_000_000


def row(name: str, settings: dict[str, Any], *shows: str, **about: Any) -> Row:
    usual: dict[str, Any] = {"title": name, "seeds": 3, "minutes": 1.0, "machine": "one core"}
    return Row(name, Reproduce(shows=shows or ("frontier",), **{**usual, **about}), {**CELL, **settings})


def run(path: Path, made: Row, scores: Sequence[float], sent: int, *changed: str, **values: Any) -> None:
    """A row's run with these scores by round, `sent` bytes up and twice as many down in each."""
    experiment = made.experiment(int(values.pop("seed", 0)), changed)
    given = {"bytes_up": sent, "bytes_down": 2 * sent, **values}
    known_run(path, experiment, [{**given, "score": score} for score in scores])


@pytest.fixture
def rows() -> dict[str, Row]:
    made = [
        row("plain", FEDAVG, role="published"),
        row("tuned", TUNED, role="tuned"),
        row("half", {"algorithm": {"name": "fedavg", "dense": "float16"}}),
        row("own", {**TFEDAVG, "model": {"ternary": "all"}}),
        row("inner", {**TFEDAVG, "model": {"ternary": "inner"}}),
        row("rate-0.1", {**FEDAVG, "training": {"epochs": 1, "rate": 0.1}}, "tuning"),
    ]
    return {each.name: each for each in made}


@pytest.fixture
def results(tmp_path: Path, rows: dict[str, Row]) -> Path:
    """Total megabytes after each round: plain and tuned 30, half 15, inner 3, own 0.3 times its number."""
    path = tmp_path / "results"
    path.mkdir()
    run(path / "plain", rows["plain"], (0.50, 0.60, 0.70), 10 * MB)
    for seed, last in ((1, 0.955), (2, 0.965)):  # no seed that another has
        run(path / f"tuned-{seed}", rows["tuned"], (0.80, 0.92, last), 10 * MB, seed=seed)
    run(path / "half", rows["half"], (0.80, 0.92, 0.955), 5 * MB)
    run(path / "own", rows["own"], (0.70, 0.91, 0.90), MB // 10, changed=0.1, zeros=0.4)
    run(path / "inner", rows["inner"], (0.70, 0.91, 0.958), MB, changed=0.1, zeros=0.4)
    run(path / "rate", rows["rate-0.1"], (0.4, 0.5, 0.6), 10 * MB, validation=0.55)
    return path


def the_contest(path: Path, rows: dict[str, Row]) -> Contest:
    (found,) = contests(collect([path], rows).groups)
    return found


def named(contest: Contest) -> dict[str, Any]:
    return {point.group.name: point for point in contest.points}


places = st.tuples(st.integers(1, 8).map(float), st.integers(0, 8).map(float))


class TestFront:
    @given(st.lists(places, max_size=12))
    def test_none_on_it_is_beaten_and_every_other_is(self, points: list[tuple[float, float]]) -> None:
        def beaten(point: tuple[float, float]) -> bool:
            return any(o[0] <= point[0] and o[1] >= point[1] and o != point for o in points)

        assert on_front(points) == [not beaten(point) for point in points]

    @given(st.lists(places, min_size=1, max_size=12))
    def test_the_best_and_the_cheapest_are_on_it(self, points: list[tuple[float, float]]) -> None:
        kept = [point for point, keeps in zip(points, on_front(points), strict=True) if keeps]
        assert max(point[1] for point in points) in [point[1] for point in kept]
        assert min(point[0] for point in points) in [point[0] for point in kept]

    def test_a_lost_run_is_on_no_front(self) -> None:
        assert on_front([(1.0, float("-inf")), (2.0, 5.0)]) == [False, True]

    def test_one_place_may_be_ahead_by_more_than_its_goodness_says(self) -> None:
        points = [(1.0, 5.0), (2.0, 4.0)]
        assert on_front(points) == [True, False]
        assert on_front(points, lambda one, other: points[other][1] - points[one][1]) == [True, True]

    def test_seeds_that_only_one_has_decide_nothing(self, results: Path, rows: dict[str, Row]) -> None:
        # FedAvg has 95.5 and 96.5: with the first seed alone 95.6 is ahead, and with the second 96.4 is behind.
        made = {name: row(name, {"algorithm": {"name": name}}) for name in ("eden", "stc")}
        run(results / "eden", made["eden"], (0.5, 0.6, 0.956), MB, seed=1)
        run(results / "stc", made["stc"], (0.5, 0.6, 0.964), 2 * MB, seed=2)
        points = named(the_contest(results, {**rows, **made}))
        assert lead(points["eden"], points["tuned"]) == pytest.approx(0.1)
        assert lead(points["stc"], points["tuned"]) == pytest.approx(-0.1)
        assert lead(points["stc"], points["eden"]) == pytest.approx(0.8)  # no seed in common
        assert points["tuned"].goodness == pytest.approx(96.0)

    def test_it_goes_from_the_fewest_bytes_to_the_most(self, results: Path, rows: dict[str, Row]) -> None:
        found = the_contest(results, rows)
        assert [point.group.name for point in found.front] == ["own", "inner", "tuned"]


class TestRules:
    def test_bytes_are_both_ways_over_the_whole_run(self, results: Path, rows: dict[str, Row]) -> None:
        own = named(the_contest(results, rows))["own"]
        assert (own.up, own.down, own.total) == (0.3 * MB, 0.6 * MB, 0.9 * MB)

    def test_a_level_is_reached_in_the_first_round_whose_mean_over_seeds_has_it(
        self, results: Path, rows: dict[str, Row]
    ) -> None:
        points = named(the_contest(results, rows))
        assert bytes_to_reach(points["own"], 90.0) == pytest.approx(0.6 * MB)  # it falls below later
        assert bytes_to_reach(points["tuned"], 96.0) == pytest.approx(90 * MB)  # 95.5 and 96.5
        assert bytes_to_reach(points["tuned"], 96.01) is None

    def test_a_budget_buys_the_last_round_within_it(self, results: Path, rows: dict[str, Row]) -> None:
        points = named(the_contest(results, rows))
        assert score_within(points["tuned"], 29.9 * MB) is None
        assert score_within(points["tuned"], 60.0 * MB) == pytest.approx(92.0)
        assert score_within(points["own"], 60.0 * MB) == pytest.approx(90.0)  # over long before

    def test_levels_lie_below_tuned_fedavg_and_budgets_around_the_median(
        self, results: Path, rows: dict[str, Row]
    ) -> None:
        found = the_contest(results, rows)
        assert found.floats is not None
        assert found.floats.group.name == "tuned"
        assert found.levels == (90.0, 93.0, 95.0)
        assert found.budgets == (10.0 * MB, 30.0 * MB, 100.0 * MB)  # 0.9, 9, 45, 90, 90

    def test_each_point_of_tfedavg_stands_beside_the_cheapest_rival_as_accurate(
        self, results: Path, rows: dict[str, Row]
    ) -> None:
        own, inner = matches(the_contest(results, rows))
        assert (own.own.group.name, inner.own.group.name) == ("own", "inner")
        assert own.rival is not None
        assert own.rival.group.name == "half"
        assert inner.rival is not None
        assert inner.rival.group.name == "half"
        assert (own.times, inner.times) == (pytest.approx(50), pytest.approx(5))


class TestWhoIsCompared:
    @pytest.mark.parametrize(
        "other",
        ["federation.rounds=2", "data.classes_per_client=5", "federation.clients=50", "model.activation=none"],
    )
    def test_other_data_networks_clients_or_rounds_are_another_comparison(
        self, results: Path, rows: dict[str, Row], other: str
    ) -> None:
        key, _, value = other.partition("=")
        section, key = key.split(".")
        own = {**TFEDAVG, section: {**CELL.get(section, {}), key: int(value) if value.isdigit() else value}}
        rows["other"] = row("other", own)
        run(results / "other", rows["other"], (0.99, 0.99, 0.99), 1)
        assert "other" not in named(the_contest(results, rows))

    def test_a_run_with_other_settings_than_its_row_is_left_out_by_name(
        self, results: Path, rows: dict[str, Row]
    ) -> None:
        rows["late"] = row("late", {**TFEDAVG, "model": {"ternary": ["linear1", "linear2"]}})
        run(results / "late", rows["late"], (0.99, 0.99, 0.99), 1, "algorithm.factor=0.5")
        groups = collect([results], rows).groups
        assert "late" not in named(the_contest(results, rows))
        assert left_out(groups) == ["late"]

    def test_only_rows_that_say_so_and_are_finished_are_points(self, results: Path, rows: dict[str, Row]) -> None:
        rows["iid"] = row("iid", {**TFEDAVG, "model": {"ternary": ["linear2"]}}, "iid")
        rows["begun"] = row("begun", {"algorithm": {"name": "stc"}})
        run(results / "iid", rows["iid"], (0.99, 0.99, 0.99), 1)
        run(results / "begun", rows["begun"], (0.99,), 1)
        assert set(named(the_contest(results, rows))) == {"plain", "tuned", "half", "own", "inner"}

    def test_rows_of_shakespeares_roles_are_points_too(self, tmp_path: Path) -> None:
        settings = {"data": {"dataset": "shakespeare"}, "federation": {"rounds": 2}, "training": {}}
        made = {n: row(n, {**settings, "algorithm": {"name": n}}, "shakespeare") for n in ("fedavg", "tfedavg")}
        for name, own in made.items():
            run(tmp_path / name, own, (0.2, 0.4), MB)
        (found,) = contests(collect([tmp_path], made).groups)
        assert protocol_of(found.points[0].group) == "Shakespeare's roles"
        assert set(named(found)) == {"fedavg", "tfedavg"}

    def test_one_algorithm_alone_is_no_comparison(self, results: Path, rows: dict[str, Row]) -> None:
        assert contests(collect([results / "plain", results / "half"], rows).groups) == []

    def test_whose_protocol_it_is_follows_from_the_settings(self, results: Path, rows: dict[str, Row]) -> None:
        group = named(the_contest(results, rows))["own"].group

        def changed(**sections: dict[str, Any]) -> Group:
            settings = {**group.settings, **{s: {**group.settings[s], **v} for s, v in sections.items()}}
            return Group("x", settings, group.runs)

        assert protocol_of(group) == "the paper's"
        assert protocol_of(changed(data={"partition": "dirichlet", "alpha": 0.3})) == "the field's"
        assert protocol_of(changed(data={"partition": "unbalanced", "balance": 0.3})) is None


class TestChapter:
    @pytest.fixture
    def sheets(self, results: Path, rows: dict[str, Row]) -> dict[str, Sheet]:
        with drawing():
            chapter = frontier(collect([results], rows).groups)
        assert chapter is not None
        return {sheet.name.removeprefix("frontier-mnist-mlp-iid-"): sheet for sheet in chapter.sheets}

    def test_every_point_with_its_bytes_as_a_part_of_fedavgs(self, sheets: dict[str, Sheet]) -> None:
        lines = {line[0]: line[1:] for line in sheets["points"].rows}
        assert lines["T-FedAvg, all layers"] == ("90.00", "90.00", "1", "20.0 / 40.0", "0.900", "1/100", "yes")
        assert lines["FedAvg, tuned"] == ("96.00 ± 0.71", "96.00 ± 0.71", "2", "2,000 / 4,000", "90.0", "1", "yes")
        assert lines["FedAvg, float16"][-3:] == ("45.0", "1/2", "no")
        assert lines["FedAvg, rate as published"][-1] == "no"

    def test_a_score_that_swings_is_seen_beside_its_last_round(self, tmp_path: Path) -> None:
        cell = {**CELL, "federation": {**CELL["federation"], "rounds": 10}}
        made = {n: row(n, {**cell, "algorithm": {"name": n}}) for n in ("fedavg", "tfedavg")}
        for name, own in made.items():
            run(tmp_path / name, own, (*[0.5] * 8, 0.7 if name == "tfedavg" else 0.9, 0.9), MB)
        with drawing():
            chapter = frontier(collect([tmp_path], made).groups)
        assert chapter is not None
        lines = {line[0]: line[1:3] for line in chapter.sheets[0].rows}
        assert lines == {"FedAvg": ("90.00", "90.00"), "T-FedAvg": ("90.00", "80.00")}

    def test_tables_of_levels_and_budgets(self, sheets: dict[str, Sheet]) -> None:
        assert sheets["reach"].headings[1:] == ("90% (MB)", "93% (MB)", "95% (MB)")
        assert {line[0]: line[1:] for line in sheets["reach"].rows}["T-FedAvg, inner layers"] == (
            "6.00", "9.00", "9.00",
        )  # fmt: skip
        assert {line[0]: line[1:] for line in sheets["budget"].rows}["FedAvg, tuned"] == (NONE, "80.00", "96.00")

    def test_comparisons_on_the_same_data_have_titles_and_figures_of_their_own(
        self, results: Path, rows: dict[str, Row]
    ) -> None:
        for name in ("tuned", "own"):
            settings = {**rows[name].settings, "federation": {"rounds": 2, "clients": 50}}
            rows[f"{name}-50"] = row(f"{name}-50", settings)
            run(results / f"{name}-50", rows[f"{name}-50"], (0.5, 0.6), MB)
        with drawing():
            chapter = frontier(collect([results], rows).groups)
        assert chapter is not None
        assert {part.title for part in chapter.parts} == {
            "MNIST, MLP, IID, 100 clients, λ = 0.1, 3 × 1", "MNIST, MLP, IID, 50 clients, λ = 0.1, 2 × 1",
        }  # fmt: skip
        assert len({drawn.name for drawn in chapter.pictures}) == 2

    def test_rates_that_were_tried(self, sheets: dict[str, Sheet]) -> None:
        assert sheets["search"].rows == (("FedAvg", "3 × 1", "constant", "0.1: 55.00", "0.1"),)

    def test_no_table_has_more_than_eight_columns(self, sheets: dict[str, Sheet]) -> None:
        assert all(len(sheet.headings) <= 8 for sheet in sheets.values())

    def test_nothing_is_said_of_what_was_not_recorded(self, results: Path, rows: dict[str, Row]) -> None:
        headings = [name for sheet in _sheets(results, rows) for name in sheet.headings]
        assert "messages (s per round)" not in headings  # these runs have no seconds
        assert "model, at most (kB)" in headings

    def test_the_page_is_written_from_run_folders(self, results: Path, rows: dict[str, Row], tmp_path: Path) -> None:
        page = tmp_path / "frontier.md"
        page.write_text("# Mine\n\n<!-- report: frontier -->\n<!-- /report -->\n\nafter\n")
        written = write_report([results], tmp_path / "out", [page], rows)
        text = page.read_text()
        assert text.startswith("# Mine\n")
        assert text.endswith("after\n")
        assert "](images/frontier-mnist-mlp-iid.png)" in text
        flat = " ".join(text.split())
        assert (
            "On the front, from the fewest bytes to the most: T-FedAvg, all layers (90.00%, 0.900 MB); T-FedAvg, inner "
            "layers (95.80%, 9.00 MB); FedAvg, tuned (96.00%, 90.0 MB)."
        ) in flat
        assert (
            "T-FedAvg, inner layers (95.80%, 9.00 MB) needs 5 times fewer bytes than FedAvg, float16 (95.50%, 45.0 MB)."
        ) in flat
        assert "frontier-mnist-mlp-iid" in written.figures
        assert (tmp_path / "out" / "figures" / "frontier-mnist-mlp-iid.png").is_file()
        html = written.page.read_text()
        assert 'id="at-frontier"' in html
        assert "T-FedAvg, all layers (90.00%, 0.900 MB)" in html

    def test_it_says_which_one_to_use_for_which_accuracy(self, results: Path, rows: dict[str, Row]) -> None:
        """FedAvg's 96.0% are within 0.3 points of the 95.8% that cost a tenth, so nobody is told to use it."""
        rows["rival"] = row("rival", {"algorithm": {"name": "topk"}})
        run(results / "rival", rows["rival"], (0.8, 0.9, 0.85), 11 * MB)
        with drawing():
            chapter = frontier(collect([results], rows).groups)
        assert chapter is not None
        assert (
            "Use T-FedAvg, all layers when 90.0% are enough (0.900 MB); T-FedAvg, inner layers when 95.8% must be "
            "reached (9.00 MB). More bytes buy at most 0.3 points. Never on the front: Top-k (110); in brackets, how "
            "many times the bytes of the cheapest that is as accurate its best point needs."
        ) in chapter.parts[0].texts

    def test_products_of_the_trained_model_stand_beside_its_size(self, sheets: dict[str, Sheet]) -> None:
        beside = {line[0]: line[-2:] for line in sheets["beside"].rows}
        assert sheets["beside"].headings[-2:] == ("products per sample (thousand)", "of float32's")
        assert beside["FedAvg, tuned"] == ("24.3", "1")
        assert beside["T-FedAvg, all layers"] == ("0.0600", "1/405")

    def test_what_was_left_out_is_named_even_where_nothing_is_left(self, results: Path, rows: dict[str, Row]) -> None:
        changed = {**rows, "own": row("own", {**TFEDAVG, "algorithm": {"name": "tfedavg", "factor": 0.5}})}
        chapter = frontier(collect([results / "own"], changed).groups)
        assert chapter is not None
        assert (chapter.parts, chapter.notes[0].split(": ")[1]) == ((), "own.")

    def test_without_points_the_page_says_so(self, results: Path, tmp_path: Path) -> None:
        page = tmp_path / "frontier.md"
        page.write_text("<!-- report: frontier -->\n<!-- /report -->\n")
        written = write_report([results], tmp_path / "out", [page], {})
        assert written.empty == (f"{page}: frontier",)
        assert "There are no runs for this table yet" in page.read_text()


def test_a_rival_that_is_cheaper_is_said_to_be(results: Path, rows: dict[str, Row]) -> None:
    rows["rival"] = row("rival", {"algorithm": {"name": "stc"}})
    run(results / "rival", rows["rival"], (0.8, 0.9, 0.97), MB // 2)
    with drawing():
        chapter = frontier(collect([results], rows).groups)
    assert chapter is not None
    text = " ".join(chapter.parts[0].texts)
    assert "T-FedAvg, inner layers (95.80%, 9.00 MB) needs 2 times the bytes of STC (97.00%, 4.50 MB)" in text
    assert "No point of T-FedAvg is within 0.3 points of the most accurate rival, STC" in text


def test_a_control_with_frozen_trits_is_told_beside_its_point_and_is_none_itself(
    results: Path, rows: dict[str, Row]
) -> None:
    """Cheap as it is, nobody would use it. A run that rates were chosen by is no control."""
    frozen = {"algorithm": {"name": "tfedavg", "preset": "frozen"}, "model": {"ternary": "inner"}}
    rows["frozen"] = row("frozen", frozen, "frontier", "iid", role="frozen")
    rows["tried"] = row("tried", {**frozen, "training": {"epochs": 1, "rate": 0.3}}, "tuning", role="frozen", seeds=9)
    for seed, last in enumerate((0.918, 0.5)):
        run(results / f"frozen-{seed}", rows["frozen"], (0.5, 0.6, last), MB // 50, changed=0.0, seed=seed)
    for seed in range(3):
        run(results / f"tried-{seed}", rows["tried"], (0.5, 0.6, 0.1), 1, validation=0.1, changed=0.0, seed=seed)
    with drawing():
        chapter = frontier(collect([results], rows).groups)
    assert chapter is not None
    (part,) = chapter.parts
    assert (
        "What learning the trits is worth: T-FedAvg, inner layers (95.80%, 9.00 MB) is 4.00 points above the same with "
        "frozen trits (1 seed)."
    ) in part.texts
    assert not [line for line in part.sheets[0].rows if "frozen" in line[0]]
    assert part.texts[1].startswith("On the front, from the fewest bytes to the most: T-FedAvg, all layers")


def test_of_many_points_those_off_the_front_have_no_name_where_another_of_their_algorithm_has(
    results: Path, rows: dict[str, Row]
) -> None:
    for bits in range(2, 14):
        rows[f"coarse-{bits}"] = row(f"coarse-{bits}", {"algorithm": {"name": "fedpaq", "finest_bits": bits}})
        run(results / f"coarse-{bits}", rows[f"coarse-{bits}"], (0.5, 0.6, 0.99 - bits / 1000), bits * MB // 10)
    rows["weak"] = row("weak", {"algorithm": {"name": "stc"}})
    run(results / "weak", rows["weak"], (0.8, 0.9, 0.93), 5 * MB)
    with drawing():
        chapter = frontier(collect([results], rows).groups)
    assert chapter is not None
    (part,) = chapter.parts
    assert "FedPAQ, steps of 2 bits" in part.picture.svg
    assert "STC" in part.picture.svg
    assert "FedPAQ, steps of 9 bits" not in part.picture.svg
    assert "FedPAQ, steps of 9 bits" in {line[0] for line in part.sheets[0].rows}
    assert part.picture.caption.endswith("Points without a number are of the algorithm of their colour.")


def test_a_rival_that_was_lost_is_in_the_table_and_nowhere_else(results: Path, rows: dict[str, Row]) -> None:
    rows["lost"] = row("lost", {"algorithm": {"name": "stc"}})
    run(results / "lost", rows["lost"], (0.8, float("nan"), float("nan")), 1)
    with drawing():
        chapter = frontier(collect([results], rows).groups)
    assert chapter is not None
    (part,) = chapter.parts
    assert part.sheets[0].rows[0][:2] == ("STC", "not finite")
    assert "STC" not in " ".join(part.texts) + part.picture.svg


class TestRivals:
    def test_of_each_rival_the_cheapest_point_that_is_strong_and_of_these_two(
        self, results: Path, rows: dict[str, Row]
    ) -> None:
        made = {name: row(name, {"algorithm": {"name": name}}) for name in ("eden", "stc", "topk", "fedpaq")}
        made["fine"] = row("fine", {"algorithm": {"name": "fedpaq", "bits_up": 8}})
        scores = {"eden": (0.958, 2 * MB), "stc": (0.94, MB), "topk": (0.957, 4 * MB), "fedpaq": (0.9, MB // 2)}
        for name, (score, sent) in {**scores, "fine": (0.96, 3 * MB)}.items():
            run(results / name, made[name], (0.5, 0.6, score), sent)
        sheet = rivals(collect([results], {**rows, **made}).groups)
        assert sheet is not None
        told = [line[1].split(",")[0] for line in sheet.rows]
        # FedPAQ with few bits is as accurate as our cheapest point; STC is too far from FedAvg, and top-k is the third.
        assert told == ["FedAvg", "FedPAQ", "EDEN", "T-FedAvg", "FedPAQ", "T-FedAvg"]
        assert [line[4] for line in sheet.rows] == [NONE, "1/3.33", "1/5", "1/10", "1/20", "1/100"]

    def test_without_a_comparison_there_is_no_table(self) -> None:
        assert rivals([]) is None
        assert headline([]) is None

    def test_in_short_the_best_and_the_cheapest_of_ours_beside_the_cheapest_strong_rival(
        self, results: Path, rows: dict[str, Row]
    ) -> None:
        alone = headline(collect([results], rows).groups)
        assert alone is not None
        assert {line[5] for line in alone.rows} == {"none has run yet"}
        made = {name: row(name, {"algorithm": {"name": name}}) for name in ("eden", "stc")}
        run(results / "stc", made["stc"], (0.5, 0.6, 0.94), MB)
        weak = headline(collect([results], {**rows, **made}).groups)
        assert weak is not None
        assert {line[5:] for line in weak.rows} == {("STC: 94.00 (1 seed), 1/10", NONE)}
        run(results / "eden", made["eden"], (0.5, 0.6, 0.958), 2 * MB)
        sheet = headline(collect([results], {**rows, **made}).groups)
        assert sheet is not None
        best, cheapest = sheet.rows
        assert (best[4], cheapest[4]) == ("1/10", "1/100")
        assert float(best[2].split()[0]) > float(cheapest[2].split()[0])
        assert best[5:] == ("EDEN: 95.80 (1 seed), 1/5", "STC: 94.00 (1 seed), 1/10")
        assert cheapest[5:] == ("STC: 94.00 (1 seed), 1/10", "EDEN: 95.80 (1 seed), 1/5")

    def test_the_first_rival_is_the_cheapest_that_is_as_accurate_as_that_point_of_ours(
        self, results: Path, rows: dict[str, Row]
    ) -> None:
        """However far it is from FedAvg: whoever can do with less need not pay for more."""
        made = {name: row(name, {"algorithm": {"name": name}}) for name in ("eden", "fedpaq")}
        made["coarse"] = row("coarse", {"algorithm": {"name": "fedpaq", "finest_bits": 3}})
        scores = {"eden": (0.958, 2 * MB), "fedpaq": (0.957, 3 * MB), "coarse": (0.949, MB // 5)}
        for name, (score, sent) in scores.items():
            run(results / name, made[name], (0.5, 0.6, score), sent)
        groups = collect([results], {**rows, **made}).groups
        short, full = headline(groups), rivals(groups)
        assert short is not None
        assert full is not None
        best, cheapest = short.rows
        assert best[5:] == ("EDEN: 95.80 (1 seed), 1/5", "FedPAQ: 95.70 (1 seed), 1/3.33")
        assert cheapest[5:] == ("FedPAQ, steps of 3 bits: 94.90 (1 seed), 1/50", "EDEN: 95.80 (1 seed), 1/5")
        assert [line[1].split(" (")[0] for line in full.rows].count("EDEN") == 1
        assert len(full.rows) == 1 + 3 + 2

    def test_a_rival_with_fewer_seeds_is_told_with_what_fedavg_has_with_those(
        self, results: Path, rows: dict[str, Row]
    ) -> None:
        made = {"eden": row("eden", {"algorithm": {"name": "eden"}})}
        run(results / "eden", made["eden"], (0.5, 0.6, 0.952), 2 * MB, seed=1)
        sheet = headline(collect([results], {**rows, **made}).groups)
        assert sheet is not None
        assert {line[5:] for line in sheet.rows} == {("EDEN: 95.20 (1 seed; FedAvg's 95.50), 1/5", NONE)}


class TestChoice:
    def test_it_names_the_cheapest_point_for_what_may_be_lost(self, results: Path, rows: dict[str, Row]) -> None:
        """FedAvg at its best rate has 96; the network with ternary inner layers 95.8, the wholly ternary one 90."""
        made = {"stc": row("stc", {"algorithm": {"name": "stc"}})}
        run(results / "stc", made["stc"], (0.5, 0.6, 0.942), MB // 2)
        sheet = choice(collect([results], {**rows, **made}).groups)
        assert sheet is not None
        (line,) = sheet.rows
        assert line[1] == "T-FedAvg, inner layers: -0.20 (1 seed), 1/10"
        assert line[2:4] == ("the same", "STC: -1.80 (1 seed), 1/20")
        assert line[4] == "the same"

    def test_where_nothing_else_is_near_enough_it_is_fedavg(self, results: Path, rows: dict[str, Row]) -> None:
        few = {name: rows[name] for name in ("tuned", "own")}
        sheet = choice(collect([results], few).groups)
        assert sheet is not None
        assert {text.split(":")[0] for text in sheet.rows[0][1:]} == {"FedAvg, tuned", "the same"}

    def test_without_a_comparison_there_is_no_table(self) -> None:
        assert choice([]) is None


def test_seconds_of_messages_are_those_of_their_phases(tmp_path: Path) -> None:
    (group,) = collect([real_run(tmp_path / "run")]).groups
    point = point_of(group)
    assert point is not None
    messages, whole = exchange_seconds(point) or (0.0, 0.0)
    phases = [record.seconds for record in group.shown[0].rounds]
    assert messages == pytest.approx(sum(p["broadcast"] + p["prepare"] + p["upload"] for p in phases) / len(phases))
    assert whole == pytest.approx(sum(sum(p.values()) for p in phases) / len(phases))


@pytest.mark.parametrize(
    ("size", "text"), [(1_024e6, "1,024"), (34.06e6, "34.1"), (2.05e6, "2.05"), (12_300, "0.0123")]
)
def test_megabytes_have_three_digits(size: float, text: str) -> None:
    assert megabytes(size) == text


def _sheets(results: Path, rows: dict[str, Row]) -> tuple[Sheet, ...]:
    with drawing():
        chapter = frontier(collect([results], rows).groups)
    assert chapter is not None
    return chapter.sheets


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"upload": "trits"}, "T-FedAvg, trits up"),
        ({"settle_at_decay": "none"}, "T-FedAvg"),
        ({"preset": "paper"}, "T-FedAvg as published (preset paper)"),
    ],
)
def test_alone_a_point_is_named_by_its_way_up_where_that_was_asked_for(
    tmp_path: Path, algorithm: dict[str, Any], expected: str
) -> None:
    made = row("own", {"algorithm": {"name": "tfedavg", **algorithm}})
    run(tmp_path / "own", made, [0.5, 0.6, 0.7], MB)
    (group,) = collect([tmp_path], {"own": made}).groups
    assert setting_label(group, [group]) == expected


def test_what_a_preset_sets_is_not_told_again(tmp_path: Path) -> None:
    settings = {"plain": {}, "frozen": {"preset": "frozen", "difference_bits": 1}}
    rows = {name: row(name, {"algorithm": {"name": "tfedavg", **own}}) for name, own in settings.items()}
    for name, made in rows.items():
        run(tmp_path / name, made, [0.5, 0.6, 0.7], MB)
    groups = collect([tmp_path], rows).groups
    labels = {setting_label(group, groups) for group in groups}
    assert labels == {"T-FedAvg", "T-FedAvg, frozen (control), 1 up"}

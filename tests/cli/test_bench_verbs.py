"""`ternfed bench NAME`: tables in Markdown on standard output. What they measure is tested in the rooms."""

import ast
import json
import pickle
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from ternfed.bench import flower_rates, slow_link
from ternfed.bench.flower_apps import (
    RATES,
    Case,
    Outcome,
    QuickstartNet,
    again,
    app_of,
    data,
    outcome_of,
    play,
    run,
    sends_counters,
    serve,
    state_of,
)
from ternfed.bench.flower_table import comparison, table
from ternfed.bench.ordered_grid import OrderedGrid
from ternfed.bench.real_flower import SAID, told_outcomes, write_app
from ternfed.bench.slow_link import LinkCost, Plan
from ternfed.bench.tables import markdown
from ternfed.cli.app import app
from ternfed.data.sets import load
from ternfed.engines.flower.adapter.in_process import in_process_grid
from ternfed.engines.flower.errors import NetworkError
from ternfed.experiment.experiment import Experiment


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_a_table_is_markdown() -> None:
    assert markdown(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_many_clients_shows_each_round_of_each_algorithm() -> None:
    result = call("many-clients", "--clients", "100", "--rounds", "2")
    assert result.exit_code == 0, result.output
    names = [line.split("|")[1].strip() for line in result.stdout.splitlines()]
    assert names == ["algorithm", "---", "fedavg", "fedavg", "tfedavg", "tfedavg"]


def test_the_fuzzer_counts_every_input() -> None:
    result = call("fuzz-wire", "--count", "300", "--seed", "5")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("300 mutated inputs, seed 5: no crash")
    counts = [line.split("|")[2] for line in result.stdout.splitlines() if line.startswith("| ")][2:]
    assert sum(int(count.replace(",", "")) for count in counts) == 300


def test_a_row_that_is_none_is_wrong_input() -> None:
    result = call("cmfl-threshold", "nope")
    assert result.exit_code == 2
    assert "no row has this name" in result.stderr


@pytest.mark.parametrize(
    ("wrong", "words"), [(["--strategy", "FedNone"], "FedAvg, FedProx"), (["--mode", "bits"], "none, updates, ternary")]
)
def test_a_strategy_or_mode_that_is_none_is_wrong_input(wrong: list[str], words: str) -> None:
    pytest.importorskip("flwr")
    result = call("flower", *wrong)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_the_table_of_a_flower_app_says_how_far_each_mode_is_behind() -> None:
    case = Case("FedAvg", norm=True)
    rows = [Outcome(case, "none", 0, 0.95), Outcome(case, "updates", 0, 0.94, 1 / 15, 1 / 22)]
    lines = table(rows).splitlines()
    assert lines[-3] == "| FedAvg, BatchNorm | updates | 1 | 94.00 | -1.00 | 1/22.0 | 1/15.0 |"
    assert lines[-1].endswith("1/12 down): FedAvg, BatchNorm (-1.00).")
    whole = [*rows, *(replace(each, seed=1, accuracy=0.95) for each in rows)]
    assert table(whole).splitlines()[-1].endswith("1/12 down): nothing.")  # half a point in the mean


def test_the_page_is_made_of_outcomes_that_are_kept_and_nothing_is_run(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    file, page = tmp_path / "outcomes.jsonl", tmp_path / "page.md"
    rows = [Outcome(Case("FedAdam"), mode, 0, 0.9, 1 / 11, 1 / 22) for mode in ("updates", "none")]
    file.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    page.write_text("before\n<!-- begin flower -->\nold\n<!-- end flower -->\nafter\n")
    result = call("flower", "--stored", "--keep", str(file), "--into", str(page))
    assert result.exit_code == 0, result.output
    lines = page.read_text().splitlines()
    assert [line.split("|")[2].strip() for line in lines if line.startswith("| FedAdam")] == ["none", "updates"]
    assert "FedAdam (1/11.0 down)." in lines[-3]
    assert (lines[0], lines[-1]) == ("before", "after")
    assert call("flower", "--stored").exit_code == 2


@pytest.mark.parametrize("algorithm", ["fedavg", "tfedavg"])
def test_the_experiment_of_the_slow_links_is_one_that_clients_can_run(algorithm: str, tmp_path: Path) -> None:
    experiment = Experiment.from_toml(slow_link.experiment(algorithm, Plan(rounds=7)))
    assert experiment.federation.rounds == 7
    data = load(experiment.data.dataset)
    assert experiment.make_network(data).model(data.test.inputs.float()).shape == (20, 10)


def test_slow_links_compare_the_first_algorithm_with_the_last() -> None:
    rows = [LinkCost("fedavg", 5.0, 2e6, 2e6, 2.1e6, 2.1e6), LinkCost("tfedavg", 2.0, 25e3, 25e3, 32e3, 40e3)]
    text = slow_link.table(Plan(), rows)
    assert "| tfedavg | 2.00 | 25.0 / 25.0 | 32.0 / 40.0 |" in text
    assert text.endswith("ratio of communication seconds: 2.5")


def test_outcomes_that_are_kept_are_not_run_again(tmp_path: Path) -> None:
    ran: list[int] = []

    def play(case: Case, mode: str, seeds: list[int], given: object, bits_up: float) -> list[Outcome]:
        ran.extend(seeds)
        return [Outcome(case, mode, seed, 0.5, 0.1, 0.05) for seed in seeds]

    file, rows = tmp_path / "outcomes.jsonl", [Case("FedAvg")]
    first = list(run(rows, ["updates"], [0], "digits", kept=file, play=play))
    again = list(run(rows, ["updates"], [0, 1], "digits", kept=file, play=play))
    assert ran == [0, 1]
    assert again[0] == first[0]
    file.write_text("{}\n")
    with pytest.raises(ValueError, match="line 1: is no outcome of this benchmark"):
        list(run(rows, ["updates"], [0], "digits", kept=file, play=play))


class Shuffled:
    """A grid that answers last what was asked first, and draws from `random` while it waits, as Flower's threads do."""

    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def get_node_ids(self) -> list[int]:
        return list(self.grid.get_node_ids())[::-1]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))[::-1]
        random.seed(7)
        return replies


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_a_run_is_played_again_bit_for_bit_by_who_knows_its_node_ids_and_who_was_asked(fraction: float) -> None:
    case, digits, nodes = Case("FedAvg", fraction=fraction), data("digits"), (9, 4, 7, 2, 5)
    grid = in_process_grid(dict.fromkeys(nodes, app_of(case, "none", digits)))
    first = serve(OrderedGrid(Shuffled(grid)), case, "none", 0, digits, rounds=4)
    assert first.nodes == nodes
    assert [len(parts) for parts in first.asked] == [round(5 * fraction)] * 4
    assert comparison(again([outcome_of(json.loads(json.dumps(asdict(first))))], "digits", rounds=4)).startswith(
        "1 of 1"
    )
    drawn = play(case, "none", 0, digits, rounds=4, nodes=nodes)
    assert (drawn == first) == (fraction == 1)  # all clients are asked, whatever is drawn


def test_a_run_whose_clients_fail_is_no_outcome() -> None:
    """Flower's strategies go on without replies, and end with the model that they began with."""
    case, digits = Case("FedAvg"), data("digits")
    grid = in_process_grid(dict.fromkeys(range(1, 6), app_of(replace(case, norm=True), "none", digits)))  # other model
    with pytest.raises(NetworkError, match="FedAvg, none, seed 0: 5 replies failed"):
        serve(OrderedGrid(grid), case, "none", 0, digits, rounds=1)


def test_the_data_of_an_app_is_pickled_as_its_name() -> None:
    digits = data("digits")
    assert len(pickle.dumps(digits)) < 500
    assert pickle.loads(pickle.dumps(digits)) is digits


def test_what_is_random_about_the_rounding_follows_from_the_node_ids() -> None:
    case, digits, nodes = Case("FedAvg"), data("digits"), (9, 4, 7, 2, 5)
    grid = in_process_grid(dict.fromkeys(nodes, app_of(case, "updates", digits)))
    first = serve(OrderedGrid(Shuffled(grid)), case, "updates", 0, digits, rounds=1)
    assert comparison(again([first], "digits", rounds=1)).startswith("1 of 1 runs")
    other = play(case, "updates", 0, digits, rounds=1)
    assert other.model != first.model
    assert comparison([(first, other)]).startswith("0 of 1 runs")
    assert "| FedAvg | updates | 0 |" in comparison([(first, other)])
    with pytest.raises(ValueError, match="FedAvg, none, seed 0: not all of its node ids are known"):
        list(again([Outcome(Case("FedAvg"), "none", 0, 0.9)], "digits"))


@pytest.mark.parametrize("mode", ["none", "updates", "ternary"])
def test_an_app_for_flwr_run_is_python_whatever_its_mode_and_its_last_lines_are_read(tmp_path: Path, mode: str) -> None:
    settings = ({"strategy": "FedAvg", "norm": False, "fraction": 0.6}, mode, [3, 4], "digits", 5, 1.5)
    write_app(tmp_path / "app", settings)
    code = (tmp_path / "app" / "benchmark.py").read_text()
    lines = ast.parse(code).body
    assert any(isinstance(line, ast.Assign) and ast.literal_eval(line.value) == settings for line in lines)
    outcomes = [Outcome(Case("FedAvg", fraction=0.6), mode, seed, 0.9, 0.1, 0.05) for seed in (3, 4)]
    lines = ["INFO: round 5", *(f"{SAID}{json.dumps(asdict(outcome))}" for outcome in outcomes)]
    assert told_outcomes(lines, 2) == outcomes
    with pytest.raises(NetworkError, match="with 1 of 2 outcomes: INFO: round 5"):
        told_outcomes([*lines[:2], "no nodes"], 2)


def test_the_table_of_the_page_is_that_of_the_kept_runs() -> None:
    pytest.importorskip("flwr")
    root = Path(__file__).parents[2]
    result = call("flower", "--stored", "--keep", str(root / "results" / "flower.jsonl"))
    assert result.exit_code == 0, result.output
    page = (root / "docs" / "flower.md").read_text(encoding="utf-8")
    assert f"<!-- begin flower -->\n{result.stdout}<!-- end flower -->" in page


def test_the_rates_with_batchnorm_are_the_best_of_those_that_were_tried_and_stand_on_the_page() -> None:
    pytest.importorskip("flwr")
    root = Path(__file__).parents[2]
    kept = root / "results" / "flower_rates.jsonl"
    tried = flower_rates.read(kept)
    assert {each.seed for each in tried} == set(flower_rates.SEEDS)  # none of the table's
    for name in flower_rates.GRIDS:
        own = [each for each in tried if each.strategy == name]
        assert len({each.rates for each in own}) * len(flower_rates.SEEDS) == len(own)
        assert {each.rates for each in own} == set(flower_rates.choices(name))
        assert flower_rates.best(own) == {name: RATES[Case(name, norm=True)]}
    result = call("flower-rates", "--stored", "--keep", str(kept))
    assert result.exit_code == 0, result.output
    page = (root / "docs" / "flower.md").read_text(encoding="utf-8")
    assert f"<!-- begin flower-rates -->\n{result.stdout}<!-- end flower-rates -->" in page


def test_rates_that_were_tried_are_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    ran: list[float] = []

    def play(case: Case, mode: str, seed: int, given: object, rates: dict[str, float]) -> Outcome:
        (rate,) = rates.values()
        ran.append(rate)
        return Outcome(case, mode, seed, 0.9 if rate == 10 else 0.5)

    monkeypatch.setattr(flower_rates, "play", play)
    file = tmp_path / "tried.jsonl"
    first = list(flower_rates.run(["QFedAvg"], [10], data("digits", held_out=True), file))
    assert list(flower_rates.run(["QFedAvg"], [10], data("digits", held_out=True), file)) == first
    assert ran == [1, 3, 10, 30, 100]
    assert flower_rates.best(first) == {"QFedAvg": {"client_learning_rate": 10.0}}
    assert flower_rates.table(first).splitlines()[-1] == "| QFedAvg | 50.00 | 50.00 | **90.00** | 50.00 | 50.00 |"
    wrong = call("flower-rates", "--strategy", "FedAvg")
    assert wrong.exit_code == 2
    assert call("flower-rates", "--stored").exit_code == 2


def test_without_ternfed_qfedavg_sends_no_counters_because_it_multiplies_whole_numbers_in_place() -> None:
    qfedavg, model = Case("QFedAvg", norm=True), QuickstartNet(norm=True)
    assert not sends_counters(qfedavg, "none")
    assert sends_counters(qfedavg, "updates")
    assert sends_counters(Case("FedAvg", norm=True), "none")
    assert list(state_of(model, counters=True)) == list(model.state_dict())
    left_out = model.state_dict().keys() - state_of(model, counters=False).keys()
    assert {name.rpartition(".")[2] for name in left_out} == {"num_batches_tracked"}
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy.qfedavg import compute_delta_and_h

    with pytest.raises(TypeError):
        compute_delta_and_h([np.zeros((), np.int64)], [np.ones((), np.int64)], 0.1, 1.0, 1.0)

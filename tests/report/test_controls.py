"""Controls: what a result is compared with, seed by seed, and what was aimed at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from run_folders import known_run, row
from ternfed.paper.groups import Group, collect, difference
from ternfed.paper.rows import Row, find_rows
from ternfed.paper.targets import TARGETS
from ternfed.report import accuracy, choosing
from ternfed.report.controls import controls
from ternfed.report.labels import method_label
from ternfed.report.tables import Sheet
from ternfed.report.targets import targets

MNIST = ("data.dataset=mnist", "training.epochs=1")
CIFAR = ("data.dataset=cifar10", "training.epochs=1")
FROZEN = "algorithm.preset=frozen"

ROWS = {
    name: row(name, "iid", "non-iid", role=role)
    for name, role in (("plain", "published"), ("tuned", "tuned"), ("own", None), ("frozen", "frozen"), ("paper", None))
}


def add(path: Path, name: str, *settings: str, accuracies: tuple[float, ...] = (0.5,), **values: Any) -> None:
    """One run of two rounds per seed, under `path/NAME`; the last round has the seed's accuracy."""
    for seed, value in enumerate(accuracies):
        own = [*settings, f"name={name}", f"seed={seed}", "federation.rounds=2"]
        known_run(path / name / f"seed-{seed}", own, [values, {**values, "score": value}])


def groups(path: Path, rows: dict[str, Row] | None = None) -> tuple[Group, ...]:
    return collect([path], ROWS if rows is None else rows).groups


def lines(sheet: Sheet | None) -> list[dict[str, str]]:
    assert sheet is not None
    return [dict(zip(sheet.headings, line, strict=True)) for line in sheet.rows]


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    """One cell with every control; T-FedAvg has three seeds, the frozen control two of them, tuned FedAvg three."""
    add(tmp_path, "plain", *MNIST, "algorithm.name=fedavg", accuracies=(0.8,), bytes_up=30_000, bytes_down=60_000)
    tuned = ("algorithm.name=fedavg", "training.rate=0.2")
    add(tmp_path, "tuned", *MNIST, *tuned, accuracies=(0.9, 0.92, 0.94), bytes_up=31_000)
    sizes = {"bytes_up": 1000, "bytes_down": 4000, "bytes_up_fp32": 36_000, "bytes_down_fp32": 80_000}
    add(tmp_path, "own", *MNIST, accuracies=(0.91, 0.92, 0.96), changed=0.25, **sizes)
    add(tmp_path, "frozen", *MNIST, FROZEN, accuracies=(0.88, 0.90), changed=0.0)
    add(tmp_path, "paper", *MNIST, "algorithm.preset=paper", changed=0.5)
    return tmp_path


class TestControls:
    def test_differences_are_taken_seed_by_seed_over_the_seeds_that_both_have(self, cell: Path) -> None:
        own, published = lines(controls(groups(cell)))
        assert (own["algorithm"], own["accuracy (%)"]) == ("T-FedAvg", "93.00 ± 2.65")
        assert (own["tuned FedAvg"], own["T-FedAvg − tuned FedAvg"]) == ("92.00 ± 2.00", "+1.00 ± 1.00")
        assert (own["frozen"], own["T-FedAvg − frozen"]) == ("89.00 ± 1.41", "+2.50 ± 0.71 (2 seeds)")
        assert (own["up, of FedAvg's"], own["down, of FedAvg's"]) == ("1/30", "1/15")
        assert own["flips, first / mean / last (%)"] == "25 / 25 / 25"
        assert published["algorithm"] == "T-FedAvg as published (preset paper)"
        assert published["T-FedAvg − tuned FedAvg"] == "-40.00"
        assert published["T-FedAvg − frozen"] == "–"  # it starts otherwise, so that the recipe's control is not its own

    def test_t_fedavg_as_published_has_a_frozen_control_of_its_own(self, cell: Path) -> None:
        add(cell, "still", *MNIST, "algorithm.preset=paper", "algorithm.latent_rate=0", accuracies=(0.25,), changed=0.0)
        rows = {**ROWS, "still": row("still", "iid", role="frozen")}
        own, published = lines(controls(groups(cell, rows)))
        assert (own["frozen"], published["frozen"], published["T-FedAvg − frozen"]) == (
            "89.00 ± 1.41",
            "25.00",
            "+25.00",
        )

    def test_a_control_that_is_missing_is_seen_to_be_missing(self, cell: Path) -> None:
        add(cell, "other", *CIFAR, changed=0.5)
        line = next(line for line in lines(controls(groups(cell))) if line["data"].startswith("CIFAR"))
        assert line["T-FedAvg − frozen"] == line["T-FedAvg − tuned FedAvg"] == line["up, of FedAvg's"] == "–"

    @pytest.mark.parametrize(
        "setting",
        [
            "federation.rounds=3",
            "training.epochs=2",
            "data.classes_per_client=2",
            "model.activation=none",
            "model.ternary=all",
            "training.schedule=cosine",
        ],
    )
    def test_the_frozen_control_is_one_of_the_same_cell_layers_and_training(self, tmp_path: Path, setting: str) -> None:
        add(tmp_path, "own", *MNIST, changed=0.5)
        add(tmp_path, "tuned", *MNIST, "algorithm.name=fedavg")
        settings = [*MNIST, FROZEN, "name=frozen", "federation.rounds=2", setting]
        known_run(tmp_path / "frozen", settings, [{"changed": 0.0}] * 3)
        assert [line["frozen"] for line in lines(controls(groups(tmp_path)))] == ["–"]

    def test_the_frozen_control_may_have_a_rate_of_its_own(self, tmp_path: Path) -> None:
        add(tmp_path, "own", *MNIST, changed=0.5)
        add(tmp_path, "frozen", *MNIST, FROZEN, "training.rate=0.5", accuracies=(0.88,), changed=0.0)
        assert [line["frozen"] for line in lines(controls(groups(tmp_path)))] == ["88.00"]

    def test_without_any_control_there_is_no_table(self, tmp_path: Path) -> None:
        add(tmp_path, "own", *MNIST, changed=0.5)
        assert controls(groups(tmp_path)) is None

    def test_seeds_that_only_one_has_do_not_count(self, tmp_path: Path) -> None:
        for seed, name, value in ((0, "tuned", 0.5), (1, "tuned", 0.75), (1, "own", 1.0), (2, "own", 0.0)):
            kind = "fedavg" if name == "tuned" else "tfedavg"
            settings = [*MNIST, f"name={name}", f"seed={seed}", "federation.rounds=1", f"algorithm.name={kind}"]
            known_run(tmp_path / name / str(seed), settings, [{"score": value}])
        found = {group.name: group for group in groups(tmp_path)}
        ahead = difference(found["own"], found["tuned"])
        assert ahead is not None
        assert (ahead.mean, ahead.std, ahead.count) == (25.0, None, 1)


class TestRoles:
    def test_every_role_is_a_row_of_the_papers_tables(self, cell: Path) -> None:
        sheet = accuracy.iid(groups(cell))
        assert sheet is not None
        assert [line[0] for line in sheet.rows if not line[0].startswith(("paper", "seeds", "rounds"))] == [
            "FedAvg, rate as published",
            "FedAvg, tuned",
            "T-FedAvg",
            "T-FedAvg as published (preset paper)",
            "T-FedAvg, frozen (control)",
        ]
        assert "seed by seed" in sheet.markdown().replace("\n", " ")

    def test_runs_without_a_row_tell_their_role_by_their_settings(self, tmp_path: Path) -> None:
        add(tmp_path, "a", *MNIST, FROZEN)
        add(tmp_path, "b", *MNIST, "algorithm.preset=paper")
        add(tmp_path, "c", *MNIST, "algorithm.name=fedavg")
        labels = [method_label(group) for group in groups(tmp_path, {})]
        assert labels == ["FedAvg", "T-FedAvg, frozen (control)", "T-FedAvg as published (preset paper)"]


class TestTargets:
    def verdicts(self, path: Path, rows: dict[str, Row] | None = None) -> dict[str, tuple[str, str, str]]:
        found = lines(targets(groups(path, rows)))
        return {
            f"{line['T-FedAvg on']} | {line['target']}": (line["margin"], line["seeds"], line[""])
            for line in found
            if line[""] != "not run"
        }

    def test_each_aim_is_reached_or_says_by_how_much_it_is_missed(self, cell: Path) -> None:
        where = "MNIST, MLP, IID"
        assert self.verdicts(cell) == {
            f"{where} | at least tuned FedAvg − 0.3": ("+1.00 ± 1.00", "3 of 5", "reached so far"),
            f"{where} | at least frozen + 0.3": ("+2.50 ± 0.71", "2 of 5", "reached so far"),
            f"{where} | up at most 1/20 of float32": ("1/36.0 (1/30.0)", "3 of 5", "reached so far"),
            f"{where} | down at most 1/12 of float32": ("1/20.0 (1/15.0)", "3 of 5", "reached so far"),
        }

    def test_a_first_layer_that_is_ternary_too_has_aims_of_its_own(self, tmp_path: Path) -> None:
        fedavg = {"bytes_up": 50_000, "bytes_down": 60_000}
        add(tmp_path, "tuned", *MNIST, "algorithm.name=fedavg", accuracies=(0.9,) * 5, **fedavg)
        first = 'model.ternary=["linear1", "linear2"]'
        sizes = {"bytes_up": 1000, "bytes_down": 2000, "bytes_up_fp32": 54_000, "bytes_down_fp32": 60_000}
        add(tmp_path, "own", *MNIST, first, accuracies=(0.89,) * 5, changed=0.5, **sizes)
        where = "MNIST, MLP, IID, first layer ternary too"
        assert self.verdicts(tmp_path) == {
            f"{where} | at least tuned FedAvg − 0.7": ("-1.00 ± 0.00", "5", "missed by 0.30"),
            f"{where} | up at most 1/55 of float32": ("1/54.0 (1/50.0)", "5", "missed: 1/54.0"),
            f"{where} | down at most 1/30 of float32": ("1/30.0 (1/30.0)", "5", "reached"),
        }

    def test_on_cifar_10_the_tuned_fedavg_counts_where_there_is_one(self, tmp_path: Path) -> None:
        add(tmp_path, "plain", *CIFAR, "algorithm.name=fedavg", accuracies=(0.5,))
        add(tmp_path, "own", *CIFAR, accuracies=(0.6,))
        aim = "CIFAR-10, ResNet18*, IID | at least FedAvg − 0.3"
        assert self.verdicts(tmp_path)[aim] == ("+10.00", "1 of 3", "reached so far")
        add(tmp_path, "tuned", *CIFAR, "algorithm.name=fedavg", "training.rate=0.5", accuracies=(0.7,))
        assert self.verdicts(tmp_path)[aim] == ("-10.00", "1 of 3", "missed by 9.70")

    def test_runs_of_different_length_are_not_compared_and_not_the_better_ones(self, tmp_path: Path) -> None:
        add(tmp_path, "plain", *CIFAR, "algorithm.name=fedavg", accuracies=(0.89,))
        add(tmp_path, "own", *CIFAR, accuracies=(0.8,))
        known_run(tmp_path / "longer", [*CIFAR, "name=longer", "federation.rounds=3"], [{"score": 0.95}] * 3)
        rows = {**ROWS, "longer": row("longer", "iid")}
        assert self.verdicts(tmp_path, rows)["CIFAR-10, ResNet18*, IID | at least FedAvg − 0.3"][0] == "-9.00"

    def test_a_frozen_network_is_never_judged_as_t_fedavg(self, tmp_path: Path) -> None:
        add(tmp_path, "tuned", *MNIST, "algorithm.name=fedavg")
        add(tmp_path, "frozen", *MNIST, FROZEN, accuracies=(0.99,))
        assert targets(groups(tmp_path)) is None

    def test_other_data_has_no_aims(self, tmp_path: Path) -> None:
        add(tmp_path, "own", "data.dataset=digits")
        assert targets(groups(tmp_path)) is None

    def test_every_partition_of_the_rows_has_its_aims(self) -> None:
        assert sum(len(target.splits) * len(target.needed) for target in TARGETS) == 3 * 4 + 3 * 3 + 4 * 3


class TestTuning:
    def tried(self, path: Path, name: str, rate: float, values: tuple[float, ...], *more: str) -> None:
        settings = [*MNIST, "algorithm.name=fedavg", f"name={name}", f"training.rate={rate}", *more]
        rounds = [{"score": 0.99, "validation": value} for value in values]
        known_run(path / name, [*settings, f"federation.rounds={len(values)}"], rounds)

    def test_rates_are_columns_and_schedules_are_rows_and_the_edge_of_what_was_tried_is_named(
        self, tmp_path: Path
    ) -> None:
        self.tried(tmp_path, "a", 0.1, (0.1, 0.5, 0.6, 0.7))
        self.tried(tmp_path, "b", 0.2, (0.1, 0.2, 0.3, 0.4))
        self.tried(tmp_path, "c", 0.3, (0.1, 0.2, 0.3, 0.9))
        self.tried(tmp_path, "d", 0.2, (0.1, 0.5, 0.5, 0.5), "training.schedule=cosine")
        sheet = choosing.tuning(groups(tmp_path, {name: row(name, "tuning") for name in "abcd"}))
        constant, cosine = lines(sheet)
        assert (constant["schedule"], cosine["schedule"]) == ("constant", "cosine")
        assert [constant[f"rate {rate}"] for rate in (0.1, 0.2, 0.3)] == ["60.00", "30.00", "46.67"]
        assert [cosine[f"rate {rate}"] for rate in (0.1, 0.2, 0.3)] == ["–", "50.00", "–"]
        assert (constant["best"], cosine["best"]) == ("0.1 (smallest tried)", "0.2")
        assert sheet is not None
        assert "99.00" not in sheet.markdown()

    def test_a_rate_whose_runs_did_not_all_finish_is_never_the_best(self, tmp_path: Path) -> None:
        self.tried(tmp_path, "a", 0.1, (0.5, 0.5, 0.5))
        for name, rate, lengths in (("b", 0.2, (3, 1)), ("c", 0.3, (1, 2))):
            for seed, length in enumerate(lengths):
                settings = [*MNIST, "algorithm.name=fedavg", f"name={name}", f"training.rate={rate}", f"seed={seed}"]
                known_run(
                    tmp_path / f"{name}{seed}", [*settings, "federation.rounds=3"], [{"validation": 0.9}] * length
                )
        (line,) = lines(choosing.tuning(groups(tmp_path, {name: row(name, "tuning") for name in "abc"})))
        assert line["best"] == "0.1 (smallest tried)"
        assert line["rate 0.2"] == "90.00 (1 of 2 seeds)"
        assert line["rate 0.3"] == "ended in round 3"

    def test_a_long_run_is_judged_by_its_last_tenth(self, tmp_path: Path) -> None:
        self.tried(tmp_path, "a", 0.1, (*[0.0] * 90, *[0.5] * 10))
        (line,) = lines(choosing.tuning(groups(tmp_path, {"a": row("a", "tuning")})))
        assert line["rate 0.1"] == "50.00"

    @pytest.mark.parametrize("network", ["relu", "linear"])
    @pytest.mark.parametrize("split", ["iid", "nc2", "nc5"])
    def test_the_tuned_rows_have_the_rate_that_judged_best(self, network: str, split: str) -> None:
        """So that nobody chooses a rate by test data."""
        rows, results = find_rows(), Path(__file__).parents[2] / "results"
        tuned = rows[f"mnist-{network}-{split}-fedavg-tuned"].experiment().to_table()["training"]
        tried = collect(sorted(results.glob(f"tuning-mnist-{network}-{split}-*")), rows).groups
        line = next(line for line in lines(choosing.tuning(tried)) if line["schedule"] == tuned["schedule"])
        assert line["best"].split()[0] == f"{tuned['rate']:g}"

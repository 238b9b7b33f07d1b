"""The files under experiments/: every row the paper's tables and figures need, with the paper's numbers."""

from itertools import groupby
from pathlib import Path

import pytest

from ternfed.data.partitions import Classes, Iid, Natural, Unbalanced
from ternfed.draws import participants
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.paper.reproduce import Cell
from ternfed.paper.rows import PLACES, SHOWN, Row, choose_rows, find_rows, read_row
from ternfed.runs.folder import RunError
from ternfed.runs.records import is_frozen

ROWS = find_rows()
RESULTS = Path(__file__).parents[2] / "results"
FEDERATED = ("fedavg", "cmfl", "tfedavg")
BALANCES = range(10, 101, 10)

# Tables III and IV of the paper, in percent: accuracy and deviation of FedAvg, CMFL and T-FedAvg.
PAPER = {
    "mnist-linear-iid": ((90.63, 0.17), (90.91, 0.36), (91.95, 0.11)),
    "mnist-linear-nc2": ((82.61, 4.31), (81.51, 2.29), (87.29, 0.89)),
    "mnist-linear-nc5": ((89.24, 0.38), (88.30, 0.52), (90.04, 0.68)),
    "mnist-relu-iid": ((90.63, 0.17), (90.91, 0.36), (91.95, 0.11)),
    "mnist-relu-nc2": ((82.61, 4.31), (81.51, 2.29), (87.29, 0.89)),
    "mnist-relu-nc5": ((89.24, 0.38), (88.30, 0.52), (90.04, 0.68)),
    "cifar10-cnn-iid": ((85.47, 0.14), (84.23, 0.71), (84.46, 0.17)),
    "cifar10-cnn-nc2": ((None, None),) * 3,
    "cifar10-cnn-nc5": ((None, None),) * 3,
    "cifar10-resnet18-iid": ((88.34, 0.40), (87.13, 0.66), (87.87, 0.18)),
    "cifar10-resnet18-nc2": ((40.17, 5.6), (39.30, 6.1), (40.46, 4.3)),
    "cifar10-resnet18-nc5": ((71.47, 0.23), (70.26, 0.63), (76.69, 0.67)),
}
CENTRALIZED = {
    "mnist-linear": (92.25, 0.06),
    "mnist-relu": (92.25, 0.06),
    "cifar10-cnn": (85.63, 0.10),
    "cifar10-resnet18": (88.80, 0.20),
}
MNIST_CELLS = tuple(cell for cell in PAPER if cell.startswith("mnist"))
CONTROLS = {f"{cell}-{end}" for cell in MNIST_CELLS for end in ("fedavg-tuned", "tfedavg-frozen")}
CONTROLS |= {f"{cell}-tfedavg-frozen" for cell in PAPER if cell.startswith("cifar10")}
CONTROLS |= {f"mnist-relu-{split}-tfedavg-tuned-frozen" for split in ("iid", "nc2", "nc5")}
TUNED = {f"mnist-relu-{c}-tfedavg-tuned{end}" for c in ("iid", "nc2", "nc5") for end in ("", "-first", "-all")}
ENDS = ("tuned", "frozen", "first", "all")
"""What a name ends in beside its algorithm."""
WAYS = ("fedavg", "fedavg-float16", "fedpaq", "fedpaq-8-8", "eden", "tfedavg", "tfedavg-restless", "tfedavg-frozen")
"""How Shakespeare's roles are learned."""
NAMES = {
    *CONTROLS,
    *TUNED,
    *(f"{cell}-{algorithm}" for cell in PAPER for algorithm in FEDERATED),
    *(f"{model}-centralized" for model in CENTRALIZED),
    *(f"participation-{s}-{n}-{a}" for s in ("iid", "nc2") for n in (10, 30, 50, 70) for a in ("tfedavg", "fedavg")),
    *(f"balance-{balance}-{algorithm}" for balance in BALANCES for algorithm in FEDERATED),
    *(f"elapsed-{model}" for model in ("mlp", "cnn", "resnet18")),
    *(f"shakespeare-{model}-{way}" for model in ("lstm", "transformer") for way in WAYS),
    *(f"shakespeare-lstm-{end}" for end in ("fedavg-0.024", "fedpaq-0.024", "eden-0.024", "tfedavg-0.012")),
    *(
        f"shakespeare-{m}-{way}-floor-{bits}"
        for m in ("lstm", "transformer")
        for way in ("fedpaq", "eden")
        for bits in (4, 3)
    ),
}


class TestTheFiles:
    def test_there_is_one_for_every_cell_and_no_other(self) -> None:
        assert {name for name, row in ROWS.items() if not row.chooses and row.about.shows != ("frontier",)} == NAMES

    @pytest.mark.parametrize("name", ROWS)
    def test_each_is_an_experiment_that_bears_its_name(self, name: str) -> None:
        row = ROWS[name]
        experiment = row.experiment(seed=row.about.seeds - 1)
        assert experiment.name == name
        assert experiment.seed == row.about.seeds - 1
        assert row.about.title
        assert row.about.machine
        assert row.about.minutes > 0

    def test_papers_accuracies_are_the_papers(self) -> None:
        for cell, values in PAPER.items():
            for algorithm, value in zip(FEDERATED, values, strict=True):
                assert ROWS[f"{cell}-{algorithm}"].paper == (None if value == (None, None) else value)
        for model, value in CENTRALIZED.items():
            assert ROWS[f"{model}-centralized"].paper == value

    def test_papers_seconds_are_the_papers(self) -> None:
        seconds = {"mlp": (1.06, 1.62, 1.06), "cnn": (7.92, 12.48, 8.97), "resnet18": (21.74, 27.68, 38.22)}
        for name, values in seconds.items():
            assert ROWS[f"elapsed-{name}"].paper_seconds == dict(zip(FEDERATED, values, strict=True))

    def test_only_rows_of_the_papers_tables_have_a_number_of_the_paper(self) -> None:
        named = {name for name, row in ROWS.items() if row.paper is not None}
        printed = {f"{cell}-{a}" for cell, values in PAPER.items() for a in FEDERATED if values[0] != (None, None)}
        assert named == printed | {f"{model}-centralized" for model in CENTRALIZED}
        assert {name for name, row in ROWS.items() if row.paper_seconds} == {
            "elapsed-mlp", "elapsed-cnn", "elapsed-resnet18",
        }  # fmt: skip

    def test_settings_are_what_the_name_says(self) -> None:
        for row in ROWS.values():
            if row.chooses or row.about.shows in (("frontier",), ("shakespeare",)):
                continue
            own, words = row.experiment(), [word for word in row.name.split("-") if word not in ENDS]
            if row.about.kind == "run":
                assert own.algorithm.name == words[-1]
            classes = 2 if "nc2" in words else 5 if "nc5" in words else None
            if words[0] == "balance":
                assert own.data.partition == Unbalanced(int(words[1]) / 100)
            else:
                assert own.data.partition == (Iid() if classes is None else Classes(classes))
            if words[0] == "mnist":
                assert own.model.options["activation"] == ("none" if words[1] == "linear" else "relu")
            if words[0] in ("mnist", "participation", "balance"):
                assert own.data.dataset == "mnist"
                assert own.federation.rounds == 100
            if words[0] == "cifar10":
                assert (own.data.dataset, own.model.name) == ("cifar10", words[1])
            clients, share = (5, 1.0) if own.data.dataset == "cifar10" else (100, 0.1)
            if words[-1] == "centralized":
                clients, share = 1, 1.0  # who holds everything
            if words[0] == "participation":
                share = int(words[2]) / 100
            assert (own.federation.clients, own.federation.participation) == (clients, share)

    def test_shakespeares_roles_are_the_clients(self) -> None:
        rows = [row for row in ROWS.values() if "shakespeare" in row.about.shows]
        for row in rows:
            assert row.about.seeds == (1 if row.about.role == "frozen" else 3)
            own, (_, model, algorithm, *_) = row.experiment(), row.name.split("-")
            assert (own.model.name, own.algorithm.name) == (f"char{model}", algorithm)
            assert (own.federation.clients, own.data.partition, own.task.name) == (425, Natural(), "language")
            assert len(participants(0, 1, own.federation.clients, own.federation.participation)) == 10

    def test_algorithms_of_one_cell_differ_in_the_algorithm_alone(self) -> None:
        def cell_of(row: Row) -> str:
            return row.name.rpartition("-")[0]

        runs = [
            r for r in ROWS.values() if r.about.kind == "run" and r.name.split("-")[-1] in FEDERATED and r.about.shows
        ]
        compared = 0
        for _, rows in groupby(sorted(runs, key=cell_of), cell_of):
            tables = []
            for row in rows:
                table = row.experiment().to_table()
                del table["algorithm"], table["name"]
                shows = set(row.about.shows) - {"frontier"}  # CMFL has no point there
                if not shows:
                    del table["training"]["rate"]  # a point of the frontier has the best of its own search
                tables.append((table, row.about.seeds, shows, row.about.device))
            assert all(table == tables[0] for table in tables)
            compared += len(tables) - 1
        assert compared >= 2 * len(PAPER)

    def test_a_point_of_the_frontier_has_three_seeds_and_others_to_be_compared_with(self) -> None:
        points = [row for row in ROWS.values() if "frontier" in row.about.shows and row.about.role != "frozen"]
        by_cell: dict[str, list[Row]] = {}
        for row in points:
            assert row.about.seeds >= 3, row.name
            table = row.experiment().to_table()
            del table["data"]["hold_out"], table["model"]["ternary"]
            federation = {key: table["federation"][key] for key in ("clients", "participation", "rounds")}
            cell = str((table["data"], table["model"], federation, table["training"]["epochs"]))
            by_cell.setdefault(cell, []).append(row)
        for rows in by_cell.values():
            assert {"fedavg", "tfedavg"} <= {row.experiment().algorithm.name for row in rows}

    def test_a_control_differs_from_its_row_in_what_makes_it_one(self) -> None:
        for name in CONTROLS:
            row = ROWS[name]
            assert row.paper is None  # the paper has no such row
            cell, _, end = name.rpartition("-")
            assert row.about.role == end
            assert row.about.shows[0] == ROWS[cell].about.shows[0]
            own, other = row.experiment(), ROWS[cell].experiment()
            allowed = {"name", "training.rate", *({"training.schedule"} if end == "tuned" else ())}
            differing = {key for key, _, _ in own.differences(other)}
            assert {key for key in differing if end == "tuned" or not key.startswith("algorithm.")} <= allowed
            assert is_frozen(own.to_table()["algorithm"]) == (end == "frozen")

    def test_every_table_and_figure_has_rows(self) -> None:
        assert set(SHOWN) == {name for row in ROWS.values() for name in row.about.shows}

    def test_rows_are_in_the_order_of_their_numbers(self) -> None:
        balances = [int(name.split("-")[1]) for name in ROWS if name.startswith("balance-")]
        assert balances == sorted(balances)


class TestChoosing:
    def test_by_name_pattern_table_and_all(self) -> None:
        def names(*asked: str) -> list[str]:
            return [row.name for row in choose_rows(ROWS, asked)]

        assert names("elapsed-mlp") == ["elapsed-mlp"]
        assert names("participation-nc2-30-*") == [f"participation-nc2-30-{a}" for a in ("fedavg", "tfedavg")]
        assert set(names("elapsed")) == {"elapsed-mlp", "elapsed-cnn", "elapsed-resnet18"}
        assert names("all") == list(ROWS)

    def test_a_row_named_twice_is_there_once(self) -> None:
        assert [row.name for row in choose_rows(ROWS, ["elapsed-mlp", "elapsed-m*", "elapsed-mlp"])] == ["elapsed-mlp"]

    @pytest.mark.parametrize(
        ("asked", "answer"), [("iidd", "did you mean iid?"), ("mnist-*-nope", "--list"), ("", "--list")]
    )
    def test_a_name_of_nothing_is_an_error_that_helps(self, asked: str, answer: str) -> None:
        with pytest.raises(ExperimentError) as error:
            choose_rows(ROWS, ["all", asked])
        assert answer in str(error.value)


class TestWrongFiles:
    GOOD = 'title = "a"\nshows = ["iid"]\nseeds = 1\nminutes = 1\nmachine = "m"\n'

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("", "has no table [reproduce]"),
            ("[reproduce]\n" + GOOD.replace("iid", "nope"), "reproduce.shows"),
            ("[reproduce]\n" + GOOD.replace("seeds = 1", "seeds = 0"), "reproduce.seeds = 0"),
            ("[reproduce]\n" + GOOD + "repetitions = 0\n", "reproduce.repetitions = 0"),
            ("[reproduce]\n" + GOOD + 'role = "best"\n', 'reproduce.role = "best"'),
            ("[reproduce]\n" + GOOD + "seed = 3\n", "did you mean reproduce.seeds"),
            ("[reproduce]\n" + GOOD + "paper_deviation = 0.2\n", "is called reproduce.paper_std now"),
            ("[reproduce]\n" + GOOD.replace('title = "a"\n', ""), "title"),
            ("[reproduce", "is no TOML"),
        ],
    )
    def test_are_one_sentence_that_names_the_file(self, tmp_path: Path, text: str, sentence: str) -> None:
        file = tmp_path / "mine.toml"
        file.write_text(text)
        with pytest.raises(ExperimentError) as error:
            read_row(file)
        assert sentence in str(error.value)
        assert str(file) in str(error.value)

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ExperimentError, match="nowhere"):
            find_rows((tmp_path / "nowhere",))


def test_a_rows_file_is_an_experiment_that_run_takes_too() -> None:
    path = PLACES[0] / "mnist-relu-nc2-cmfl.toml"
    assert Experiment.from_file(path, ["name=mnist-relu-nc2-cmfl"]) == read_row(path).experiment()


def test_every_committed_run_is_a_run_of_its_row() -> None:
    """Whoever changes a default or a row must run again, pin, or remove what was made with the old one."""
    wrong = []
    for row in ROWS.values():
        for seed in {0, row.about.seeds - 1}:
            try:
                Cell(row, seed, RESULTS).standing()
            except RunError as error:
                wrong.append(str(error))
    assert not wrong

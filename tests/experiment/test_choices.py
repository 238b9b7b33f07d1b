"""Partition, schedule and optimizer are one of several values each, and TOML files say so in flat keys."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ternfed.algorithms.optimizers import Adam, Sgd
from ternfed.data.partitions import Classes, Dirichlet, Iid, Unbalanced
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.experiment.schedules import Constant, Cosine, Exponential, Schedule
from ternfed.experiment.settings import choices, read, write

ROOT = Path(__file__).parents[2]
ROWS = sorted((ROOT / "experiments").glob("*.toml"))
RUNS = sorted((ROOT / "results").glob("*/seed-0/config.toml"))


# What TOML has for each


@pytest.mark.parametrize(
    ("section", "key", "value", "table"),
    [
        ("data", "partition", Iid(), {"partition": "iid"}),
        ("data", "partition", Classes(3), {"partition": "classes", "classes_per_client": 3}),
        ("data", "partition", Unbalanced(0.25), {"partition": "unbalanced", "balance": 0.25}),
        ("data", "partition", Dirichlet(2.0), {"partition": "dirichlet", "alpha": 2.0}),
        ("training", "schedule", Constant(), {"schedule": "constant"}),
        ("training", "schedule", Exponential(0.5, 3), {"schedule": "exponential", "decay": 0.5, "decay_every": 3}),
        ("training", "schedule", Cosine(), {"schedule": "cosine"}),
        ("training", "optimizer", Sgd(momentum=0.5), {"optimizer": "sgd", "momentum": 0.5}),
        ("training", "optimizer", Adam(), {"optimizer": "adam"}),
    ],
)
def test_a_choice_is_a_word_and_what_belongs_to_it_stands_beside_it(
    section: str, key: str, value: object, table: dict[str, object]
) -> None:
    experiment = Experiment.from_table({section: table})
    assert getattr(getattr(experiment, section), key) == value
    written = experiment.to_table()[section]
    assert {name: written[name] for name in table} == table
    belonging = {name for words in choices(type(getattr(experiment, section)))[key].values() for name in words}
    assert belonging & set(written) == set(table) - {key}


def test_a_choice_made_in_python_is_saved_and_comes_back() -> None:
    made = Experiment.from_toml("")
    changed = replace(made, data=replace(made.data, partition=Dirichlet(0.1)))
    assert Experiment.from_toml(changed.to_toml()) == changed
    assert ("data.alpha", None, 0.1) in list(made.differences(changed))


def test_a_partition_chosen_in_python_is_checked_with_the_rest_of_the_experiment() -> None:
    made = Experiment.from_toml("", ["federation.clients=2"])
    with pytest.raises(ExperimentError, match=r"^data\.balance = 0\.25: 0\.5 to 1 is allowed with clients = 2$"):
        replace(made, data=replace(made.data, partition=Unbalanced(0.25)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Exponential(decay=0.0), r"^decay = 0\.0: above 0 and at most 1 is allowed$"),
        (lambda: Exponential(every=0), r"^decay_every = 0: a whole number of at least 1 is allowed$"),
        (lambda: Sgd(momentum=1.0), r"^momentum = 1\.0: 0 to below 1 is allowed$"),
    ],
)
def test_an_impossible_value_cannot_be_made_in_python_either(make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=sentence):
        make()


@dataclass(frozen=True)
class Own:
    """Settings of somebody's own algorithm, with a choice among them."""

    schedule: Constant | Exponential = Exponential()  # noqa: RUF009 (it is frozen)
    share: float = 0.5


def test_any_dataclass_of_settings_may_hold_a_choice() -> None:
    assert read(Own, {}, "algorithm") == Own()
    table = {"schedule": "exponential", "share": 0.1, "decay": 0.9, "decay_every": 2}
    assert read(Own, table, "algorithm") == Own(Exponential(0.9, 2), 0.1)
    assert write(Own(Exponential(0.9, 2), 0.1)) == table
    with pytest.raises(ExperimentError, match=r'^algorithm\.schedule = "linear": "constant" or "exponential" is allo'):
        read(Own, {"schedule": "linear"}, "algorithm")
    with pytest.raises(ExperimentError, match=r"^algorithm\.decay = 0\.9: no such setting"):
        read(Own, {"schedule": "constant", "decay": 0.9}, "algorithm")


def test_the_page_has_every_value_with_its_defaults() -> None:
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    for value in (Iid(), Classes(), Unbalanced(), Dirichlet(), Constant(), Exponential(), Cosine(), Sgd(), Adam()):
        assert f"`{value!r}`" in page


# What the values tell


@pytest.mark.parametrize("schedule", [Constant(), Exponential(), Cosine()])
def test_a_schedule_says_whether_its_rates_depend_on_the_number_of_rounds(schedule: Schedule) -> None:
    shorter, longer = ([schedule.rate_at(0.1, round, rounds) for round in range(1, 21)] for rounds in (20, 40))
    assert (schedule.depends_on_rounds is not None) == (shorter != longer)


# Files that are there already


def test_there_are_files_to_read() -> None:
    assert len(ROWS) > 100
    assert len(RUNS) > 100


@pytest.mark.parametrize("path", ROWS, ids=lambda path: path.stem)
def test_every_row_is_read_and_its_table_gives_the_same_experiment(path: Path) -> None:
    experiment = Experiment.from_file(path)
    assert Experiment.from_table(experiment.to_table()) == experiment


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parts[-3])
def test_every_committed_run_is_read_and_still_says_what_its_file_says(path: Path) -> None:
    experiment = Experiment.from_file(path)
    whole = experiment.to_table()
    assert Experiment.from_table(whole) == experiment
    for section, given in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if isinstance(given, dict):  # settings that came later may stand between
            assert [(key, value) for key, value in whole[section].items() if key in given] == list(given.items())
        else:
            assert whole[section] == given

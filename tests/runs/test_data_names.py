"""A data set's own name: kept in the run folder, read with suspicion, and used only where it tells data sets apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from run_folders import known_run
from ternfed.files import MOST_SHOWN
from ternfed.runs.folder import read_run
from ternfed.runs.overview import overviews
from ternfed.runs.partition import FILE, Partition, partition_line, read_partition
from ternfed.runs.several import DataSetOf, data_names

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


class TestTheFile:
    def test_says_who_holds_what_and_what_it_is_called(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_bytes(partition_line([[3, 0], [0, 4]], "wards: 2019, ä"))
        assert read_partition(tmp_path) == ([[3, 0], [0, 4]], "wards: 2019, ä")

    def test_of_a_network_has_the_name_alone(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_bytes(partition_line(None, "wards"))
        assert json.loads((tmp_path / FILE).read_bytes()) == {"data_name": "wards"}
        assert read_partition(tmp_path) == (None, "wards")

    def test_of_an_older_version_has_no_name(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_text('{"classes": [[3, 0], [0, 4]]}\n')
        assert read_partition(tmp_path) == ([[3, 0], [0, 4]], None)
        assert read_partition(tmp_path / "nowhere") == Partition()

    @given(name=st.text(st.characters(exclude_categories=()), max_size=300))
    def test_keeps_any_name_that_a_function_gives_so_that_it_can_be_shown(
        self, name: str, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("run")
        (folder / FILE).write_bytes(partition_line([[1]], name))
        read = read_partition(folder)
        assert read.classes == [[1]]
        if name.strip() and name.isprintable() and len(name) <= MOST_SHOWN:
            assert read.data_name == name
        else:
            assert bool(read.data_name) == bool(name.strip() or not name.isprintable())

    @given(value=JSON)
    def test_gives_a_short_line_of_letters_or_nothing_whatever_it_holds(
        self, value: object, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        folder = tmp_path_factory.mktemp("run")
        (folder / FILE).write_text(json.dumps({"classes": [[1]], "data_name": value}))
        name = read_partition(folder).data_name
        assert name is None or (name == value and name.isprintable() and 0 < len(name) <= MOST_SHOWN + 1)


def names(*sets: tuple[str, str | None]) -> list[str | None]:
    return data_names([DataSetOf(*each) for each in sets])


class TestTheName:
    def test_of_a_users_own_data_set_is_what_it_calls_itself(self) -> None:
        assert names(("own:load", "wards"), ("own:other", "roads")) == ["wards", "roads"]

    def test_of_the_rest_is_in_the_setting(self) -> None:
        assert (
            names(("mnist", "mnist"), ("flwrlabs/femnist", "x"), ("text:./a", "text:a"), ("o:f", "o:f")) == [None] * 4
        )

    @pytest.mark.parametrize("name", ["MNIST", "cifar10", "CIFAR-10", "Digits"])
    def test_of_a_data_set_of_ternfed_is_for_that_alone(self, name: str) -> None:
        assert names(("own:load", name)) == [None]

    def test_that_two_functions_share_tells_nothing(self) -> None:
        assert names(("a:load", "wards"), ("b:load", "Wards"), ("c:load", "roads")) == [None, None, "roads"]

    def test_is_also_that_of_runs_of_the_same_function_whose_folders_do_not_tell_it(self) -> None:
        assert names(("own:load", None), ("own:load", "wards")) == ["wards", "wards"]
        assert names(("own:load", None), ("own:load", "a"), ("own:load", "b")) == [None, "a", "b"]


def test_a_folder_whose_setting_is_no_text_is_listed_all_the_same(tmp_path: Path) -> None:
    path = known_run(tmp_path / "run", ["federation.rounds=1"], [{}])
    (path / FILE).write_bytes(partition_line(None, "wards"))
    (path / "config.toml").write_text("data = 3\n[federation]\nrounds = 1\n")
    assert [run.data for run in overviews([tmp_path])] == ["–"]


def test_the_committed_runs_have_no_name_and_are_read_as_before() -> None:
    results = Path(__file__).parents[2] / "results"
    file = next(iter(sorted(results.rglob(FILE))))
    run = read_run(file.parent)
    assert run.data_name is None
    assert run.partition == json.loads(file.read_bytes())["classes"]

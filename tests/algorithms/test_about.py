"""What an algorithm tells others about itself."""

import sys

import pytest

from ternfed.algorithms import fedavg, tfedavg
from ternfed.algorithms.algorithm import About
from ternfed.experiment.experiment import Experiment
from ternfed.experiment.named import about, built_in_algorithms, find_algorithm


def test_every_built_in_algorithm_has_a_label_of_its_own() -> None:
    labels = {name: found.label for name in built_in_algorithms() if (found := about(name)) is not None}
    assert labels == {
        "centralized": "Centralized", "cmfl": "CMFL", "eden": "EDEN", "fedavg": "FedAvg", "fedbat": "FedBAT",
        "fedopt": "FedOpt", "fedpaq": "FedPAQ", "fedpm": "FedPM", "fedprox": "FedProx",
        "signsgd_ef": "EF-SignSGD", "stc": "STC", "tfedavg": "T-FedAvg", "topk": "Top-k",
    }  # fmt: skip


def test_a_users_module_is_not_imported_to_ask_about_it() -> None:
    assert about("antigravity:algorithm") is None
    assert "antigravity" not in sys.modules
    assert about("no_such_algorithm") is None


def test_an_algorithm_of_ones_own_need_not_say_anything() -> None:
    found = find_algorithm("own_parts:algorithm").about
    assert (found.label, found.trains_ternary) == ("algorithm", True)
    assert found.depends_on_rounds(find_algorithm("own_parts:algorithm").settings()) is None


@pytest.mark.parametrize(
    ("settings", "depends"), [(tfedavg.Settings(), False), (tfedavg.Settings(full_at=(0.5,)), True)]
)
def test_broadcasts_at_shares_of_the_rounds_depend_on_their_number(settings: tfedavg.Settings, depends: bool) -> None:
    assert (tfedavg.ABOUT.depends_on_rounds(settings) is not None) is depends
    assert fedavg.ABOUT.depends_on_rounds(fedavg.Settings()) is None


@pytest.mark.parametrize(("name", "counts"), [("fedavg", False), ("stc", False), ("fedopt", False), ("tfedavg", True)])
def test_which_layers_are_ternary_is_a_difference_only_where_some_are_trained(name: str, counts: bool) -> None:
    first, second = (
        Experiment.from_toml("", [f"algorithm.name={name}", f"model.ternary={layers}"]) for layers in ("inner", "all")
    )
    assert [key for key, *_ in first.differences(second)] == (["model.ternary"] if counts else [])


def test_a_label_is_all_that_is_needed() -> None:
    assert About("Mine").trains_ternary

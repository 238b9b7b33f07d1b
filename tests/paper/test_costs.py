"""Counts of the paper's networks come from the networks themselves, and nothing of the user's is imported for them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from ternfed import models
from ternfed.experiment.experiment import Experiment
from ternfed.paper.costs import Count, count
from ternfed.paper.numbers import ALGORITHMS, CLIENTS_PER_ROUND, CNN, MEGABIT, MEGABITS, MLP, RESNET18, ROUNDS


def settings(dataset: str, model: str, *more: str) -> dict[str, Any]:
    return Experiment.from_toml("", [f"data.dataset={dataset}", f"model.name={model}", *more]).to_table()


@pytest.mark.parametrize("case", [MLP, CNN, RESNET18], ids=lambda case: case[1])
def test_the_table_in_the_models_docstring_is_what_is_counted(case: tuple[str, str]) -> None:
    found = re.search(rf"`{case[1]}\(\)`\s*\|\s*([\d,]+) \|\s*([\d,]+) \|", models.__doc__ or "")
    assert found is not None
    written = [int(number.replace(",", "")) for number in found.groups()]
    counted = count(settings(*case, "model.ternary=inner"))
    assert counted is not None
    assert [counted.all, counted.ternary] == written


def test_ternary_layers_are_those_that_the_settings_choose() -> None:
    usual, inner, every = (
        count(settings(*CNN, *more)) for more in ([], ["model.ternary=inner"], ["model.ternary=all"])
    )
    assert usual is not None
    assert inner is not None
    assert every is not None
    assert usual.ternary == 976_896  # convolutions 2 to 5, as the paper's 2201.84 Mb say
    assert usual.ternary < inner.ternary < every.ternary < every.all


def test_the_first_layer_can_be_left_out() -> None:
    assert Count(all=100, ternary=60, first=30).bits(ternary=True, first=False) == 2 * 60 + 32 * 10


def test_another_data_set_gives_another_first_layer() -> None:
    assert count(settings("digits", "mlp")) == Count(64 * 30 + 30 * 20 + 20 * 10, 600, 64 * 30)


def test_counting_draws_no_random_number() -> None:
    before = torch.random.get_rng_state()
    count(settings(*CNN))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("model", "name", "no_such_module:network"),
        ("data", "dataset", "no_such_module:data"),
        ("model", "hidden", "many"),
        ("model", "option_of_another_version", 3),
        ("model", "ternary", ["no_such_layer"]),
    ],
)
def test_what_is_not_known_is_not_counted(section: str, key: str, value: object) -> None:
    own = settings(*MLP)
    own[section][key] = value
    assert count(own) is None


def test_fedavgs_uploads_are_32_bits_per_parameter_in_the_papers_table() -> None:
    """But for the MLP's, which leaves out its first layer; and ResNet18*'s is 0.1% off what is described."""
    counted = count(settings(*CNN))
    assert counted is not None
    exchanges = ROUNDS * CLIENTS_PER_ROUND["cifar10"]
    assert round(exchanges * counted.bits(ternary=False) / MEGABIT, 2) == MEGABITS[CNN]["fedavg"].up


def test_the_paper_has_a_number_for_each_of_its_algorithms() -> None:
    for printed in MEGABITS.values():
        assert tuple(printed) == ALGORITHMS

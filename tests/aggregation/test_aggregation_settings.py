"""The aggregation rule as a setting, from the command line to the round; and what a liar does to each rule."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ternfed.aggregation import mean
from ternfed.algorithms.algorithm import Network, Training
from ternfed.cli.app import app
from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.experiment.named import built_in_aggregations, find_aggregation
from ternfed.round import federation as federation_module
from ternfed.round.federation import Federation, open_federation
from ternfed.training.choose import Trainer
from ternfed.training.work import Trained, TrainingData, Work

SMALL = ["federation.clients=5", "federation.participation=1", "federation.rounds=6", "training.epochs=2"]


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


def federation(digits: DataSet, *settings: str) -> Federation:
    return open_federation(Experiment.from_toml("", [*SMALL, *settings]), digits)


def test_every_file_of_the_room_with_a_function_aggregation_is_a_rule() -> None:
    assert built_in_aggregations() == ("clipped_mean", "krum", "mean", "median", "trimmed_mean")
    assert [find_aggregation(name).name for name in built_in_aggregations()] == list(built_in_aggregations())


def test_the_algorithms_own_rule_is_the_default_and_is_saved() -> None:
    experiment = Experiment.from_toml("")
    assert experiment.federation.aggregate == experiment.to_table()["federation"]["aggregate"] == "own"
    assert "trim" not in experiment.to_table()["federation"]


def test_the_share_to_cut_off_belongs_to_the_trimmed_mean(digits: DataSet) -> None:
    trimmed = Experiment.from_toml("", ["federation.aggregate=trimmed_mean"])
    assert trimmed.federation.trim == 0.2
    assert Experiment.from_toml(trimmed.to_toml()) == trimmed
    assert trimmed.with_settings(["federation.trim=0.4"]).federation.trim == 0.4
    assert trimmed.with_settings(["federation.aggregate=median"]).federation.trim is None
    with pytest.raises(ExperimentError, match=r'federation.trim = 0.3: has no meaning with aggregate = "own", only'):
        Experiment.from_toml("", ["federation.trim=0.3"])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ["federation.aggregate=bulyan"],
            r'^federation.aggregate = "bulyan": "own", "clipped_mean", "krum", "mean", "median", "trimmed_mean" or ',
        ),
        (
            ["federation.aggregate=trimmed_mean", "federation.trim=0.5"],
            r"^federation.trim = 0.5: 0 to below 0.5 is allowed$",
        ),
        (["federation.aggregate=trimmed_mean", "federation.trim=-0.1"], r"^federation.trim = -0.1: 0 to below 0.5"),
    ],
)
def test_what_cannot_be_is_one_sentence(settings: list[str], sentence: str) -> None:
    with pytest.raises(ExperimentError, match=sentence):
        Experiment.from_toml("", settings)


def heaviest() -> object:
    """A rule of a user's own."""
    return mean.aggregation()


def no_rule() -> str:
    return "mean"


def test_a_rule_of_ones_own_is_found_by_module_and_function(digits: DataSet) -> None:
    own = sys.modules[__name__].__name__
    made = federation(digits, "algorithm.name=fedavg", f"federation.aggregate={own}:heaviest")
    assert made.algorithm.aggregate.name == "mean"
    with pytest.raises(ExperimentError, match=r"no_rule\": returned str; an Aggregation is needed"):
        federation(digits, f"federation.aggregate={own}:no_rule")
    with pytest.raises(ExperimentError, match="has no function nowhere"):
        federation(digits, f"federation.aggregate={own}:nowhere")


@pytest.mark.parametrize("algorithm", ["fedavg", "tfedavg"])
@pytest.mark.parametrize("rule", ["median", "trimmed_mean"])
def test_runs_from_the_command_line(algorithm: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = [*SMALL, "federation.rounds=2", f"federation.aggregate={rule}"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(app, ["run", "--algorithm", algorithm, *arguments, "--json"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert value["settings"]["federation"]["aggregate"] == rule
    assert value["rounds"] == 2


@pytest.mark.parametrize("algorithm", ["fedavg", "tfedavg"])
def test_a_liar_among_five_ruins_the_mean_and_not_the_robust_rules(
    digits: DataSet, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 3 sends its model turned round and five times too large."""
    honest = federation_module.trainer_for

    def with_a_liar(network: Network, training: Training, feed: TrainingData) -> Trainer:
        real = honest(network, training, feed)

        def train(works: Sequence[Work]) -> Iterator[Trained]:
            for index, trained in enumerate(real.train(works)):
                if index == 3:
                    for group, factor in ((trained.local.weights, -5.0), (trained.local.factors, 5.0)):
                        for tensor in group.values():
                            tensor.mul_(factor)
                yield trained

        return Trainer(real.way, train)

    def accuracy(rule: str) -> float:
        made = federation(digits, f"algorithm.name={algorithm}", f"federation.aggregate={rule}")
        return list(simulate.play(made))[-1][1].score

    among_the_honest = accuracy("mean")
    monkeypatch.setattr(federation_module, "trainer_for", with_a_liar)
    lied_to = {rule: accuracy(rule) for rule in ("mean", "median", "trimmed_mean")}
    assert among_the_honest > 0.8
    assert lied_to["mean"] < 0.4
    assert lied_to["median"] > among_the_honest - 0.1
    assert lied_to["trimmed_mean"] > among_the_honest - 0.1


def test_an_upload_that_cannot_be_averaged_is_dropped_and_named(
    digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = federation(digits, "algorithm.name=fedavg", "federation.rounds=1")
    real = simulate.collect_each

    def sabotaged(algorithm, many, broadcast):  # type: ignore[no-untyped-def]
        messages = real(algorithm, many, broadcast)
        if not made_up:
            made_up.append(1)
            messages[0].numbers["samples"] = 2.5
        return messages

    made_up: list[int] = []
    monkeypatch.setattr(simulate, "collect_each", sabotaged)
    ((state, record),) = simulate.play(made)
    assert record.dropped == ("client 0: 2.5 samples: a whole number from 1 to 10000000 is accepted",)
    assert all(torch.isfinite(tensor).all() for tensor in state.server.weights.values())

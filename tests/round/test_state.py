"""The state between two rounds as a checkpoint, and checkpoints that do not fit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ternfed.algorithms.algorithm import Strategy
from ternfed.algorithms.memory import tensors_of
from ternfed.cli.app import app
from ternfed.data.sets import load
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment
from ternfed.round import state as states
from ternfed.round.federation import Federation, open_federation
from ternfed.round.state import State, pack, unpack
from ternfed.runs.folder import RunError

SMALL = ["federation.rounds=2", "federation.clients=4", "training.epochs=1"]


def federation(*settings: str) -> Federation:
    return open_federation(Experiment.from_toml("", [*SMALL, *settings]), load("digits"))


def after_one_round(made: Federation) -> State:
    return next(iter(simulate.play(made)))[0]


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert list(first) == list(second)
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize(
    "settings",
    [
        ["algorithm.name=tfedavg", "algorithm.keep_latents=true", "algorithm.judging=clients"],
        ["algorithm.name=stc"],
        ["algorithm.name=cmfl"],
        ["algorithm.name=fedopt"],
        ["algorithm.name=fedavg"],
        ["algorithm.name=fedpaq"],
        ["algorithm.name=eden"],
    ],
    ids=lambda settings: settings[0],
)
def test_a_state_comes_back_with_its_types_and_every_bit(settings: list[str]) -> None:
    made = federation(*settings)
    state = after_one_round(made)
    again = unpack(made.algorithm, state.round, *pack(state))
    assert again.server.strategy is state.server.strategy
    assert type(again.server.memory) is made.algorithm.server_memory
    assert_same(tensors_of(again.server.memory), tensors_of(state.server.memory))
    remembering = {client: memory for client, memory in state.memories.items() if tensors_of(memory)}
    assert set(again.memories) == set(remembering)
    for client, memory in remembering.items():
        assert type(again.memories[client]) is made.algorithm.client_memory
        assert_same(tensors_of(again.memories[client]), tensors_of(memory))
    assert_same(again.server.weights, state.server.weights)
    assert (again.holders, again.broadcasts) == (state.holders, state.broadcasts)


def test_only_a_ternary_algorithm_has_a_strategy() -> None:
    assert after_one_round(federation("algorithm.name=tfedavg")).server.strategy in Strategy
    assert after_one_round(federation("algorithm.name=fedavg")).server.strategy is None


@pytest.fixture(scope="module")
def made() -> Federation:
    return federation("algorithm.name=fedopt")


@pytest.fixture(scope="module")
def state(made: Federation) -> State:
    return after_one_round(made)


class TestMisfits:
    def test_of_the_layout_before(self, made: Federation, state: State) -> None:
        tensors, _ = pack(state)
        old = {"holders": [], "server": {}, "numbers": None, "best": [0.5, 1]}
        with pytest.raises(RunError, match=r"round 1 does not fit \(its layout is 1, .* reads 3\); start"):
            unpack(made.algorithm, 1, tensors, old)

    def test_with_a_memory_of_another_algorithm(self, state: State) -> None:
        other = federation("algorithm.name=fedavg").algorithm
        with pytest.raises(RunError, match=r"Nothing has no place for first/linear1.weight"):
            unpack(other, 1, *pack(state))

    def test_of_another_model(self, state: State) -> None:
        larger = federation("algorithm.name=fedopt", "model.hidden=[40, 20]").algorithm
        with pytest.raises(RunError, match=r"linear1.weight has the shape \(30, 64\), the model has \(40, 64\)"):
            unpack(larger, 1, *pack(state))

    def test_with_a_tensor_missing(self, made: Federation, state: State) -> None:
        tensors, facts = pack(state)
        tensors = {name: tensor for name, tensor in tensors.items() if name != "server/weights/linear1.weight"}
        with pytest.raises(RunError, match=r"'linear1.weight' is missing"):
            unpack(made.algorithm, 1, tensors, facts)

    @pytest.mark.parametrize("facts", [{"strategy": "III"}, {"holders": 3}, {"best": None}])
    def test_with_facts_that_cannot_be(self, made: Federation, state: State, facts: dict[str, object]) -> None:
        tensors, known = pack(state)
        with pytest.raises(RunError, match="does not fit"):
            unpack(made.algorithm, 1, tensors, {**known, **facts})


def test_resuming_a_run_of_another_layout_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = ["run", "--out", "mine", "--rounds", "1", *(part for each in SMALL[1:] for part in ("--set", each))]
    monkeypatch.setattr(states, "LAYOUT", 1)
    assert CliRunner().invoke(app, run).exit_code == 0
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "--out", "mine", "--resume", "--rounds", "2"])
    assert result.exit_code != 0
    assert "Traceback" not in result.output
    assert "does not fit (its layout is 1" in " ".join(result.output.split())


def test_states_are_compared_as_objects() -> None:
    state = federation("algorithm.name=fedavg").open()
    assert state == state
    assert state != replace(state)

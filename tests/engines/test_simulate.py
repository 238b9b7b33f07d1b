"""The engine: rounds that repeat exactly, whatever the batching, and go on from any state as if never interrupted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import ternfed
from ternfed.algorithms.algorithm import Network, Training
from ternfed.data.sets import from_arrays, load, normalise
from ternfed.data.values import DataSet
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.round import crew
from ternfed.round import federation as federation_module
from ternfed.round.exchange import Broadcasts, collect
from ternfed.round.federation import Federation, answer, open_federation
from ternfed.round.state import State, pack, unpack
from ternfed.runs.folder import Round, RunFolder, read_run
from ternfed.training.choose import Trainer
from ternfed.training.plain import train_one
from ternfed.training.work import Trained, TrainingData, Work
from ternfed.wire import same

ALGORITHMS = [
    "fedavg", "tfedavg", "cmfl", "stc", "topk", "signsgd_ef", "centralized", "fedprox", "fedopt", "fedpaq", "eden",
    "fedbat", "fedpm",
]  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


def federation(digits: DataSet, *settings: str) -> Federation:
    small = ["federation.rounds=3", "training.epochs=1"]
    return open_federation(Experiment.from_toml("", [*small, *settings]), digits)


def rounds(federation: Federation, state: State | None = None) -> tuple[State, list[Round]]:
    played = list(simulate.play(federation, state))
    return played[-1][0], [replace(record, seconds={}) for _, record in played]


def one_at_a_time(network: Network, training: Training, feed: TrainingData) -> Trainer:
    return Trainer("plain", lambda works: (train_one(network, training, feed, work) for work in works))


def assert_same_model(first: State, second: State) -> None:
    assert set(first.server.weights) == set(second.server.weights)
    for name, tensor in first.server.weights.items():
        assert torch.equal(tensor, second.server.weights[name]), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_gives_the_same_bits(digits: DataSet, algorithm: str) -> None:
    first, second = (rounds(federation(digits, f"algorithm.name={algorithm}")) for _ in range(2))
    assert first[1] == second[1]
    assert_same_model(first[0], second[0])


def test_another_seed_gives_another_run(digits: DataSet) -> None:
    first, second = (rounds(federation(digits, f"seed={seed}"))[1] for seed in (0, 1))
    assert [r.score for r in first] != [r.score for r in second]


@pytest.mark.parametrize("algorithm", ["fedavg", "tfedavg"])
def test_the_result_does_not_depend_on_how_many_clients_are_trained_at_once(
    digits: DataSet, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = rounds(federation(digits, f"algorithm.name={algorithm}"))
    monkeypatch.setattr(crew, "CHUNK", 3)
    apart = rounds(federation(digits, f"algorithm.name={algorithm}"))
    assert together[1] == apart[1]
    assert_same_model(together[0], apart[0])


@pytest.mark.parametrize("settings", [["fedavg"], ["tfedavg"], ["tfedavg", "algorithm.preset=paper"]])
def test_the_fast_path_agrees_with_one_client_at_a_time(
    digits: DataSet, settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round in float32: the order of sums differs, so weights agree to rounding; no trit may."""
    options = [f"algorithm.name={settings[0]}", *settings[1:], "federation.rounds=1"]
    fast, _ = rounds(federation(digits, *options))
    monkeypatch.setattr(federation_module, "trainer_for", one_at_a_time)
    slow, _ = rounds(federation(digits, *options))
    for name, tensor in fast.server.weights.items():
        torch.testing.assert_close(tensor, slow.server.weights[name], rtol=1e-4, atol=1e-5)
    for name, ternary in fast.server.sent.items():
        assert torch.equal(ternary.codes, slow.server.sent[name].codes)


@pytest.mark.parametrize(
    "settings",
    [["fedavg"], ["tfedavg", "algorithm.keep_latents=true"], ["cmfl"], ["stc"], ["centralized"], ["fedopt"],
     ["fedpaq"], ["eden"], ["fedbat"], ["fedpm", "algorithm.reset=2"]],
)  # fmt: skip
def test_a_run_that_goes_on_from_a_saved_state_ends_as_one_never_interrupted(
    digits: DataSet, settings: list[str]
) -> None:
    made = federation(digits, f"algorithm.name={settings[0]}", *settings[1:], "data.classes_per_client=2")
    whole, records = rounds(made)
    state, _ = next(iter(simulate.play(made)))
    restored = unpack(made.algorithm, state.round, *pack(state))
    resumed, rest = rounds(made, restored)
    assert rest == records[1:]
    assert_same_model(whole, resumed)


TRITS_UP = ("algorithm.name=tfedavg", "algorithm.upload=trits")


class TestRecords:
    def test_bytes_are_lengths_and_compare_with_float32(self, digits: DataSet) -> None:
        made = federation(digits, "algorithm.name=fedavg", "federation.participation=0.25")
        _, (first, *_) = rounds(made)
        model = 4 * (64 * 30 + 30 * 20 + 20 * 10)
        assert first.clients == 5
        assert first.bytes_up_fp32 == first.bytes_down_fp32 == 5 * model
        # Lossless coding of floats gains little: their mantissas are noise.
        assert 0.7 * 5 * model < first.bytes_up < 1.01 * 5 * model

    def test_trits_cost_less_given_a_broadcast_that_both_sides_hold(self, digits: DataSet) -> None:
        """The same messages are shorter by most of their trits where sender and receiver hold the broadcast."""
        made = federation(digits, *TRITS_UP, "model.hidden=[64, 64, 64]", "federation.participation=1.0")
        algorithm, (state, _) = made.algorithm, next(iter(simulate.play(made)))
        broadcasts = Broadcasts(algorithm, state.server, 2, state.broadcasts, state.holders)
        given, alone = broadcasts.for_client(state.took_part[0]), broadcasts.given(None)
        trits = algorithm.up[0].trits
        assert len(given.data) < len(alone.data) - 0.1 * trits / 8
        site, nothing = made.site(0), replace(given.broadcast, reference=None)
        uploads = {
            held: answer(site, 2, broadcast, state.memories.get(0, {}))[0]
            for held, broadcast in ((True, given.broadcast), (False, nothing))
        }
        assert len(uploads[True]) < len(uploads[False]) - 0.1 * trits / 8
        messages = [collect(algorithm, uploads[held], b) for held, b in ((True, given.broadcast), (False, nothing))]
        assert same(*messages)
        assert same(given.broadcast.message, alone.broadcast.message)

    def test_a_round_tells_what_became_of_the_trits(self, digits: DataSet) -> None:
        _, records = rounds(federation(digits, *TRITS_UP, "federation.participation=1.0"))
        assert all(r.bits_per_weight_up is not None and r.bits_per_weight_up < 1.58 for r in records)
        assert all(r.strategy in ("I", "II") for r in records)
        assert all(r.changed is not None and 0 <= r.changed <= 1 for r in records)

    def test_the_baseline_trains_on_everything_that_the_clients_hold(self, digits: DataSet) -> None:
        made, apart = (federation(digits, f"algorithm.name={name}") for name in ("centralized", "fedavg"))
        (everything,) = made.parts
        assert sorted(everything.tolist()) == sorted(torch.cat(list(apart.parts)).tolist())
        assert [record.clients for record in rounds(made)[1]] == [1] * made.experiment.federation.rounds

    def test_bits_by_layer_add_up_to_those_of_the_stream(self, digits: DataSet) -> None:
        _, records = rounds(federation(digits, *TRITS_UP, "model.hidden=[128, 128, 128]"))
        for record in records:
            assert record.layer_bits is not None
            assert set(record.layer_bits) == {"linear2.weight", "linear3.weight"}
            mean = sum(record.layer_bits.values()) / 2  # of equal size
            # The stream has one model for all layers, and says which: a few bytes of 4 kB of trits per layer.
            assert mean <= (record.bits_per_weight_up or 0) <= mean + 0.03

    def test_the_baseline_sends_nothing(self, digits: DataSet) -> None:
        _, records = rounds(federation(digits, "algorithm.name=centralized"))
        assert {(r.bytes_up, r.bytes_down, r.bits_per_weight_up) for r in records} == {(0, 0, None)}

    def test_a_skipped_upload_costs_its_notice(self, digits: DataSet) -> None:
        options = ("algorithm.name=cmfl", "algorithm.threshold=1.0", "federation.participation=1.0")
        _, (first, second, _) = rounds(federation(digits, *options))
        assert first.skipped == 0
        assert second.skipped == second.clients == 20
        assert second.bytes_up < 20 * 64
        assert second.score == first.score

    def test_stc_sends_sparse_updates_down_to_those_who_hold_the_model(self, digits: DataSet) -> None:
        _, (first, second, _) = rounds(federation(digits, "algorithm.name=stc", "federation.participation=1.0"))
        assert second.bytes_down < 0.2 * first.bytes_down
        assert second.bytes_up < 0.05 * second.bytes_up_fp32

    def test_seconds_are_told_by_phase(self, digits: DataSet) -> None:
        _, record = next(iter(simulate.play(federation(digits))))
        assert set(record.seconds) == {"broadcast", "prepare", "train", "upload", "aggregate", "evaluate"}


class TestJudging:
    def test_clients_can_judge_instead_of_the_server(self, digits: DataSet) -> None:
        made = federation(digits, "algorithm.judging=clients", "data.hold_out=0.0", "algorithm.statistics=average")
        _, records = rounds(made)
        assert all(record.strategy in ("I", "II") for record in records)
        assert all(record.validation is None for record in records)

    def test_judging_on_the_server_without_data_there_is_refused_at_once(self, digits: DataSet) -> None:
        with pytest.raises(ExperimentError, match=r"data\.hold_out = 0: tfedavg judges"):
            federation(digits, "data.hold_out=0.0", *TRITS_UP)

    def test_a_broadcast_in_full_precision_after_a_collapse(self, digits: DataSet) -> None:
        """A server threshold that keeps next to nothing ruins the quantized model while clients still disagree."""
        server = ("algorithm.server_rule=max", "algorithm.server_factor=0.99")
        clients = ("federation.rounds=3", "training.epochs=5", "algorithm.plain_epochs=0")
        state, records = rounds(federation(digits, *TRITS_UP, *server, *clients, "algorithm.full_bits=none"))
        assert records[-1].strategy == "II"
        assert not {"linear2.weight"} & set(state.server.sent)

    def test_one_broadcast_in_full_precision_goes_out_when_the_rates_have_decayed(self, digits: DataSet) -> None:
        """A cosine is at a quarter after two thirds of the rounds."""
        options = (
            "algorithm.judging=off",
            "federation.rounds=10",
            "training.schedule=cosine",
            "algorithm.full_at_decay=0.25",
        )
        _, records = rounds(federation(digits, *TRITS_UP, *options))
        assert [record.strategy for record in records] == ["I"] * 6 + ["II"] + ["I"] * 3

    def test_broadcasts_in_full_precision_go_out_after_their_shares_of_the_rounds(self, digits: DataSet) -> None:
        options = ("algorithm.judging=off", "algorithm.full_at=[0.3, 0.65]", "federation.rounds=7")
        _, records = rounds(federation(digits, *options))
        assert [record.strategy for record in records] == ["I", "I", "II", "I", "II", "I", "I"]


class TestDivergence:
    def test_one_diverged_client_is_dropped_and_named(self, digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
        made = federation(digits, "algorithm.name=fedavg", "federation.participation=1.0", "federation.rounds=1")
        real = made.trainer.train

        def sabotaged(works: Sequence[Work]) -> Iterator[Trained]:
            for index, trained in enumerate(real(works)):
                if index == 7:
                    trained.local.weights["linear1.weight"][0, 0] = torch.nan
                yield trained

        monkeypatch.setattr(federation_module, "trainer_for", lambda *_: Trainer("plain", sabotaged))
        made = replace(made)  # whose trainer is not made yet
        state, (record,) = rounds(made)
        assert len(record.dropped) == 1
        assert record.dropped[0].startswith("client 7: linear1.weight: holds values that are not finite")
        assert record.clients == len(made.parts)
        # As over a network, where it keeps nothing of a round that it could not finish.
        assert set(state.took_part) == set(range(len(made.parts))) - {7}
        assert 7 not in state.memories
        assert all(torch.isfinite(tensor).all() for tensor in state.server.weights.values())

    def test_when_everyone_diverges_the_run_stops_with_a_sentence(self, digits: DataSet) -> None:
        made = federation(digits, "algorithm.name=fedavg", "training.rate=1e30")
        with pytest.raises(simulate.DivergedError, match=r"round 1.*lower training\.rate"):
            rounds(made)


class TestFederate:
    def test_a_model_of_your_own_ends_with_the_global_weights(self, digits: DataSet) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 32),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Linear(32, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )
        records = list(ternfed.federate(model, digits, "federation.rounds=8", "training.rate=0.1", "training.batch=16"))
        model.eval()
        inputs = normalise(digits.test.inputs, digits.mean, digits.std)
        right = (model(inputs).argmax(1) == digits.test.labels).float().mean().item()
        assert right == pytest.approx(records[-1].score, abs=1e-6)
        assert right > 0.8
        assert model[4].weight.unique().numel() <= 3  # type: ignore[operator, union-attr]

    def test_takes_arrays(self) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(200, 6, generator=generator)
        y = (x[:, 0] > 0).long()
        data = from_arrays("mine", x[:160], y[:160], x[160:], y[160:])
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
        records = list(ternfed.federate(model, data, "federation.clients=4", "federation.rounds=2"))
        assert [record.round for record in records] == [1, 2]


def test_many_clients_with_a_few_samples_each(digits: DataSet) -> None:
    made = federation(digits, "federation.clients=1000", "federation.participation=0.3", "federation.rounds=1")
    _, (record,) = rounds(made)
    assert record.clients == 300


RUN = """
import sys, time
from ternfed.engines import simulate
from ternfed.data.sets import load
from ternfed.experiment.experiment import Experiment
from ternfed.round.federation import open_federation
from ternfed.runs.folder import RunFolder

simulate.CHECKPOINT_SECONDS = 0.0
made = open_federation(Experiment.from_toml("", sys.argv[2:]), load("digits"))
with RunFolder.create(sys.argv[1], made.experiment) as folder:
    for record in simulate.record(made, folder):
        print(record.round, flush=True)
        time.sleep(0.2)
"""


def test_a_run_killed_in_the_middle_ends_with_the_same_bytes(digits: DataSet, tmp_path: Path) -> None:
    settings = ["federation.rounds=6", "algorithm.keep_latents=true", "data.classes_per_client=2"]
    made = open_federation(Experiment.from_toml("", settings), digits)
    with RunFolder.create(tmp_path / "whole", made.experiment) as folder:
        list(simulate.record(made, folder))

    victim = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "killed"), *settings], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    while "3" not in victim.stdout.readline():
        time.sleep(0.01)
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    assert len(read_run(tmp_path / "killed").rounds) < 6

    folder, _, _, saved = RunFolder.resume(tmp_path / "killed")
    with folder:
        list(simulate.record(made, folder, saved))
    for name in ("config.toml", "rounds.jsonl", "state.safetensors", "last.safetensors", "best.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name

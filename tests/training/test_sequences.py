"""Sequences of whole numbers through both networks for text: training, plain and as on a GPU, and evaluation."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from ternfed.algorithms.algorithm import Network
from ternfed.data.text import read_text, text_files
from ternfed.data.values import DataSet, Samples
from ternfed.engines.simulate import federate
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.models import charlstm, chartransformer
from ternfed.round.exchange import Broadcasts
from ternfed.round.federation import Federation, open_federation
from ternfed.task import IGNORED, LANGUAGE, TASKS
from ternfed.training import evaluation
from ternfed.training.captured import CapturedTrainer
from ternfed.training.evaluation import Evaluator
from ternfed.training.plain import train_one
from ternfed.training.work import TrainingData, Work

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@pytest.fixture(scope="module")
def roles(real_data: Path) -> DataSet:
    return read_text(text_files(real_data / "shakespeare")[:3], "roles", length=20)


def federation(roles: DataSet, name: str, *settings: str) -> Federation:
    small = {"charlstm": ["model.width=16"], "chartransformer": ["model.width=16", "model.layers=2"]}[name]
    few = ["federation.clients=3", "federation.participation=1.0", "federation.rounds=1", "data.length=20"]
    own = ["data.dataset=text:roles", f"model.name={name}", *small, *few, *settings]
    return open_federation(Experiment.from_toml("", own), roles)


def test_their_sizes_are_what_the_page_says() -> None:
    lstm, transformer = charlstm(75), chartransformer(75, (80,))
    assert (lstm.lstm.num_layers, lstm.lstm.hidden_size) == (2, 256)
    assert (len(transformer.blocks), transformer.positions.weight.shape) == (4, (80, 128))
    assert sum(p.numel() for p in lstm.parameters()) == 818_595
    assert sum(p.numel() for p in transformer.parameters()) == 821_323


@pytest.mark.parametrize("make", [charlstm, lambda vocabulary: chartransformer(vocabulary, (12,))])
def test_no_place_sees_what_comes_after_it(make: object) -> None:
    assert callable(make)
    torch.manual_seed(0)
    model: nn.Module = make(9).eval()
    ids = torch.randint(9, (4, 12))
    other = ids.clone()
    other[:, 7:] = (ids[:, 7:] + 1) % 9
    before, after = model(ids), model(other)
    assert before.shape == (4, 12, 9)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("name", ["charlstm", "chartransformer"])
class TestBothNetworks:
    def test_take_their_weights_from_outside(self, roles: DataSet, name: str) -> None:
        """An LSTM keeps a list of its own weights beside the named ones."""
        network = federation(roles, name, "algorithm.name=fedavg").network
        zeros = {key: torch.zeros_like(tensor) for key, tensor in network.weights().items()}
        assert not torch.func.functional_call(network.model, zeros, (roles.test.inputs[:2],)).any()

    def test_train_with_ids_that_nothing_touched(self, roles: DataSet, name: str) -> None:
        made = federation(roles, name, "algorithm.name=fedavg")
        assert torch.equal(made.feed.samples.inputs, roles.train.inputs)
        assert made.test.samples.inputs.dtype == torch.int64

    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
    def test_learn_the_same_the_way_of_a_gpu(self, roles: DataSet, name: str, device: str) -> None:
        made = federation(roles, name, "algorithm.name=fedavg", "training.batch=16", "training.epochs=4")
        broadcast = Broadcasts(made.algorithm, made.open().server, 1).given(None).broadcast.message
        works = []
        for index in range(2):
            site = made.site(index)
            local, _ = made.algorithm.start(broadcast, {}, site.client(1))
            works.append(Work.draw(local, site.own[:40], site.training(1), None, seed=0, round=1, client=index))
        training, feed = made.algorithm.training, TrainingData.of(roles, device)
        for fast, work in zip(CapturedTrainer(made.network, training, feed).train(works), works, strict=True):
            plain = train_one(made.network, training, made.feed, work)
            torch.testing.assert_close(fast.local.weights, plain.local.weights, rtol=1e-3, atol=1e-4)
            assert fast.loss == pytest.approx(plain.loss, rel=1e-4)


class TestEvaluation:
    def test_counts_every_token_whatever_the_batches(self, roles: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(0)
        model = charlstm(roles.classes, width=16).eval()
        labels = roles.test.labels.clone()
        labels[::2, 5:] = IGNORED  # so that a mean of the batches' means would be wrong
        network = Network(model, task=LANGUAGE)
        with torch.no_grad():
            outputs, counts = model(roles.test.inputs), labels != IGNORED
        entropy = nn.functional.cross_entropy(outputs[counts], labels[counts]).item()
        right = (outputs.argmax(-1) == labels)[counts].float().mean().item()
        for numbers in (evaluation.NUMBERS, 3 * outputs[0].numel()):
            monkeypatch.setattr(evaluation, "NUMBERS", numbers)
            score, loss = Evaluator(network, Samples(roles.test.inputs, labels)).evaluate(network.weights())
            assert score == pytest.approx(right, rel=1e-5)
            assert loss == pytest.approx(entropy, rel=1e-5)
        judged = Network(model, task=TASKS["language"]["perplexity"])
        assert Evaluator(judged, Samples(roles.test.inputs, labels)).score(network.weights()) == pytest.approx(
            math.exp(entropy), rel=1e-5
        )

    def test_a_batch_is_as_large_as_its_outputs_allow(self, roles: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes: list[int] = []
        model = charlstm(roles.classes, width=16)
        model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
        monkeypatch.setattr(evaluation, "NUMBERS", 5 * 20 * roles.classes)
        network = Network(model, task=LANGUAGE)
        Evaluator(network, roles.test).evaluate(network.weights())
        assert max(sizes) == 5


def test_three_roles_learn_to_speak(roles: DataSet) -> None:
    """Better than always saying the most frequent character, with trits in both directions."""
    torch.manual_seed(0)
    settings = ("task.name=language", "data.partition=natural", "federation.clients=3", "federation.rounds=5")
    training = ("training.optimizer=adam", "training.rate=0.005", "training.batch=8", "training.epochs=2")
    model = chartransformer(roles.classes, (20,), width=32, layers=2)
    records = list(federate(model, roles, *settings, *training))
    most_frequent = roles.train.labels.flatten().bincount().argmax()
    assert records[-1].score > (roles.test.labels == most_frequent).double().mean() + 0.03
    assert records[-1].loss < records[0].loss
    assert records[-1].bytes_up < records[-1].bytes_up_fp32 / 5


def test_a_network_for_text_refuses_pictures() -> None:
    experiment = Experiment.from_toml("", ["model.name=charlstm"])
    data = experiment.load_data()
    with pytest.raises(ExperimentError, match="takes sequences of whole numbers, but a sample of digits is float32"):
        experiment.make_network(data)


class TestSettingsOfText:
    def test_have_defaults_of_their_own(self) -> None:
        experiment = Experiment.from_toml("", ["data.dataset=text:plays/roles"])
        assert experiment.name == "roles-tfedavg"
        assert (experiment.task.name, experiment.data.length, experiment.model.name) == ("language", 80, "charlstm")
        assert Experiment.from_toml(experiment.to_toml()) == experiment
        assert Experiment.from_toml("", ["data.dataset=text:../my plays/"]).name == "my-plays-tfedavg"
        assert Experiment.from_toml("", ["data.dataset=shakespeare"]).federation.clients == 425

    def test_length_is_for_text_alone(self) -> None:
        with pytest.raises(ExperimentError, match=r"data\.length = 40: has no meaning with dataset = \"digits\""):
            Experiment.from_toml("", ["data.length=40"])
        with pytest.raises(ExperimentError, match=r"data\.length = 0"):
            Experiment.from_toml("", ["data.dataset=text:roles", "data.length=0"])
        text = Experiment.from_toml("", ["data.dataset=text:roles", "data.length=40"])
        assert text.with_settings(["data.dataset=digits"]).data.length is None

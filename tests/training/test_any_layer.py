"""Layers of any kind, ternary, shared or frozen: every way to train them agrees with the plain one."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Local, Network, Training
from ternfed.algorithms.optimizers import Adam, Sgd
from ternfed.data.values import Samples
from ternfed.quantize.choice import untrained
from ternfed.quantize.ternary import Quantizer, start_factors
from ternfed.training.captured import CapturedTrainer
from ternfed.training.choose import trainer_for
from ternfed.training.evaluation import Evaluator
from ternfed.training.plain import train_one
from ternfed.training.work import TrainingData, Work

WORDS, LENGTH = 9, 6


class Reader(nn.Module):
    """Token ids ─▶ one of them, by any body."""

    def __init__(self, body: nn.Module, tied: bool = False) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(WORDS, 8), body, nn.Linear(8, WORDS, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.embed(tokens)
        if isinstance(self.body, nn.Sequential):
            states = self.body(states.transpose(1, 2)).transpose(1, 2)
        elif isinstance(self.body, nn.RNNBase):
            states = self.body(states)[0]
        else:
            states = self.body(states)
        out: Tensor = self.head(states.mean(1))
        return out


BODIES = {
    "lstm": lambda: nn.LSTM(8, 8, num_layers=2, batch_first=True),
    "gru": lambda: nn.GRU(8, 4, bidirectional=True, batch_first=True),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "conv1d": lambda: nn.Sequential(
        nn.Conv1d(8, 12, 3, groups=4), nn.BatchNorm1d(12), nn.ReLU(), nn.ConvTranspose1d(12, 8, 3)
    ),
}


def network_of(body: str, tied: bool = False, trainable: list[str] | None = None) -> Network:
    torch.manual_seed(0)
    model = Reader(BODIES[body](), tied).double()
    frozen = () if trainable is None else untrained(model, trainable)
    return Network.of(model, "all", frozen=frozen)


def feed() -> TrainingData:
    source = torch.Generator().manual_seed(1)
    tokens = torch.randint(WORDS, (40, LENGTH), generator=source)
    tokens[:, ::2] = tokens[:, :1]  # half of a sentence is one word: which?
    return TrainingData(Samples(tokens, tokens[:, 0]), (0.0,), (1.0,))


def work_of(network: Network, training: Training) -> Work:
    tensors = network.weights()
    weights = {name: tensors[name] for name in network.parameters}
    started = {name: start_factors(weights[name], Quantizer()) for name in training.ternary}
    factors = {name: factor for name, factor in started.items() if factor is not None}
    local = Local(weights, {n: tensors[n] for n in network.buffers}, factors, 0.7, dict.fromkeys(training.ternary, 1.5))
    return Work.draw(local, torch.arange(40), training, None, seed=3, round=2, client=0)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("part", [None, ["body"], ["head", "embed"]], ids=["whole", "body", "ends"])
@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.9), Adam()], ids=["sgd", "adam"])
def test_the_captured_step_is_the_plain_one(body: str, part: list[str] | None, optimizer: Sgd | Adam) -> None:
    network = network_of(body, trainable=part)
    training = Training(
        optimizer, rate=0.02, epochs=2, batch=16, quantizer=Quantizer(), ternary=network.ternary, plain_epochs=1
    )
    work = work_of(network, training)
    plain = train_one(network, training, feed(), work)
    (captured,) = CapturedTrainer(network, training, feed()).train([work])
    assert list(captured.local.weights) == list(plain.local.weights) == list(network.parameters)
    for name, tensor in plain.local.weights.items():
        torch.testing.assert_close(captured.local.weights[name], tensor, rtol=1e-9, atol=1e-9)
        assert not torch.equal(tensor, work.local.weights[name]) or name.endswith("0.bias"), name
    assert captured.loss == pytest.approx(plain.loss)


@pytest.mark.parametrize("body", BODIES)
def test_all_ternary_it_learns(body: str) -> None:
    network = network_of(body)
    training = Training(Adam(), rate=0.02, epochs=1, batch=8, quantizer=Quantizer(), ternary=network.ternary)
    work = work_of(network, training)
    trainer = trainer_for(network, training, feed())
    assert trainer.way == "plain"
    losses = []
    for _ in range(30):
        (outcome,) = trainer.train([work])
        work = replace(work, local=outcome.local)
        losses.append(outcome.loss)
    assert losses[-1] < 0.5 * losses[0]


def test_shared_weights_are_trained_once_by_both_of_their_uses() -> None:
    network = network_of("lstm", tied=True)
    training = Training(rate=0.1, epochs=1, batch=40)
    work = work_of(network, training)
    assert [name for name in work.local.weights if "body" not in name] == ["embed.weight"]
    moved = train_one(network, training, feed(), work).local.weights["embed.weight"]
    loss = nn.functional.cross_entropy(network.model(feed().samples.inputs), feed().samples.labels)
    loss.backward()  # type: ignore[no-untyped-call]
    weight = network.model.get_parameter("embed.weight")
    assert weight.grad is not None
    torch.testing.assert_close(moved, weight.detach() - 0.1 * weight.grad)
    (captured,) = CapturedTrainer(network, training, feed()).train([work])
    torch.testing.assert_close(captured.local.weights["embed.weight"], moved)


def test_training_leaves_no_trace_in_the_model() -> None:
    network = network_of("lstm", trainable=["body"])
    before = {name: tensor.clone() for name, tensor in network.model.state_dict().items()}
    train_one(network, Training(epochs=1, batch=8), feed(), work_of(network, Training(epochs=1, batch=8)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.model.state_dict().items())
    assert all(parameter.grad is None for parameter in network.model.parameters())
    recurrent = network.model.get_submodule("body")
    assert isinstance(recurrent, nn.RNNBase)
    assert recurrent._flat_weights[0] is recurrent.weight_ih_l0


def test_a_models_tensors_are_there_once_are_not_judged_with_and_stay_as_they_are() -> None:
    network = network_of("conv1d").without(("embed.weight",))
    evaluator = Evaluator(network, feed().samples)
    before, weights = network.weights(), {name: 2 * tensor for name, tensor in network.weights().items()}
    evaluator.evaluate(weights)
    evaluator.statistics(weights)
    for name, tensor in network.model.named_parameters():
        assert evaluator._model.get_parameter(name) is evaluator._counting.get_parameter(name) is tensor
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.weights().items())


def test_what_is_frozen_has_no_gradients() -> None:
    network = network_of("conv1d").without(("embed.weight",))
    frozen = network.model.get_parameter("embed.weight")
    train_one(network, Training(epochs=1, batch=8), feed(), work_of(network, Training(epochs=1, batch=8)))
    assert frozen.grad is None

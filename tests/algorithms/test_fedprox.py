"""FedProx, and the hook on the local gradient that it is made of."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from ternfed.algorithms import fedavg, fedprox, tfedavg
from ternfed.algorithms.algorithm import Algorithm, Local, Network, Training, Weights
from ternfed.data.values import Samples
from ternfed.quantize.ternary import Quantizer, quantize
from ternfed.training.batched import train_batched
from ternfed.training.captured import CapturedTrainer
from ternfed.training.choose import trainer_for
from ternfed.training.plain import train_one
from ternfed.training.work import Trained, TrainingData, Work

RATE, MU = 0.1, 0.7
TRAINING = Training(rate=RATE, epochs=3, batch=100)
"""One step per epoch."""


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network.of(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3)))


@pytest.fixture
def feed() -> TrainingData:
    source = torch.Generator().manual_seed(1)
    return TrainingData(Samples(torch.randn(20, 6, generator=source), torch.arange(20) % 3), (0.0,), (1.0,))


def work_of(algorithm: Algorithm, local: Local) -> Work:
    return Work.draw(local, torch.arange(20), algorithm.training, None, seed=3, round=1, client=0)


def trained(network: Network, feed: TrainingData, algorithm: Algorithm) -> Trained:
    local = Local(network.weights(), {})
    return train_one(network, algorithm.training, feed, work_of(algorithm, local))


def gradients(network: Network, feed: TrainingData, weights: Weights) -> Weights:
    """∇F by autograd, over all samples."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    outputs = torch.func.functional_call(network.model, leaves, (feed.samples.inputs,))
    nn.functional.cross_entropy(outputs, feed.samples.labels).backward()  # type: ignore[no-untyped-call]
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def test_each_step_is_pulled_back_to_the_received_weights(network: Network, feed: TrainingData) -> None:
    """w ← w - η (∇F(w) + μ (w - w₀)), three times by hand."""
    start = network.weights()
    by_hand = start
    for _ in range(3):
        slope = gradients(network, feed, by_hand)
        by_hand = {n: w - RATE * (slope[n] + MU * (w - start[n])) for n, w in by_hand.items()}
    result = trained(network, feed, fedprox.algorithm(network, TRAINING, fedprox.Settings(mu=MU)))
    torch.testing.assert_close(result.local.weights, by_hand, rtol=1e-5, atol=1e-6)  # another order of the samples
    without = trained(network, feed, fedavg.algorithm(network, TRAINING, fedavg.Settings()))
    assert not torch.allclose(without.local.weights["0.weight"], by_hand["0.weight"], rtol=1e-3, atol=1e-4)


def test_without_the_proximal_term_it_is_fedavg_bit_for_bit(network: Network, feed: TrainingData) -> None:
    prox = fedprox.algorithm(network, TRAINING, fedprox.Settings(mu=0.0))
    assert prox.training.correct is not None
    first = trained(network, feed, prox)
    second = trained(network, feed, fedavg.algorithm(network, TRAINING, fedavg.Settings()))
    assert first.loss == second.loss
    assert all(torch.equal(first.local.weights[name], second.local.weights[name]) for name in network.parameters)


def test_of_ternary_layers_the_latent_weights_are_pulled_back(network: Network, feed: TrainingData) -> None:
    """Two steps of the latent weights by hand: the first starts at w₀, the second feels the pull."""
    training = replace(TRAINING, epochs=2)
    made = fedprox.algorithm(network, training, fedprox.Settings(mu=MU, ternary=True))
    name, quantizer, eta = "2.weight", Quantizer(), 24 * RATE
    ternary = replace(made.training, quantizer=quantizer, ternary=(name,), latent_rate=24.0, clip=None)
    made = replace(made, training=ternary)
    weights, factor = network.weights(), torch.tensor([0.3])
    local = Local(weights, {}, {name: factor}, quantizer.factor)
    first = train_one(network, replace(made.training, epochs=1), feed, first_epoch(work_of(made, local))).local
    latent, scale = (t.clone().requires_grad_() for t in (first.weights[name], first.factors[name]))
    outputs = torch.func.functional_call(
        network.model, {**first.weights, name: quantize(latent, scale, quantizer)}, (feed.samples.inputs,)
    )
    nn.functional.cross_entropy(outputs, feed.samples.labels).backward()  # type: ignore[no-untyped-call]
    assert latent.grad is not None
    expected = first.weights[name] - eta * (latent.grad + MU * (first.weights[name] - weights[name]))
    both = train_one(network, made.training, feed, work_of(made, local)).local
    torch.testing.assert_close(both.weights[name], expected, rtol=1e-4, atol=1e-5)


def first_epoch(work: Work) -> Work:
    return replace(work, order=work.order[:1])


def test_ternary_or_not_it_is_the_other_algorithm_but_for_the_correction(network: Network) -> None:
    for settings, base in (
        (fedprox.Settings(), fedavg.algorithm(network, TRAINING, fedavg.Settings())),
        (fedprox.Settings(ternary=True), tfedavg.algorithm(network, TRAINING, tfedavg.Settings())),
    ):
        made = fedprox.algorithm(network, TRAINING, settings)
        assert replace(made.training, correct=None) == base.training
        assert (made.up, made.down) == (base.up, base.down)


def test_the_fast_ways_are_not_chosen_for_corrected_steps(network: Network, feed: TrainingData) -> None:
    made = fedprox.algorithm(network, TRAINING, fedprox.Settings(mu=MU))
    works = [work_of(made, Local(network.weights(), {}))]
    trainer = trainer_for(network, made.training, feed)
    (chosen,) = trainer.train(works)
    assert trainer.way == "plain"
    alone = train_one(network, made.training, feed, works[0])
    assert all(torch.equal(chosen.local.weights[name], alone.local.weights[name]) for name in network.parameters)


def test_the_fast_ways_refuse_corrected_steps(network: Network, feed: TrainingData) -> None:
    made = fedprox.algorithm(network, TRAINING, fedprox.Settings())
    with pytest.raises(ValueError, match="corrected"):
        list(train_batched(network, made.training, feed, [work_of(made, Local(network.weights(), {}))]))
    with pytest.raises(ValueError, match="corrected"):
        CapturedTrainer(network, made.training, feed)


def test_an_impossible_pull_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mu = -1.0: at least 0"):
        fedprox.Settings(mu=-1.0)

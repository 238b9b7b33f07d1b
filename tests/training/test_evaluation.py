"""Accuracy, loss, and BatchNorm statistics recomputed for given weights."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Network
from ternfed.data.values import Samples
from ternfed.task import LANGUAGE, Measure, Metric, Task
from ternfed.training.evaluation import Evaluator


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network.of(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.Linear(5, 3)))


@pytest.fixture
def samples() -> Samples:
    generator = torch.Generator().manual_seed(1)
    return Samples(torch.randn(2500, 4, generator=generator), torch.randint(3, (2500,), generator=generator))


def test_accuracy_and_loss_are_those_of_the_model_in_evaluation_mode(network: Network, samples: Samples) -> None:
    accuracy, loss = Evaluator(network, samples).evaluate(network.weights())
    model = network.model.eval()
    outputs = model(samples.inputs)
    assert accuracy == pytest.approx((outputs.argmax(1) == samples.labels).float().mean().item(), abs=1e-7)
    assert loss == pytest.approx(nn.functional.cross_entropy(outputs, samples.labels).item(), rel=1e-5)


def test_convolutions_on_a_cpu_are_judged_by_few_samples_at_a_time_and_statistics_counted_by_all() -> None:
    torch.manual_seed(0)
    seen: list[int] = []
    first = nn.Conv2d(1, 4, 3)
    first.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    layers = first, nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    network = Network.of(nn.Sequential(*layers))
    samples = Samples(torch.randn(150, 1, 8, 8), torch.randint(3, (150,)))
    accuracy, loss = Evaluator(network, samples).evaluate(network.weights())
    assert seen == [64, 64, 22]
    Evaluator(network, samples).statistics(network.weights())
    assert seen[3:] == [150]
    outputs = network.model.eval()(samples.inputs)
    assert accuracy == pytest.approx((outputs.argmax(1) == samples.labels).float().mean().item(), abs=1e-7)
    assert loss == pytest.approx(nn.functional.cross_entropy(outputs, samples.labels).item(), rel=1e-5)


def test_many_targets_per_sample_are_judged_by_few_samples_at_a_time() -> None:
    torch.manual_seed(0)
    seen: list[int] = []
    first = nn.Embedding(11, 4)
    first.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    network = replace(Network.of(nn.Sequential(first, nn.Linear(4, 11))), task=LANGUAGE)
    samples = Samples(torch.randint(11, (150, 5)), torch.randint(11, (150, 5)))
    accuracy, loss = Evaluator(network, samples).evaluate(network.weights())
    assert seen[-3:] == [64, 64, 22]
    outputs = network.model.eval()(samples.inputs)
    assert accuracy == pytest.approx((outputs.argmax(2) == samples.labels).float().mean().item(), abs=1e-7)
    expected = nn.functional.cross_entropy(outputs.flatten(0, 1), samples.labels.flatten()).item()
    assert loss == pytest.approx(expected, rel=1e-5)


def test_evaluating_changes_nothing(network: Network, samples: Samples) -> None:
    weights = network.weights()
    before = {name: tensor.clone() for name, tensor in weights.items()}
    Evaluator(network, samples).evaluate(weights)
    Evaluator(network, samples).statistics(weights)
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.weights().items())


def test_recomputed_statistics_are_the_mean_and_variance_of_the_layers_inputs(network: Network) -> None:
    generator = torch.Generator().manual_seed(2)
    samples = Samples(torch.randn(1000, 4, generator=generator), torch.zeros(1000, dtype=torch.int64))  # one batch
    counted = Evaluator(network, samples).statistics(network.weights())
    inputs = network.model[0](samples.inputs).detach()  # type: ignore[index, operator]
    torch.testing.assert_close(counted["1.running_mean"], inputs.mean(0))
    torch.testing.assert_close(counted["1.running_var"], inputs.var(0))
    assert torch.equal(counted["0.weight"], network.weights()["0.weight"])


def test_a_metric_of_several_sums_is_that_of_all_samples_not_the_mean_over_batches(network: Network) -> None:
    generator = torch.Generator().manual_seed(3)
    samples = Samples(torch.randn(2500, 4, generator=generator), torch.randn(2500, 3, generator=generator) + 5)

    def sums(outputs: Tensor, targets: Tensor) -> Tensor:
        error, targets = (outputs - targets).double(), targets.double()
        return torch.stack([error.square().sum(), targets.sum(), targets.square().sum()])

    def finish(sums: Tensor, count: int) -> float:
        """R²: 1 - Σ(y - ŷ)² / Σ(y - ȳ)²."""
        error, total, squares = sums.tolist()
        return float(1 - error / (squares - total**2 / (3 * count)))

    r2 = Task("fit", nn.functional.mse_loss, Metric(Measure("r2"), sums, finish), predict=lambda outputs: outputs)
    score, loss = Evaluator(replace(network, task=r2), samples).evaluate(network.weights())
    outputs, targets = network.model.eval()(samples.inputs).detach().double(), samples.labels.double()
    error, spread = (outputs - targets).square().sum(), (targets - targets.mean()).square().sum()
    assert score == pytest.approx(1 - (error / spread).item(), rel=1e-6)
    assert loss == pytest.approx((outputs - targets).square().mean().item(), rel=1e-6)

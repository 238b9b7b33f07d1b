"""FedOpt: the server's own optimizers, against steps computed by hand."""

import math

import pytest
import torch
from torch import nn

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms import fedavg, fedopt
from ternfed.algorithms.algorithm import Helpers, Network, Server, Training, Weights
from ternfed.algorithms.fedopt import Optimizer, Settings

HELPERS = Helpers(lambda weights: 0.0, lambda weights: weights)


@pytest.fixture
def network() -> Network:
    return Network(nn.Sequential(nn.Linear(2, 1, bias=False), nn.BatchNorm1d(1, affine=False)))


def weights(network: Network, first: float, second: float) -> Weights:
    return {**network.weights(), "0.weight": torch.tensor([[first, second]])}


def after(network: Network, settings: Settings, *averages: Weights) -> Server:
    """The server after rounds with these averages, from weights 1 and -1."""
    algorithm = fedopt.algorithm(network, Training(), settings)
    server = algorithm.open(weights(network, 1.0, -1.0))
    for average in averages:
        server = algorithm.update(server, Uploads(average, {}, 1, 0), HELPERS)
    return server


def adam(v: float, square: float) -> float:
    return 0.9 * v + 0.1 * square


def yogi(v: float, square: float) -> float:
    return v - 0.1 * square * math.copysign(1.0, v - square)


@pytest.mark.parametrize(("optimizer", "second"), [(Optimizer.ADAM, adam), (Optimizer.YOGI, yogi)])
def test_two_steps_of_the_adaptive_optimizers(network: Network, optimizer: Optimizer, second) -> None:  # type: ignore[no-untyped-def]
    settings = Settings(optimizer, rate=0.1, momentum=0.5, decay=0.9, tau=0.25)
    server = after(network, settings, weights(network, 1.5, -1.1), weights(network, 1.2, -1.3))
    expected = []
    for w, averages in ((1.0, (1.5, 1.2)), (-1.0, (-1.1, -1.3))):
        m, v = 0.0, 0.25**2
        for average in averages:
            change = average - w
            m = 0.5 * m + 0.5 * change
            v = second(v, change**2)
            w = w + 0.1 * m / (math.sqrt(v) + 0.25)
        expected.append(w)
    assert server.weights["0.weight"].flatten().tolist() == pytest.approx(expected, rel=1e-6)


def test_two_steps_with_momentum(network: Network) -> None:
    settings = Settings(Optimizer.MOMENTUM, rate=0.5, momentum=0.8)
    server = after(network, settings, weights(network, 1.5, -1.0), weights(network, 1.5, -2.0))
    # Δ = 0.5, w = 1.25; Δ = 0.25, m = 0.65, w = 1.575. And: Δ = 0; Δ = -1, w = -1.5.
    assert server.weights["0.weight"].flatten().tolist() == pytest.approx([1.575, -1.5])
    assert server.memory.second == {}


def test_momentum_without_inertia_at_rate_one_is_fedavg(network: Network) -> None:
    average = weights(network, 0.3, 0.7)
    server = after(network, Settings(Optimizer.MOMENTUM, momentum=0.0), average)
    plain = fedavg.algorithm(network, Training(), fedavg.Settings())
    expected = plain.update(Server(weights(network, 1.0, -1.0)), Uploads(average, {}, 1, 0), HELPERS)
    torch.testing.assert_close(server.weights, expected.weights)


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_buffers_are_averaged_and_not_stepped(network: Network, optimizer: Optimizer) -> None:
    average = {**weights(network, 1.0, 1.0), "1.running_mean": torch.tensor([5.0])}
    server = after(network, Settings(optimizer), average)
    assert server.weights["1.running_mean"].item() == 5.0
    assert "1.running_mean" not in server.memory.first


def test_a_round_without_uploads_changes_nothing(network: Network) -> None:
    algorithm = fedopt.algorithm(network, Training(), Settings())
    server = algorithm.open(network.weights())
    assert algorithm.update(server, Uploads({}, {}, 0, 3), HELPERS) is server


@pytest.mark.parametrize("settings", [{"rate": 0.0}, {"tau": 0.0}, {"momentum": 1.0}, {"decay": -0.1}])
def test_impossible_settings_are_refused_by_name(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} = "):
        Settings(**settings)  # type: ignore[arg-type]

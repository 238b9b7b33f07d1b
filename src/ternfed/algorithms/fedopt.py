"""FedOpt: the server takes the clients' mean update for a gradient, and gives it to an optimizer of its own.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021, Algorithm 2
(FedAdam, FedYogi); Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019 (FedAvgM). With Δ = the average of the clients' models - the server's own, in each round:

    FedAdam   m ← β₁ m + (1 - β₁) Δ    v ← β₂ v + (1 - β₂) Δ²                    w ← w + η m / (√v + τ)
    FedYogi   m ← β₁ m + (1 - β₁) Δ    v ← v - (1 - β₂) Δ² sign(v - Δ²)          w ← w + η m / (√v + τ)
    FedAvgM   m ← β₁ m + Δ                                                       w ← w + η m

from m = 0 and v = τ². Buffers are averaged as in FedAvg, and so is everything that travels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms import fedavg
from ternfed.algorithms.algorithm import About, Algorithm, Helpers, Network, Server, Training, Weights
from ternfed.algorithms.network import split
from ternfed.algorithms.statistics import Statistics, with_statistics

ABOUT = About("FedOpt", trains_ternary=False)


class Optimizer(StrEnum):
    """What the server does with the mean update."""

    ADAM = "adam"
    YOGI = "yogi"
    MOMENTUM = "momentum"
    """FedAvgM."""


@dataclass(frozen=True)
class Settings:
    """FedOpt's settings."""

    optimizer: Optimizer = Optimizer.ADAM
    rate: float | None = None
    """η, the server's learning rate; none: 0.01 with `adam` and `yogi`, 1 with `momentum`."""
    momentum: float = 0.9
    """β₁."""
    decay: float = 0.99
    """β₂ of `adam` and `yogi`."""
    tau: float = 0.001
    """τ of `adam` and `yogi`: the larger, the less the rates of single weights differ."""
    statistics: Statistics = Statistics.AVERAGE

    def __post_init__(self) -> None:
        for key in ("rate", "tau"):
            value = getattr(self, key)
            if value is not None and value <= 0:
                raise ValueError(f"{key} = {value}: a number above 0 is needed")
        for key in ("momentum", "decay"):
            if not 0 <= getattr(self, key) < 1:
                raise ValueError(f"{key} = {getattr(self, key)}: 0 to below 1 is needed")


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """What the server remembers of each parameter."""

    first: Weights = field(default_factory=dict)
    """m."""
    second: Weights = field(default_factory=dict)
    """v, where the optimizer has one."""


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedAvg whose server takes steps of its own."""
    base = fedavg.algorithm(network, training, fedavg.Settings(statistics=settings.statistics))

    def update(server: Server, uploads: Uploads, helpers: Helpers) -> Server:
        if not uploads.average:
            return server
        memory: ServerMemory = server.memory
        parameters, buffers = split(uploads.average, network)
        weights, first, second = {}, {}, {}
        for name, average in parameters.items():
            before = server.weights[name]
            m, v = moments(average - before, memory.first.get(name), memory.second.get(name), settings)
            weights[name], first[name] = before + step(m, v, settings), m
            if v is not None:
                second[name] = v
        model = with_statistics({**weights, **buffers}, network, settings.statistics, helpers)
        return Server(model, memory=ServerMemory(first, second))

    return replace(
        base,
        name="fedopt",
        open=lambda weights: Server(weights, memory=ServerMemory()),
        update=update,
        server_memory=ServerMemory,
    )


def moments(change: Tensor, m: Tensor | None, v: Tensor | None, settings: Settings) -> tuple[Tensor, Tensor | None]:
    """(m, v) after the mean update Δ of one parameter; None where they begin, or the optimizer has no v."""
    m = torch.zeros_like(change) if m is None else m
    if settings.optimizer is Optimizer.MOMENTUM:
        return settings.momentum * m + change, None
    v = torch.full_like(change, settings.tau**2) if v is None else v
    square, gain = change * change, 1 - settings.decay
    if settings.optimizer is Optimizer.YOGI:
        v = v - gain * square * (v - square).sign()
    else:
        v = settings.decay * v + gain * square
    return settings.momentum * m + (1 - settings.momentum) * change, v


def step(m: Tensor, v: Tensor | None, settings: Settings) -> Tensor:
    """What is added to one parameter."""
    if v is None:
        return (1.0 if settings.rate is None else settings.rate) * m
    return (0.01 if settings.rate is None else settings.rate) * m / (v.sqrt() + settings.tau)

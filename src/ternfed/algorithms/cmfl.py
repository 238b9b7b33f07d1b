"""CMFL: a client uploads only when its update points where the last global update pointed.

Wang, Wang, Li: CMFL: Mitigating Communication Overhead for Federated Learning, ICDCS 2019. The relevance of an update
u is the share of its signs that equal those of the last global update ū; below the threshold the client sends a
notice instead of its model. The threshold is constant, or v₀/√t in round t.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import sqrt

import torch

from ternfed.algorithms import fedavg
from ternfed.algorithms.algorithm import UP, About, Algorithm, Client, Local, Network, Training, Weights
from ternfed.algorithms.network import dense_weights
from ternfed.algorithms.statistics import Statistics
from ternfed.wire import Message, Schema

ABOUT = About("CMFL", trains_ternary=False)


class Decay(StrEnum):
    """How the threshold changes with the rounds."""

    CONSTANT = "constant"
    ROOT = "root"
    """v₀ / √t."""


@dataclass(frozen=True)
class Settings:
    """CMFL's settings."""

    threshold: float = 0.6
    """v or v₀: the least relevance with which a client uploads."""
    decay: Decay = Decay.CONSTANT
    statistics: Statistics = Statistics.AVERAGE

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold = {self.threshold}: a relevance from 0 to 1 is needed")


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """What a client remembers."""

    received: Weights = field(default_factory=dict)
    """The parameters of the last broadcast it got."""


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedAvg whose clients may keep an irrelevant update to themselves."""
    plain = fedavg.algorithm(network, training, fedavg.Settings(statistics=settings.statistics))

    def finish(local: Local, received: Message, memory: ClientMemory, client: Client) -> tuple[Message, ClientMemory]:
        model = dense_weights(received)
        last = {name: model[name] - before for name, before in memory.received.items()}
        update = {name: local.weights[name] - model[name] for name in network.parameters}
        remembered = ClientMemory({name: model[name] for name in network.parameters})
        limit = settings.threshold / (sqrt(received.numbers["round"]) if settings.decay is Decay.ROOT else 1.0)
        # Without a last global update, or when it was nothing at all, there is no direction to compare with.
        if any(bool(part.any()) for part in last.values()) and relevance(update, last) < limit:
            return Message({}, {}), remembered
        return plain.finish(local, received, memory, client)[0], remembered

    up = (*plain.up, Schema((), UP))
    return replace(plain, name="cmfl", up=up, finish=finish, client_memory=ClientMemory)


def relevance(update: Weights, last: Weights) -> float:
    """e(u, ū): the share of elements whose sign is the same in both."""
    same = sum(int(torch.sum(update[name].sign() == last[name].sign())) for name in update)
    return same / sum(part.numel() for part in update.values())

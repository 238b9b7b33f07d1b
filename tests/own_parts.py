"""What a user may bring in a module of their own: an algorithm with its settings and presets, a network, a data set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import torch
from torch import nn

from ternfed.algorithms import fedavg
from ternfed.algorithms.algorithm import Algorithm, Network, Training
from ternfed.data.values import DataSet, from_arrays


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Settings:
    """One of each type that a setting may have."""

    flag: bool = False
    count: int = 3
    share: float = 0.5
    word: str = "plain"
    colour: Colour = Colour.RED
    size: Literal["small", "large", 7] = "small"
    limit: float | None = 1.0
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count = {self.count}: at least 0 is needed")


PRESETS: Mapping[str, Settings] = {"bold": Settings(flag=True, count=9, limit=None, colour=Colour.BLUE)}


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedAvg at a share of the rate."""
    slower = replace(training, rate=training.rate * settings.share)
    return replace(fedavg.algorithm(network, slower, fedavg.Settings()), name="own")


def without_settings(network: Network, training: Training) -> Algorithm:
    raise NotImplementedError


def settings_of_no_kind(network: Network, training: Training, settings: int) -> Algorithm:
    raise NotImplementedError


@dataclass(frozen=True)
class TakesName:
    name: str = ""


def takes_name(network: Network, training: Training, settings: TakesName) -> Algorithm:
    raise NotImplementedError


def small_network(inputs: int, classes: int, *, width: int = 5, bias: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width, bias=bias),
        nn.Linear(width, width, bias=bias),
        nn.Linear(width, classes, bias=bias),
    )


def needy_network(depth: int, classes: int) -> nn.Module:
    raise NotImplementedError


def no_network() -> str:
    return "a network"


def rows() -> DataSet:
    """Thirty rows of four numbers in three classes."""
    inputs = torch.arange(120, dtype=torch.float32).view(30, 4)
    labels = torch.arange(30) % 3
    return from_arrays("rows", inputs, labels, inputs[:6], labels[:6])

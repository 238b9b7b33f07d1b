"""The baseline: all data in one place, one model trained on it, nothing sent.

A round is the configured number of epochs over the whole training set (the paper compares 100 rounds with 100 epochs:
one epoch per round). The optimizer starts anew each round, as it does on a client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ternfed.algorithms import fedavg
from ternfed.algorithms.algorithm import About, Algorithm, Network, Training

ABOUT = About("Centralized", trains_ternary=False, central=True)


@dataclass(frozen=True)
class Settings:
    """The baseline has none of its own."""


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedAvg with one client that holds everything: averaging one model changes nothing."""
    return replace(fedavg.algorithm(network, training, fedavg.Settings()), name="centralized", central=ABOUT.central)

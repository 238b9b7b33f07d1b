"""What to do with BatchNorm statistics after averaging.

The running statistics of drifted clients, averaged, do not belong to the averaged weights: early in a run they can
read a good model as chance level. Recomputed on data held out on the server they do, but from fewer images.
"""

from __future__ import annotations

from enum import StrEnum

from ternfed.algorithms.algorithm import Helpers, Network, Weights


class Statistics(StrEnum):
    """Which statistics the averaged model gets."""

    AVERAGE = "average"
    """The clients' statistics, averaged as the weights are."""
    RECOMPUTE = "recompute"
    """Recomputed for the averaged weights on data held out on the server."""
    BEST = "best"
    """Whichever of the two judges better on that data."""


def recounts(choice: Statistics, network: Network) -> bool:
    """Whether this choice needs data on the server."""
    return choice is not Statistics.AVERAGE and network.has_statistics


def with_statistics(weights: Weights, network: Network, choice: Statistics, helpers: Helpers) -> Weights:
    """The model with the statistics it is to have."""
    if not recounts(choice, network):
        return weights
    recomputed = helpers.statistics(weights)
    if choice is Statistics.RECOMPUTE:
        return recomputed
    return recomputed if helpers.judge(recomputed) >= helpers.judge(weights) else weights

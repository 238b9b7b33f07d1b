"""Signs with error feedback in both directions: one bit per weight and one scale per tensor.

Karimireddy, Rebjock, Stich, Jaggi: Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019
(EF-SignSGD: the scale is the mean size, what signs lose is added to the next update); Zheng, Huang, Kwok:
Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback, NeurIPS 2019 (both directions, a scale
per block, here per tensor).

Other than there, a client sends after some local epochs, not after each step, and has no momentum of its own here: the
optimizer of its local steps is `training.optimizer`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ternfed.algorithms.algorithm import About, Algorithm, Network, Training, Weights
from ternfed.algorithms.feedback import FINEST_BEFORE, Ways, with_feedback
from ternfed.algorithms.rest import check_finest
from ternfed.algorithms.statistics import Statistics
from ternfed.quantize.ternary import Ternary
from ternfed.wire import Kind

ABOUT = About("EF-SignSGD", trains_ternary=False, sends_trits=True, before={"finest_bits": FINEST_BEFORE})

SCALE_BITS = 4
"""Of a scale in a broadcast."""


@dataclass(frozen=True)
class Settings:
    """EF-SignSGD's settings."""

    finest_bits: int = 8
    """No step of a broadcast is finer than this: the largest number of a tensor has at most so many bits. All weights
    move in every round, late in a run by little: with 6 bits accuracy is lost."""
    statistics: Statistics = Statistics.BEST

    def __post_init__(self) -> None:
        check_finest(self.finest_bits)


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """EF-SignSGD for a network."""
    ways = Ways(up=signs, kind=Kind.TERNARY, down=signs, bits_down=SCALE_BITS, finest_bits=settings.finest_bits)
    return with_feedback("signsgd_ef", network, training, ways, settings.statistics)


def signs(update: Weights) -> dict[str, Ternary]:
    """Each tensor as its mean size times ±1; zero counts as positive, so that every weight takes one bit."""
    out = {}
    for name, part in update.items():
        scale = part.abs().sum() / max(part.numel(), 1)
        out[name] = Ternary(torch.where(part < 0, -1, 1).to(torch.int8), scale, scale)
    return out

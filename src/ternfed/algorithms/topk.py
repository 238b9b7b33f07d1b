"""Top-k: the largest changes in both directions, what they leave out fed back into the next update.

Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018; Aji, Heafield: Sparse Communication for Distributed
Gradient Descent, EMNLP 2017. Of an update, the share of largest size is kept; the rest stays in a residual that is
added to the next update, on each client and on the server (`feedback.py`).

Other than there, a client sends after some local epochs, not after each step, and what is kept is rounded to a few
bits, the error of which stays in the residual too. Positions cost their entropy: the zeros are coded, not the indices.
"""

from __future__ import annotations

from dataclasses import dataclass

from ternfed.algorithms.algorithm import About, Algorithm, Network, Training
from ternfed.algorithms.feedback import FINEST_BEFORE, Ways, check_share, largest, one_step, with_feedback
from ternfed.algorithms.rest import USUAL, check_finest
from ternfed.algorithms.statistics import Statistics
from ternfed.wire import Kind

ABOUT = About("Top-k", trains_ternary=False, before={"finest_bits": FINEST_BEFORE})

FLOAT_BITS = 24
"""Of a float32's significand."""


@dataclass(frozen=True)
class Settings:
    """Top-k's settings."""

    share_up: float = 0.1
    """Of a client's update."""
    share_down: float = 0.1
    """Of the server's update."""
    value_bits: int | None = 4
    """Of each number that is kept. "none": 24, as many as float32 has."""
    finest_bits: int = USUAL
    """No step of a broadcast is finer than this: the largest number of a tensor has at most so many bits."""
    statistics: Statistics = Statistics.BEST

    def __post_init__(self) -> None:
        check_share("share_up", self.share_up)
        check_share("share_down", self.share_down)
        check_finest(self.finest_bits)
        if self.value_bits is not None and not 2 <= self.value_bits <= 16:
            raise ValueError(f"value_bits = {self.value_bits}: 2 to 16 is allowed, or none")


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """Top-k for a network."""
    bits = FLOAT_BITS if settings.value_bits is None else settings.value_bits
    ways = Ways(
        up=lambda update: {name: one_step(part, bits) for name, part in largest(update, settings.share_up).items()},
        kind=Kind.GRID,
        down=lambda update: largest(update, settings.share_down),
        bits_down=bits,
        finest_bits=settings.finest_bits,
    )
    return with_feedback("topk", network, training, ways, settings.statistics)

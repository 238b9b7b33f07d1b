"""Top-k: the largest changes in both directions, what they leave out fed back into the next update.

Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018; Aji, Heafield: Sparse Communication for Distributed
Gradient Descent, EMNLP 2017. Of an update, the share of largest size is kept; the rest stays in a residual that is
added to the next update, on each client and on the server (`feedback.py`).

Other than there, a client sends after some local epochs, not after each step, and what is kept is rounded to a few
bits, the error of which stays in the residual too. Positions cost their entropy: the zeros are coded, not the indices.
"""

from __future__ import annotations

from dataclasses import dataclass

from ternfed.algorithms.algorithm import About, Algorithm, Network, Training, Weights
from ternfed.algorithms.feedback import Ways, check_share, largest, with_feedback
from ternfed.algorithms.statistics import Statistics
from ternfed.quantize.grid import exponents_for, on_grid
from ternfed.wire import Kind, Value

ABOUT = About("Top-k", trains_ternary=False)


@dataclass(frozen=True)
class Settings:
    """Top-k's settings."""

    share_up: float = 0.05
    """Of a client's update."""
    share_down: float = 0.05
    """Of the server's update."""
    value_bits: int | None = 4
    """Of each number that is kept. "none": float32 up, and 16 bits down."""
    statistics: Statistics = Statistics.BEST

    def __post_init__(self) -> None:
        check_share("share_up", self.share_up)
        check_share("share_down", self.share_down)
        if self.value_bits is not None and not 2 <= self.value_bits <= 16:
            raise ValueError(f"value_bits = {self.value_bits}: 2 to 16 is allowed, or none")


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """Top-k for a network."""
    bits = settings.value_bits

    def up(update: Weights) -> dict[str, Value]:
        kept = largest(update, settings.share_up)
        if bits is None:
            return {**kept}
        return {
            name: on_grid(part, exponents_for(part.abs().max() if part.numel() else part.sum(), bits))
            for name, part in kept.items()
        }

    ways = Ways(
        up=up,
        kind=Kind.FLOAT32 if bits is None else Kind.GRID,
        down=lambda update: largest(update, settings.share_down),
        bits_down=16 if bits is None else bits,
    )
    return with_feedback("topk", network, training, ways, settings.statistics)

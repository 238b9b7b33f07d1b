"""STC: sparse ternary updates in both directions, what they leave out fed back into the next one.

Sattler, Wiedemann, Müller, Samek: Robust and Communication-Efficient Federated Learning from Non-IID Data, IEEE TNNLS
2019. Of an update, the share p of largest size is kept, as the sign times their mean size μ; the rest stays in a
residual that is added to the next update, on each client and on the server. A client that missed broadcasts gets the
sum of their updates (`feedback.py`), as with the paper's cache of updates.

Over few rounds of many local steps p = 1/400 is too little, above all with Adam, whose steps spread a change over all
weights: so the defaults here are larger. `PRESETS["paper"]` has the paper's p.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ternfed.algorithms.algorithm import About, Algorithm, Network, Training, Weights
from ternfed.algorithms.feedback import (
    FINEST_BEFORE,
    ClientMemory,
    ServerMemory,
    Ways,
    check_share,
    largest,
    with_feedback,
)
from ternfed.algorithms.rest import FINEST, USUAL, check_finest
from ternfed.algorithms.statistics import Statistics
from ternfed.quantize.ternary import Ternary
from ternfed.wire import Kind

__all__ = ["ABOUT", "PRESETS", "ClientMemory", "ServerMemory", "Settings", "algorithm", "compress"]

ABOUT = About(
    "STC", trains_ternary=False, sends_trits=True, before={"statistics": "average", "finest_bits": FINEST_BEFORE}
)

SCALE_BITS = 4
"""Of μ in a broadcast."""


@dataclass(frozen=True)
class Settings:
    """STC's settings."""

    sparsity_up: float = 0.1
    """p of a client's update."""
    sparsity_down: float = 0.1
    """p of the server's update."""
    finest_bits: int = USUAL
    """No step of a broadcast is finer than this: the largest number of a tensor has at most so many bits."""
    statistics: Statistics = Statistics.BEST

    def __post_init__(self) -> None:
        check_share("sparsity_up", self.sparsity_up)
        check_share("sparsity_down", self.sparsity_down)
        check_finest(self.finest_bits)


PRESETS: Mapping[str, Settings] = {
    "paper": Settings(sparsity_up=1 / 400, sparsity_down=1 / 400, finest_bits=FINEST, statistics=Statistics.AVERAGE)
}
"""`paper`: the paper's sparsity."""


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """STC for a network."""
    ways = Ways(
        up=lambda update: compress(update, settings.sparsity_up),
        kind=Kind.TERNARY,
        down=lambda update: compress(update, settings.sparsity_down),
        bits_down=SCALE_BITS,
        finest_bits=settings.finest_bits,
    )
    return with_feedback("stc", network, training, ways, settings.statistics)


def compress(update: Weights, share: float) -> dict[str, Ternary]:
    """The share of largest size as μ · sign, over all tensors together."""
    kept = largest(update, share)
    sizes = torch.cat([part[part != 0].abs() for part in kept.values()])
    scale = sizes.mean() if sizes.numel() else torch.zeros(())
    return {name: Ternary(part.sign().to(torch.int8), scale, scale) for name, part in kept.items()}

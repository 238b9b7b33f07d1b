"""What travels in somebody else's Flower project, as algorithms that `ternfed server` has too.

| mode      | up                                                   | down                        | in the end      |
|-----------|------------------------------------------------------|-----------------------------|-----------------|
| `updates` | trits of the rotated update (EDEN), error feedback   | a few bits of each change   | any model       |
| `ternary` | two bits of each change, inner layers (T-FedAvg) | their trits, bits of others | a ternary model |

The user's strategy takes the place of an algorithm's aggregation, and the user's loop that of its training. What the
strategy makes of the clients' models, less the model that they received, is the mean change that the algorithm gets.
"""

from __future__ import annotations

from enum import StrEnum

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms import eden, tfedavg
from ternfed.algorithms.algorithm import Algorithm, Client, Helpers, Local, Server, Training, Weights
from ternfed.algorithms.rest import FINEST
from ternfed.algorithms.statistics import Statistics
from ternfed.algorithms.tfedavg_settings import Judging, Upload
from ternfed.draws import generator
from ternfed.engines.flower.layout import Layout
from ternfed.quantize.rotation import TRITS


class Mode(StrEnum):
    """What is compressed."""

    UPDATES = "updates"
    """How far each client moved, and how far the model moved: any model, any training."""
    TERNARY = "ternary"
    """The model itself: T-FedAvg."""


SMALL_BITS = 6
"""Of each number of an array that is too small to be rotated, in uploads."""
FIRST_BITS = 5
"""Of each weight in the first broadcast. A trained model loses nothing by it; with four it loses up to half a point."""
BITS_DOWN = 3
"""Of the largest change of each row in later ones; most changes are smaller and cost less."""


BITS_UP = (1, TRITS, 2, 3, 4)
"""What may be asked for in place of trits: of each coordinate of a rotated update."""


def check_bits(bits_up: float) -> None:
    """Refuse what is no number of bits that an update can have."""
    if bits_up not in BITS_UP:
        raise ValueError(f"bits_up = {bits_up}: {', '.join(map(str, BITS_UP))} is allowed ({TRITS}: trits)")


def algorithm_for(
    mode: Mode, layout: Layout, bits_up: float = TRITS, feedback: bool = True, length: bool = False
) -> Algorithm:
    """The algorithm of a mode for some arrays.

    In the mode `updates` an upload has `bits_up` of each weight, and with `feedback` what earlier ones left out. With
    `length` it is as long as the update also without feedback.
    """
    check_bits(bits_up)
    if mode is Mode.TERNARY:
        # Plain training from the received trits needs no other model than the user's.
        settings = tfedavg.Settings(upload=Upload.DIFFERENCES, judging=Judging.OFF, statistics=Statistics.AVERAGE)
        return tfedavg.algorithm(layout.network, Training(), settings)
    updates = eden.Settings(
        bits_up=int(bits_up),
        trits=bits_up == TRITS,
        error_feedback=feedback,
        keep_length=length,
        rest_bits_up=SMALL_BITS,
        bits_down=BITS_DOWN,
        finest_bits=FINEST,
        first_bits=FIRST_BITS,
    )
    return eden.algorithm(layout.network, Training(), updates)


def sender(seed: int) -> Client:
    """Whoever made an upload with this seed: both sides draw the same numbers from it."""
    return Client(0, 1, lambda purpose: generator(seed, purpose))


def trained(layout: Layout, weights: Weights) -> Local:
    """What the user's loop made, as an algorithm's training would hand it on."""
    network = layout.network
    return Local({n: weights[n] for n in network.parameters}, {n: weights[n] for n in network.buffers})


def moved(algorithm: Algorithm, server: Server, change: Weights) -> Server:
    """The server after the strategy's change of the model; whole numbers are the new ones themselves."""
    uploads = Uploads(dict(change), {}, count=1, skipped=0)
    return algorithm.update(server, uploads, Helpers(judge=lambda weights: 0.0, statistics=lambda weights: weights))

"""What a server accepts from a client: a message of this model and round, finite, and within bounds.

A registered client is not a trusted one. What fails here is left out of the average, and the round's record says why.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from ternfed.algorithms.algorithm import Algorithm, Client
from ternfed.engines.flower.envelope import WrongRound
from ternfed.round.exchange import Broadcast, collect
from ternfed.wire import Message, WireError, largest, trits_of


class NotFinite(WireError):
    """An upload with a NaN or an infinity in it."""


class OutOfBounds(WireError):
    """An upload with a factor, a weight or a number of samples that no honest client would send."""


@dataclass(frozen=True)
class Bounds:
    """The most that an upload may hold."""

    scale: float = 10.0
    """Of a ternary layer's factor."""
    weight: float = 100.0
    """Of a parameter's size, plain or on a grid."""
    samples: int = 10_000_000
    """That a client may say it trained on: its weight in the average."""

    def __post_init__(self) -> None:
        for key in ("scale", "weight", "samples"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key} = {getattr(self, key)}: a number above 0 is needed")


class Accepted(NamedTuple):
    """An upload that counts."""

    message: Message
    """As it travelled."""
    meaning: Message
    """What the aggregation adds."""


def accept(
    algorithm: Algorithm,
    parameters: Collection[str],
    data: bytes,
    broadcast: Broadcast,
    sender: Client,
    round: int,
    bounds: Bounds,
) -> Accepted:
    """The upload in these bytes, or the WireError that names what is wrong with it."""
    message = collect(algorithm, data, broadcast)
    numbers = message.numbers
    if not all(math.isfinite(number) for number in numbers.values()):
        raise NotFinite("one of its numbers is not finite")
    if numbers["round"] != round:
        raise WrongRound(f"of round {numbers['round']:g}, this is round {round}")
    samples = numbers["samples"]
    if samples != int(samples) or not 1 <= samples <= bounds.samples:
        raise OutOfBounds(f"{samples:g} samples: a whole number from 1 to {bounds.samples} is accepted")
    meaning = algorithm.meaning(message, sender)
    for name, value in meaning.tensors.items():
        size, most = largest(value), bounds.weight if name in parameters else math.inf
        if not math.isfinite(size):
            raise NotFinite(f"{name}: holds values that are not finite")
        if trits_of(value) is not None:
            most = bounds.scale
        if size > most:
            raise OutOfBounds(f"{name}: {size:g} is more than {most:g}")
    return Accepted(message, meaning)

"""What a server accepts from a client: finite, and within bounds that follow the model it sent out.

A registered client is not a trusted one. What fails here is left out of the average, and the round's record says why.
What is merely unlikely is left to the aggregation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ternfed.algorithms.algorithm import Algorithm, Client, Network
from ternfed.algorithms.network import OneByOne
from ternfed.round.exchange import Broadcast
from ternfed.wire import Message, WireError, dense, trits_of

GROWTH = 10.0
"""In one round, a weight may become so many times as large as the largest of its tensor in the broadcast."""
BUFFER = 1e6
"""A buffer so many times; BatchNorm's statistics start from 0 and 1, whatever the data are."""
ROUNDING = 1 / 32
"""Changes rounded to eight bits may miss by this share of the largest, and make a small variance negative."""


class NotFinite(WireError):
    """An upload with a NaN or an infinity in it."""


class OutOfBounds(WireError):
    """An upload with a factor, a weight or a number that no honest client would send."""


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


def accepted(
    algorithm: Algorithm, network: Network, message: Message, broadcast: Broadcast, sender: Client, bounds: Bounds
) -> Message:
    """What an upload means to the aggregation, or the WireError that names what is wrong with it."""
    _check_numbers(message, network, bounds)
    meaning = algorithm.meaning(message, sender)
    for name, value in meaning.tensors.items():
        size, before = meaning.largest[name], broadcast.message.tensors.get(name)
        if not math.isfinite(size):
            raise NotFinite(f"{name}: holds values that are not finite")
        grown = broadcast.message.largest.get(name, 0.0)
        if trits_of(value) is not None:
            most = max(bounds.scale, GROWTH * grown)
        elif name in network.parameters:
            most = max(bounds.weight, GROWTH * grown)
        else:
            most = BUFFER * max(1.0, grown)
        if size > most:
            raise OutOfBounds(f"{name}: {size:g} is more than {most:g}")
        if name.endswith("running_var") and name in network.buffers:
            _check_variance(
                name, dense(value), None if name not in algorithm.changes or before is None else dense(before)
            )
    return meaning


def _check_numbers(message: Message, network: Network, bounds: Bounds) -> None:
    numbers, measure = message.numbers, network.task.metric.measure
    if not all(math.isfinite(number) for number in numbers.values()):
        raise NotFinite("one of its numbers is not finite")
    samples = numbers["samples"]
    if samples != int(samples) or not 1 <= samples <= bounds.samples:
        raise OutOfBounds(f"{samples:g} samples: a whole number from 1 to {bounds.samples} is accepted")
    score = numbers.get(measure.name)
    if score is not None and measure.percent and not 0 <= score <= 1:
        raise OutOfBounds(f"{measure.name} {score:g}: 0 to 1 is accepted")


def _check_variance(name: str, value: Tensor, before: Tensor | None) -> None:
    """Refuse variances below 0: networks take their roots."""
    if not value.numel():
        return
    lowest = float(value.min() if before is None else (before.double() + value.double()).min())
    slack = 0.0 if before is None else float(value.abs().max()) * ROUNDING
    if lowest < -slack:
        raise OutOfBounds(f"{name}: a variance of {lowest:g}")


def center_of(algorithm: Algorithm, broadcast: Broadcast) -> dict[str, Tensor]:
    """The tensors of an upload of a client that has learned nothing; of changes there is nothing to say."""
    told = OneByOne(broadcast.message)
    return {name: told[name] for name in told if name not in algorithm.changes}

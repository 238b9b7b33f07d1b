"""What an aggregation is: a value made of functions, and what it makes of a round's uploads.

    state = aggregation.begin()
    aggregation.add(state, client, message)     # for each upload, as it arrives
    uploads = aggregation.finish(state)

Whatever the order of arrival, the result is the same bits. A message without tensors only counts as skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ternfed.quantize.ternary import NonFiniteError
from ternfed.wire import Message, dense
from ternfed.wire import Value as Sent

LARGEST = torch.finfo(torch.float32).max
"""Averages are float32, so no float may be larger than its range."""
MOST_SAMPLES = 2**29
"""With so many samples the product of a float32 and a number of samples is still exact in float64."""

State = TypeVar("State")


class NotSummable(ValueError):
    """An upload that cannot be averaged exactly; the text names the tensor or the number."""


@dataclass(frozen=True, eq=False)
class Uploads:
    """What arrived in a round: one model made of all that were sent, and how many there were."""

    average: dict[str, Tensor]
    """float32, and whole numbers in the dtype they came in. Empty when no client sent a model."""
    numbers: Mapping[str, float]
    """One of each number that came with them, made by the same rule."""
    count: int
    skipped: int
    notes: Mapping[int, str] = field(default_factory=dict)
    """By client: what an upload was made to count as, where that is not what was sent."""
    spent: bool = False
    """Whether nobody will read the average again, so that its tensors may be written over."""


class Start(NamedTuple):
    """Where the clients of a round start from."""

    center: Mapping[str, Tensor]
    """The tensors that an upload would hold of a client that has learned nothing."""
    expected: int
    """So many uploads may come."""
    size: int = 0
    """Bytes of each in memory, at most; changes have no center whose size would tell."""


@dataclass(frozen=True)
class Aggregation(Generic[State]):
    """A rule by which uploads become one model."""

    name: str
    begin: Callable[[], State]
    """Before the first upload of a round."""
    add: Callable[[State, int, Message], None]
    """Take in the message of the client with this index; one that is refused leaves the state as it was."""
    finish: Callable[[State], Uploads]
    begin_at: Callable[[Start], State] | None = None
    """The same as `begin`, for a rule that asks where the clients started from."""


class Value(NamedTuple):
    """One tensor of an upload."""

    tensor: Tensor
    """Dense, in its own dtype."""
    largest: float
    """max|tensor|."""


def values_of(message: Message) -> dict[str, Value]:
    """The tensors of an upload; `NonFiniteError` or `NotSummable` names one that has no place in an average."""
    return {name: value_of(message, name) for name in message.tensors}


def value_of(message: Message, name: str) -> Value:
    """One of them: dense, all of a large upload are a whole model."""
    return _value(dense(message.tensors[name]), message.largest[name], name)


def holds_floats(value: Sent) -> bool:
    """Whether what it stands for are floats: trits and grids do, and most plain tensors."""
    return not isinstance(value, Tensor) or value.is_floating_point()


def check_values(message: Message) -> None:
    """Refuse an upload that `value_of` would refuse on the way; what floats it holds is not made dense."""
    for name, value in message.tensors.items():
        if holds_floats(value):
            _check_float(message.largest[name], name)


def samples_of(message: Message) -> int:
    """The number of samples that a client trained on."""
    samples = message.numbers["samples"]
    if not 0 <= samples <= MOST_SAMPLES or samples != int(samples):
        raise NotSummable(f"samples = {samples:g}: a whole number from 0 to {MOST_SAMPLES} is needed")
    return int(samples)


def median(numbers: Sequence[float]) -> float:
    """The middle one; of an even number, the lower of the two in the middle."""
    return sorted(numbers)[(len(numbers) - 1) // 2]


def refuse_second(client: int, known: Mapping[int, object]) -> None:
    """A client counts once per round."""
    if client in known:
        raise NotSummable(f"client {client} has sent an upload already")


def _value(tensor: Tensor, largest: float, name: str) -> Value:
    if not tensor.numel():
        return Value(tensor, 0)
    if not tensor.is_floating_point():
        low, high = (edge.item() for edge in torch.aminmax(tensor.byte() if tensor.dtype is torch.bool else tensor))
        return Value(tensor, max(-low, high))
    _check_float(largest, name)
    return Value(tensor, largest)


def _check_float(largest: float, name: str) -> None:
    if not math.isfinite(largest):
        raise NonFiniteError(f"{name} holds NaN or infinity and cannot be averaged")
    if largest > LARGEST:
        raise NotSummable(f"{name} holds {largest:g}, which is beyond float32, and cannot be averaged")

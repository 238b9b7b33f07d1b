"""The least and the most that a message of a schema can cost: made codes, really encoded.

Least: nothing has changed, every trit and every code is the one that was expected. Most: the receiver holds nothing,
and all that a slot may hold is equally likely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ternfed.quantize.grid import Grid
from ternfed.quantize.ternary import Ternary
from ternfed.wire import Kind, Message, Schema, Slot, Value, form_of
from ternfed.wire.schema import DTYPES

SPREAD = 16
"""Steps of a grid that differ by more than 2^±16 are not to be expected."""


@dataclass(frozen=True)
class Span:
    """What the codes of a slot were seen to be: from `low` to `high`, and the shares of them that were not 0."""

    low: int
    high: int
    least: float
    most: float

    def __or__(self, other: Span) -> Span:
        ends = min(self.low, other.low), max(self.high, other.high)
        return Span(*ends, min(self.least, other.least), max(self.most, other.most))

    @property
    def whole(self) -> tuple[int, int]:
        """All codes of as many bits. Seldom does a step fit so well that the largest of them occurs."""
        top = 2 ** max(-self.low, self.high).bit_length() - 1
        return (-top if self.low < 0 else 0), top


def spans_of(messages: Iterable[Message]) -> dict[str, Span]:
    """What the codes of each slot were, over all messages, where it has codes."""
    found: dict[str, Span] = {}
    for message in messages:
        parts = {name: form_of(value).parts(value) for name, value in message.tensors.items()}
        codes = {name: own["codes"] for name, own in parts.items() if "codes" in own and own["codes"].numel()}
        used = {name: int(own.count_nonzero()) for name, own in codes.items()}
        # An algorithm may choose among all slots together, and any of them may be the one.
        together = sum(used.values()) / max(sum(own.numel() for own in codes.values()), 1)
        for name, own in codes.items():
            low, high = (int(end) for end in torch.aminmax(own))
            share = used[name] / own.numel()
            span = Span(low, high, min(share, together), max(share, together))
            found[name] = found[name] | span if name in found else span
    return found


def least(schema: Schema, first: Mapping[str, Tensor]) -> Message:
    """The message that costs least. Floats keep one sign and one exponent; those that start alike stay alike."""
    source = torch.Generator().manual_seed(0)

    def value(slot: Slot) -> Value:
        match slot.kind:
            case Kind.TERNARY:
                return Ternary(torch.zeros(slot.shape, dtype=torch.int8), torch.ones(()), torch.ones(()))
            case Kind.GRID | Kind.GRID_ROWS:
                return Grid(torch.zeros(slot.shape, dtype=torch.int32), torch.zeros(_steps(slot), dtype=torch.int16))
        dtype = DTYPES[slot.kind]
        begun = first.get(slot.name)
        if (
            not dtype.is_floating_point
            or begun is None
            or (begun.numel() and bool((begun == begun.flatten()[0]).all()))
        ):
            return torch.zeros(slot.shape, dtype=dtype)
        return (1 + torch.rand(slot.shape, generator=source).clamp_max(0.99)).to(dtype)

    return _message(schema, value)


def most(schema: Schema, spans: Mapping[str, Span], weights: Iterable[str]) -> Message:
    """The message that costs most. Slots with `weights` may hold anything, all others as many zeros as were seen."""
    source, free = torch.Generator().manual_seed(0), frozenset(weights)

    def value(slot: Slot) -> Value:
        if slot.kind in DTYPES:
            return _noise(slot.shape, DTYPES[slot.kind], source)
        span = spans.get(slot.name, Span(-1, 1, 0.0, 1.0))
        low, high = (-1, 1) if slot.kind is Kind.TERNARY else span.whole
        low = -high if slot.name in free else low
        codes = torch.randint(low, high + 1, slot.shape, generator=source)
        if slot.name not in free:
            codes = _thinned(codes, span, 1 - 1 / max(high - low + 1, 1), source)
        if slot.kind is Kind.TERNARY:
            return Ternary(codes.to(torch.int8), torch.tensor(1.0), torch.tensor(0.5))
        steps = torch.randint(-SPREAD, SPREAD + 1, _steps(slot), generator=source)
        return Grid(codes.to(torch.int32), steps.to(torch.int16))

    return _message(schema, value)


def _thinned(codes: Tensor, span: Span, even: float, source: torch.Generator) -> Tensor:
    """With the share of codes other than 0 that costs most (`even`), but no more and no fewer than were seen."""
    share = min(max(even, span.least), 1.02 * span.most + 0.01)
    drawn = torch.rand(codes.shape, generator=source)
    if share < even:
        return torch.where(drawn < share / even, codes, 0)
    signs = torch.randint(2, codes.shape, generator=source) * 2 - 1 if span.low < 0 else 1
    filled = (share - even) / (1 - even) if even < 1 else 0.0
    return torch.where((codes == 0) & (drawn < filled), signs, codes)


def _noise(shape: tuple[int, ...], dtype: torch.dtype, source: torch.Generator) -> Tensor:
    """Random bytes; a bool is 0 or 1."""
    if dtype is torch.bool:
        return torch.randint(2, shape, generator=source).bool()
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(256, (size,), generator=source, dtype=torch.uint8).view(dtype).reshape(shape)


def _steps(slot: Slot) -> tuple[int, ...]:
    return slot.shape[:1] if slot.kind is Kind.GRID_ROWS else ()


def _message(schema: Schema, value: Callable[[Slot], Value]) -> Message:
    return Message({slot.name: value(slot) for slot in schema.slots}, dict.fromkeys(schema.numbers, 1.0))

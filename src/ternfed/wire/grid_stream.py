"""The numbers of all grid slots as one stream of `ans`: groups of slots, a model for each, then the words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import constriction
import numpy as np

from ternfed.quantize.grid import LOWEST
from ternfed.wire import varint
from ternfed.wire.ans import coder_from_bytes, coder_to_bytes
from ternfed.wire.errors import ImpossibleCount, TrailingBytes, Truncated, WrongValue
from ternfed.wire.groups import FINE, groups_of
from ternfed.wire.held_grids import Layout
from ternfed.wire.numbers import BLOCK, Histogram, Model, Numbers, histogram, joined, pop, push, read_model


@dataclass(frozen=True, eq=False)
class Plan:
    """The groups of some slots and their models."""

    groups: list[int]
    models: list[Model]


def roughly(found: Sequence[Histogram]) -> float:
    """Bits of some slots with one model for all of them: enough to tell which of two lists is the smaller one."""
    return joined(found).model(FINE).bits if found else 0.0


def needs_more(pieces: Iterable[Numbers], bits: float) -> bool:
    """Whether `roughly` certainly exceeds this, by the bits below the buckets alone: a quick no to a useless reference.

    A number of 2^k or more has at least k - FINE such bits.
    """
    below = 0
    for numbers in pieces:
        sizes, least = np.abs(numbers), 2 << FINE
        while below <= bits and (beyond := int(np.count_nonzero(sizes >= least))):
            below += beyond
            least <<= 1
    return below > bits


def plan(found: Sequence[Histogram]) -> Plan:
    """Groups and models for slots with these numbers."""
    groups = groups_of(found)
    members: list[list[Histogram]] = [[] for _ in range(max(groups, default=0) + 1)]
    for group, each in zip(groups, found, strict=True):
        members[group].append(each)
    return Plan(groups, [(joined(each) if each else histogram([_NONE])).best() for each in members])


def write(numbers: Numbers, exponents: Numbers, planned: Plan, layout: Layout) -> bytes:
    """Base of the exponents, groups, models, then the words of one stream for all lists."""
    lists, models, base = lists_of(numbers, planned.groups, layout), planned.models, b""
    if len(exponents):
        found = histogram([exponents])
        middle = int(found.values[found.counts.argmax()])
        around = Histogram(found.values - middle, found.counts)
        lists, models = [exponents - np.int32(middle), *lists], [around.best(), *models]
        base = bytes([middle - LOWEST])
    coder = constriction.stream.stack.AnsCoder()
    # The coder is a stack: what is to come out first goes in last.
    for each, model in zip(reversed(lists), reversed(models), strict=True):
        push(coder, each, model)
    head = base + write_groups(planned.groups, len(planned.models)) + b"".join(model.write() for model in models)
    return head + coder_to_bytes(coder)


def read(data: memoryview, layout: Layout) -> tuple[Numbers, Numbers]:
    """Exponents, and the numbers of all slots end to end."""
    total, slots, at, base = sum(layout.steps), len(layout.sizes), 0, 0
    if total:
        if not len(data):
            raise Truncated("no base of the exponents")
        base, at = data[0] + LOWEST, 1
    groups, count, at = _read_groups(data, at, slots)
    members = _members(groups, count)
    sizes = [sum(layout.sizes[place] for place in places) for places in members]
    models = []
    for length in [total, *sizes] if total else sizes:
        model, at = read_model(data, at, length)
        models.append(model)
    coder = coder_from_bytes(data[at:])
    exponents = pop(coder, total, models.pop(0)) + np.int32(base) if total else _NONE
    is_small = layout.total > BLOCK and all(model.fits_a_byte for model in models)
    dtype = np.int8 if is_small else np.int32
    lists = [pop(coder, size, model, dtype) for size, model in zip(sizes, models, strict=True)]
    if not coder.is_empty():
        raise TrailingBytes("the stream goes on after the last number")
    return exponents, lists[0] if count == 1 else _in_order(lists, members, layout)


_NONE = np.empty(0, np.int32)


def _members(groups: Sequence[int], count: int) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in range(count)]
    for place, group in enumerate(groups):
        members[group].append(place)
    return members


def lists_of(numbers: Numbers, groups: Sequence[int], layout: Layout) -> list[Numbers]:
    """The numbers of each group, slot by slot."""
    count = max(groups, default=0) + 1
    if count == 1:
        return [numbers]
    starts, sizes = _starts(layout), layout.sizes
    return [
        np.concatenate([numbers[starts[place] : starts[place] + sizes[place]] for place in places])
        for places in _members(groups, count)
    ]


def _in_order(lists: Sequence[Numbers], members: Sequence[Sequence[int]], layout: Layout) -> Numbers:
    """The inverse of `lists_of`."""
    starts, out = _starts(layout), np.empty(layout.total, lists[0].dtype)
    for flat, places in zip(lists, members, strict=True):
        stop = 0
        for place in places:
            start, stop = stop, stop + layout.sizes[place]
            out[starts[place] :][: layout.sizes[place]] = flat[start:stop]
    return out


def _starts(layout: Layout) -> list[int]:
    return [0, *accumulate(layout.sizes)]


def write_groups(groups: Sequence[int], count: int) -> bytes:
    """How many there are; with more than one also that of each slot, in as few bits as the last needs."""
    if count == 1:
        return varint.write(1)
    places = np.arange((count - 1).bit_length())
    bits = (np.array(groups)[:, None] >> places & 1).astype(np.uint8)
    return varint.write(count) + np.packbits(bits, bitorder="little").tobytes()


def _read_groups(data: memoryview, at: int, slots: int) -> tuple[list[int], int, int]:
    """The group of each slot, how many groups there are, and where the next thing starts."""
    count, at = varint.read(data, at)
    if not 1 <= count <= max(slots, 1):
        raise ImpossibleCount(f"{count} groups of {slots} tensors")
    if count == 1:
        return [0] * slots, 1, at
    width = (count - 1).bit_length()
    stop = at + -(-width * slots // 8)
    if stop > len(data):
        raise Truncated("the bytes end within the groups")
    bits = np.unpackbits(np.frombuffer(data[at:stop], np.uint8), bitorder="little")
    groups = bits[: width * slots].reshape(slots, width) @ (1 << np.arange(width))
    if groups.max() >= count or bits[width * slots :].any():
        raise WrongValue(f"a group that is not one of {count}")
    return groups.tolist(), count, stop

"""Where the numbers of all grid slots lie when they stand end to end, and what a reference holds for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ternfed.quantize.grid import LARGEST
from ternfed.wire.form import Slots
from ternfed.wire.numbers import BLOCK, Numbers
from ternfed.wire.schema import Kind, Slot


class Layout(NamedTuple):
    """Grid slots end to end."""

    sizes: tuple[int, ...]
    """Numbers of each slot."""
    steps: tuple[int, ...]
    """Exponents of each slot."""
    lengths: NDArray[np.int64]
    """How many numbers each exponent stands for."""
    ends: NDArray[np.int64]
    """Where they end."""
    total: int
    """Numbers in all."""

    def along(self, of_exponents: NDArray[np.float64], start: int, stop: int) -> NDArray[np.float64]:
        """One number for each exponent, as it goes with the numbers from start to stop."""
        if stop - start == self.total:
            return np.repeat(of_exponents, self.lengths)
        first, last = (int(place) for place in np.searchsorted(self.ends, (start, stop - 1), side="right"))
        lengths = self.lengths[first : last + 1].copy()
        lengths[0] -= start - (self.ends[first] - self.lengths[first])
        lengths[-1] -= self.ends[last] - stop
        return np.repeat(of_exponents[first : last + 1], lengths)


def exponents_shape(slot: Slot) -> tuple[int, ...]:
    """The shape of a slot's exponents."""
    return slot.shape[:1] if slot.kind is Kind.GRID_ROWS else ()


def exponents_of(slot: Slot) -> int:
    """How many exponents a slot has."""
    return slot.shape[0] if slot.kind is Kind.GRID_ROWS else 1


@lru_cache(64)
def layout_of(slots: Slots) -> Layout:
    """How these slots lie; the same for every message of a schema."""
    sizes = tuple(slot.size for slot in slots)
    steps = tuple(exponents_of(slot) for slot in slots)
    rows = [np.full(count, size // max(count, 1)) for size, count in zip(sizes, steps, strict=True)]
    lengths = np.concatenate(rows) if rows else np.empty(0, np.int64)
    return Layout(sizes, steps, lengths, np.cumsum(lengths), sum(sizes))


@dataclass(frozen=True, eq=False)
class HeldGrids:
    """What a reference has for the grid slots: finite float32 numbers end to end, 0 where it has nothing."""

    slots: Slots
    flat: NDArray[np.float32]
    has: tuple[bool, ...]
    """Whether it has something, for each slot."""

    @cached_property
    def digest(self) -> bytes:
        """8 bytes of BLAKE2b over a byte per slot and the numbers of those that are held."""
        state, stop = blake2b(digest_size=8), 0
        for size, held in zip(layout_of(self.slots).sizes, self.has, strict=True):
            start, stop = stop, stop + size
            state.update(b"\1" if held else b"\0")
            if held:
                state.update(self.flat[start:stop].astype("<f4", copy=False).data)
        return state.digest()

    def nearest(self, exponents: Numbers) -> Numbers:
        """The codes to expect on grids with these exponents, of all slots end to end; for many messages, a row each."""
        layout = layout_of(self.slots)
        if exponents.ndim > 1:
            if layout.total > BLOCK:
                return np.stack([self.nearest(row) for row in exponents])
            steps = self.flat * np.repeat(np.ldexp(1.0, -exponents), layout.lengths, axis=1)
            codes: Numbers = np.rint(steps, out=steps).clip(-LARGEST, LARGEST).astype(np.int32)
            return codes
        out = np.empty(layout.total, np.int32)
        for own, codes in self.blocks(exponents):
            out[own] = codes
        return out

    def blocks(self, exponents: Numbers, first: int = 0, last: int | None = None) -> Iterator[tuple[slice, Numbers]]:
        """The same for one message, some numbers at a time, from one to another: all of a large one are a model."""
        layout, scales = layout_of(self.slots), np.ldexp(1.0, -exponents)
        last = layout.total if last is None else last
        for start in range(first, last, BLOCK):
            stop = min(start + BLOCK, last)
            steps = self.flat[start:stop] * layout.along(scales, start, stop)
            yield slice(start, stop), np.rint(steps, out=steps).clip(-LARGEST, LARGEST).astype(np.int32)

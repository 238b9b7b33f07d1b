"""Trits that both sides already hold, and the trits of one message beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ternfed.wire.trits import SPAN, VALUES, Codes, count, pack

MOST_KEPT = 1 << 23
"""References beyond this many trits look for the places of a value each time: 8 bytes per trit would be too many."""


@dataclass(frozen=True, eq=False)
class HeldTrits:
    """The codes of every ternary slot of a reference end to end, and a digest of them.

    Those that serve for many messages keep, once found, the digest and the places of each value.
    """

    codes: Codes
    sizes: tuple[int, ...]
    keep: bool = True

    @cached_property
    def digest(self) -> bytes:
        """8 bytes of BLAKE2b over the planar base-3 bytes of the codes."""
        return blake2b(pack(self.codes).data, digest_size=8).digest()

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """How often each of -1, 0, +1 occurs in each tensor: shape (3, tensors)."""
        return count(self.codes, self.sizes).T

    @cached_property
    def _kept(self) -> tuple[list[NDArray[np.intp]], ...]:
        return tuple(list(self._places(value)) for value in VALUES)

    def _places(self, value: int) -> Iterator[NDArray[np.intp]]:
        for at in range(0, len(self.codes), SPAN):
            yield np.flatnonzero(self.codes[at : at + SPAN] == value)

    def _walk(self) -> Iterator[tuple[slice, NDArray[np.intp], slice]]:
        """Where each block's trits lie, value by value: the block, the places in it, their place when ordered."""
        end = 0
        for column, value in enumerate(VALUES):
            places = self._kept[column] if self.keep and len(self.codes) <= MOST_KEPT else self._places(value)
            for block, inside in enumerate(places):
                start, end = end, end + len(inside)
                yield slice(block * SPAN, (block + 1) * SPAN), inside, slice(start, end)

    @cached_property
    def kept_order(self) -> NDArray[np.uint32] | None:
        """The place of each code when ordered, for those that serve for many messages; None: it is too long to keep."""
        if not self.keep or len(self.codes) > MOST_KEPT:
            return None
        return np.concatenate([np.flatnonzero(self.codes == value).astype(np.uint32) for value in VALUES])

    def order(self, codes: Codes) -> Codes:
        """Codes put together by the reference's trit at their place: first those at its -1, then 0, then +1."""
        out = np.empty_like(codes)
        for block, inside, ordered in self._walk():
            codes[block].take(inside, out=out[ordered], mode="clip")
        return out

    def restore(self, codes: Codes) -> Codes:
        """The inverse of `order`."""
        out = np.empty_like(codes)
        for block, inside, ordered in self._walk():
            out[block][inside] = codes[ordered]
        return out


@dataclass(frozen=True, eq=False)
class Trits:
    """The trits of one message, all tensors end to end, and the held ones they may be coded with."""

    codes: Codes
    sizes: tuple[int, ...]
    reference: HeldTrits | None = None

    @cached_property
    def ordered(self) -> Codes:
        """The codes with those of one context together."""
        return self.codes if self.reference is None else self.reference.order(self.codes)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How often -1, 0, +1 occur: shape (contexts, tensors, 3); one context, or the reference's three trits."""
        runs = runs_of(self.sizes, self.reference)
        return count(self.ordered, tuple(runs.reshape(-1).tolist())).reshape(*runs.shape, 3)


def runs_of(sizes: tuple[int, ...], reference: HeldTrits | None) -> NDArray[np.int64]:
    """Lengths of the runs of ordered trits that share context and tensor: shape (contexts, tensors)."""
    return np.array([sizes], np.int64) if reference is None else reference.runs

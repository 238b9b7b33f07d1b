"""Which slots of a message share a model: those whose numbers are spread alike, where models pay for themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ternfed.wire.numbers import Histogram, symbols_of

FINE = 2
"""How fine the buckets are by which slots are compared."""
MOST_PIECES = 96
"""Slots that are neighbours in the order of their spread are taken together beyond this."""
TOGETHER = 1 << 16
"""Up to so many counts, all groups that there could be are judged in one go."""


def groups_of(slots: Sequence[Histogram]) -> list[int]:
    """The group of each slot, 0 upwards, so that all numbers and models together take the fewest bits.

    Slots are put in the order of their mean bucket, and that order is cut where it pays: the best cuts of the first j
    pieces are the best of the first i and one more group.
    """
    if len(slots) < 2:
        return [0] * len(slots)
    table = _table(slots)
    middle = table.shape[1] // 2
    spread = table @ np.abs(np.arange(table.shape[1]) - middle) / np.maximum(table.sum(axis=1), 1)
    order = np.argsort(spread, kind="stable")
    count = min(len(order), MOST_PIECES)
    edges = [len(order) // count * piece + min(piece, len(order) % count) for piece in range(count + 1)]
    sums = np.zeros((count + 1, table.shape[1]), np.int64)
    np.add.reduceat(table[order], edges[:-1], axis=0).cumsum(axis=0, out=sums[1:])
    best, came_from = [0.0], [0]
    for bits in _pieces_bits(sums):
        totals = [own + before for own, before in zip(bits, best, strict=True)]
        best.append(min(totals))
        came_from.append(totals.index(best[-1]))
    # Every slot says which group it is in, for about a bit and a half.
    if best[-1] + 1.5 * len(slots) >= bits[0]:
        return [0] * len(slots)
    group, stop, out = 0, count, np.zeros(len(slots), np.int64)
    while stop:
        start = came_from[stop]
        out[order[edges[start] : edges[stop]]] = group
        group, stop = group + 1, start
    return [int(number) for number in out]


def _pieces_bits(sums: NDArray[np.int64]) -> Iterator[list[float]]:
    """For each piece but none: the bits of a group that ends with it, by where the group starts."""
    ends = len(sums)
    if ends * ends * sums.shape[1] > TOGETHER:
        for stop in range(1, ends):
            yield _bits(sums[stop] - sums[:stop]).tolist()
        return
    every = _bits((sums[1:, None] - sums[None, :-1]).clip(0).reshape(-1, sums.shape[1])).tolist()
    for stop in range(1, ends):
        yield every[(stop - 1) * (ends - 1) :][:stop]


def _table(slots: Sequence[Histogram]) -> NDArray[np.int64]:
    """Counts of the buckets of each slot, zero in the middle column."""
    symbols = symbols_of(np.concatenate([slot.values for slot in slots]), FINE)[0]
    counts = np.concatenate([slot.counts for slot in slots])
    reach = int(np.abs(symbols).max(initial=0))
    width = 2 * reach + 1
    middles = np.arange(reach, len(slots) * width, width)
    places = symbols + np.repeat(middles, [len(slot.values) for slot in slots])
    table = np.bincount(places, weights=counts, minlength=len(slots) * width)
    return table.astype(np.int64).reshape(len(slots), width)


def _bits(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each row: its entropy, and one or two bytes for each count."""
    totals = counts.sum(axis=1)
    entropy = totals * np.log2(np.maximum(totals, 1)) - (counts * np.log2(np.maximum(counts, 1))).sum(axis=1)
    out: NDArray[np.float64] = entropy + 8.0 * (2 + (counts > 0).sum(axis=1) + (counts > 127).sum(axis=1))
    return out

"""Which slots of a message share a model: those whose numbers are spread alike, where models pay for themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ternfed.wire.numbers import Histogram, symbols_of, weighed

FINE = 2
"""How fine the buckets are by which slots are compared."""
MOST_PIECES = 96
"""Slots that are neighbours in the order of their spread are taken together beyond this."""


def groups_of(slots: Sequence[Histogram]) -> list[int]:
    """The group of each slot, 0 upwards, so that all numbers and models together take the fewest bits."""
    return groups_of_each(_table(slots)[None])[0] if len(slots) > 1 else [0] * len(slots)


def groups_of_each(tables: NDArray[np.int64]) -> list[list[int]]:
    """The same for each of many messages: counts of shape (messages, slots, buckets), zero in the middle bucket.

    Slots are put in the order of their mean bucket, and that order is cut where it pays: the best cuts of the first j
    pieces are the best of the first i and one more group.
    """
    messages, slots, buckets = tables.shape
    if slots < 2:
        return [[0] * slots for _ in range(messages)]
    spread = tables @ np.abs(np.arange(buckets) - buckets // 2) / np.maximum(tables.sum(axis=2), 1)
    order = np.argsort(spread, axis=1, kind="stable")
    count = min(slots, MOST_PIECES)
    edges = [slots // count * piece + min(piece, slots % count) for piece in range(count + 1)]
    sums = np.zeros((messages, count + 1, buckets), np.int64)
    sorted_tables = np.take_along_axis(tables, order[:, :, None], axis=1)
    np.add.reduceat(sorted_tables, edges[:-1], axis=1).cumsum(axis=1, out=sums[:, 1:])
    best, came_from = np.zeros((messages, count + 1)), np.zeros((messages, count + 1), np.int64)
    for stop in range(1, count + 1):
        bits = _bits(sums[:, stop, None] - sums[:, :stop])
        totals = bits + best[:, :stop]
        came_from[:, stop] = totals.argmin(axis=1)
        best[:, stop] = totals.min(axis=1)
    # Every slot says which group it is in, for about a bit and a half.
    pays = (best[:, -1] + 1.5 * slots < bits[:, 0]).tolist()
    return [_cut(order[row], came_from[row].tolist(), edges) if pays[row] else [0] * slots for row in range(messages)]


def _cut(order: NDArray[np.int64], came_from: Sequence[int], edges: Sequence[int]) -> list[int]:
    """The groups of slots in this order, by where the last of the first j pieces' groups starts."""
    group, stop, out = 0, len(edges) - 1, np.zeros(len(order), np.int64)
    while stop:
        start = came_from[stop]
        out[order[edges[start] : edges[stop]]] = group
        group, stop = group + 1, start
    return [int(number) for number in out]


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
    """Along the last axis: the entropy, and one or two bytes for each count."""
    entropy = weighed(counts.sum(axis=-1)) - weighed(counts).sum(axis=-1)
    out: NDArray[np.float64] = entropy + 8.0 * (2 + (counts > 0).sum(axis=-1) + (counts > 127).sum(axis=-1))
    return out

"""Which slots of a message share a model: those whose numbers are spread alike, where models pay for themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ternfed.wire.numbers import Histogram

FINE = 2
"""How fine the buckets are by which slots are compared."""
MOST_PIECES = 96
"""Slots that are neighbours in the order of their spread are taken together beyond this."""


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
    pieces = np.array_split(order, min(len(order), MOST_PIECES))
    sums = np.cumsum([np.zeros(table.shape[1], np.int64), *(table[piece].sum(axis=0) for piece in pieces)], axis=0)
    best, came_from = [0.0], [0]
    for stop in range(1, len(sums)):
        bits = _bits(sums[stop] - sums[:stop]) + np.array(best)
        came_from.append(int(bits.argmin()))
        best.append(float(bits.min()))
    # Every slot says which group it is in, for about a bit and a half.
    if best[-1] + 1.5 * len(slots) >= _bits(sums[-1:])[0]:
        return [0] * len(slots)
    group, stop, out = 0, len(pieces), np.zeros(len(slots), np.int64)
    while stop:
        start = came_from[stop]
        out[np.concatenate(pieces[start:stop])] = group
        group, stop = group + 1, start
    return [int(number) for number in out]


def _table(slots: Sequence[Histogram]) -> NDArray[np.int64]:
    """Counts of the buckets of each slot, zero in the middle column."""
    models = [slot.model(FINE) for slot in slots]
    reach = max(max(model.low, len(model.counts) - 1 - model.low) for model in models)
    table = np.zeros((len(models), 2 * reach + 1), np.int64)
    for row, model in zip(table, models, strict=True):
        row[reach - model.low :][: len(model.counts)] = model.counts
    return table


def _bits(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each row: its entropy, and one or two bytes for each count."""
    totals = counts.sum(axis=1)
    entropy = totals * np.log2(np.maximum(totals, 1)) - (counts * np.log2(np.maximum(counts, 1))).sum(axis=1)
    out: NDArray[np.float64] = entropy + 8.0 * (2 + (counts > 0).sum(axis=1) + (counts > 127).sum(axis=1))
    return out

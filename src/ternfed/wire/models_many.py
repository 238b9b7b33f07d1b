"""The models of many lists of small whole numbers at once: for each, what `Histogram.best` would choose."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import constriction
import numpy as np
from numpy.typing import NDArray

from ternfed.wire import varint
from ternfed.wire.ans import PRECISION
from ternfed.wire.numbers import FINEST, Numbers, push_coarse, symbols_of, weighed

Table = NDArray[np.int64]
"""(lists, values): how often each of the values from -reach to reach occurs in each list."""


class Ready(NamedTuple):
    """A model that is ready for use."""

    written: bytes
    """As `Model.write` has it."""
    fine: int
    low: int
    weights: NDArray[np.float64]
    """Of its buckets; no more than one where there is nothing to code."""
    coarse: bool
    """Whether one of its buckets is shared by several numbers."""


class _Buckets(NamedTuple):
    """The buckets of the values from -reach to reach."""

    first: NDArray[np.int64]
    """The column of each bucket's first value."""
    below: NDArray[np.int64]
    """Of each value, the bits that say which of its bucket it is."""
    highest: int


@lru_cache(64)
def _buckets(reach: int, fine: int) -> _Buckets:
    symbols, below = symbols_of(np.arange(-reach, reach + 1), fine)
    return _Buckets(np.flatnonzero(np.diff(symbols, prepend=symbols[0] - 1)), below, int(symbols[-1]))


Found = tuple[Table, NDArray[np.int64], NDArray[np.int64]]
"""Of buckets that fine: how often each occurs in each list, and the lowest and highest that do."""


def best_of_each(table: Table) -> Iterator[Ready]:
    """The model with which each list is smallest, the coarsest of several."""
    choice, kept = fines_of_each(table)
    chosen = [_ready(kept[fine - 1], np.flatnonzero(choice == fine), fine) for fine in range(1, len(kept) + 1)]
    rows = [iter(part) for part in chosen]
    for fine in choice.tolist():
        yield next(rows[fine - 1])


def fines_of_each(table: Table) -> tuple[NDArray[np.int64], list[Found]]:
    """How fine those models are; and the buckets of all lists, for each fineness that was tried."""
    reach = table.shape[1] // 2
    totals = table.sum(axis=1)
    entropy_of = weighed(np.arange(int(totals.max(initial=0)) + 1))
    least, choice = np.full(len(table), np.inf), np.zeros(len(table), np.int64)
    kept: list[Found] = []
    for fine in range(1, FINEST + 1):
        buckets = _buckets(reach, fine)
        counts = np.add.reduceat(table, buckets.first, axis=1)
        low, high = (np.where(counts > 0, ends, 0).max(axis=1) for ends in _ends(buckets.highest))
        # Those beyond the last that is there are not written, and are all zero.
        long = (counts > 127).astype(np.int64) + (counts > 16383)
        long[:, buckets.highest] = 0
        written = 2 + low + high + long.sum(axis=1) + (8 * low + fine > 128) + (high > 127)
        bits = entropy_of[totals] - entropy_of[counts].sum(axis=1) + table @ buckets.below + 8 * written
        better = bits < least
        least[better], choice[better] = bits[better], fine
        kept.append((counts, low, high))
        if reach < 2 << fine:  # finer than one bucket per number changes nothing
            break
    return choice, kept


def _ends(highest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ends = np.arange(-highest, highest + 1)
    return -ends, ends


def _ready(found: Found, rows: NDArray[np.int64], fine: int) -> Iterator[Ready]:
    """The models of these lists with buckets that fine; weights as in `numbers.weights`."""
    counts, lows, highs = (part[rows] for part in found)
    zero, totals = counts.shape[1] // 2, np.maximum(counts.sum(axis=1), 1)
    free = PRECISION - (lows + highs + 1)
    weights = free[:, None] * counts // totals[:, None]
    weights[np.arange(len(rows)), counts.argmax(axis=1)] += free - weights.sum(axis=1)
    floats = weights.astype(np.float64)
    for row, (low, high) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True)):
        head = varint.write(8 * low + fine - 1) + varint.write(high)
        own = counts[row, zero - low : zero].tolist() + counts[row, zero + 1 : zero + high + 1].tolist()
        yield Ready(
            head + varint.write_many(own),
            fine,
            low,
            floats[row, zero - low : zero + high + 1],
            max(low, high) >= 2 << fine,
        )


def push(coder: Any, numbers: Numbers, model: Ready) -> None:
    """Put a list on the coder's stack, as `numbers.push` does."""
    if len(model.weights) == 1:
        return
    categorical = constriction.stream.model.Categorical(model.weights, perfect=False)
    if model.coarse:
        push_coarse(coder, numbers, model.fine, model.low, categorical)
    else:
        coder.encode_reverse(numbers + np.int32(model.low), categorical)

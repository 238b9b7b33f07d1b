"""Many small messages of one schema on grids, coded together: what is counted is counted for all of them at once.

The bytes are those of `grid.py`, message by message. A message that does not fit here, with large codes or a reference
that may help, is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import constriction
import numpy as np
from numpy.typing import NDArray

from ternfed.quantize.grid import HIGHEST, LOWEST
from ternfed.wire.ans import coder_to_bytes
from ternfed.wire.form import Slots
from ternfed.wire.grid_stream import lists_of, write_groups
from ternfed.wire.groups import FINE, MOST_PIECES, groups_of_each
from ternfed.wire.held_grids import HeldGrids, layout_of
from ternfed.wire.models_many import best_of_each, push
from ternfed.wire.numbers import BLOCK, Model, Numbers, symbols_of, weighed

REACH = (2 << FINE) - 1
"""The largest code: up to here every number is a bucket by itself."""
VALUES = np.arange(-REACH, REACH + 1)


def fit_together(slots: Slots, codes: Numbers, exponents: Numbers) -> bool:
    """Whether messages with these numbers, one in each row, can be coded together."""
    if not 0 < codes.shape[1] <= BLOCK or not 0 < len(slots) <= MOST_PIECES or not exponents.shape[1]:
        return False
    within = codes.min() >= -REACH and codes.max() <= REACH
    return bool(within and exponents.min() >= LOWEST and exponents.max() <= HIGHEST)


def streams(slots: Slots, codes: Numbers, exponents: Numbers, held: HeldGrids | None) -> Iterator[bytes | None]:
    """The stream of each message without a reference; None where what is held may help."""
    layout = layout_of(slots)
    table = _counts(codes, layout.sizes)
    alone = np.ones(len(codes), bool) if held is None else _useless(codes, exponents, held, table.sum(axis=1))
    groups = groups_of_each(table)
    counts = [max(each) + 1 for each in groups]
    models, middles, around = best_of_each(_by_group(table, groups, counts)), *_around(exponents)
    for row, of_steps in enumerate(best_of_each(_table(around))):
        own = list(islice(models, counts[row]))
        if not alone[row]:
            yield None
            continue
        coder = constriction.stream.stack.AnsCoder()
        # The coder is a stack: what is to come out first goes in last.
        for each, model in zip(reversed(lists_of(codes[row], groups[row], layout)), reversed(own), strict=True):
            push(coder, each, model)
        push(coder, around[row], of_steps)
        head = [bytes([middles[row] - LOWEST]), write_groups(groups[row], counts[row]), of_steps.written]
        yield b"".join((*head, *(model.written for model in own), coder_to_bytes(coder)))


def _by_group(table: NDArray[np.int64], groups: Sequence[Sequence[int]], counts: Sequence[int]) -> NDArray[np.int64]:
    """How often each value occurs in each group of each message, one message after another."""
    ends = np.cumsum(counts)
    out = np.zeros((ends[-1], table.shape[2]), np.int64)
    places = np.array(groups, np.int64) + (ends - np.array(counts, np.int64))[:, None]
    np.add.at(out, places.reshape(-1), table.reshape(-1, table.shape[2]))
    return out


def _around(exponents: Numbers) -> tuple[list[int], Numbers]:
    """The commonest exponent of each message, and how all differ from it."""
    low = int(exponents.min())
    width = int(exponents.max()) - low + 1
    places = exponents - low + (np.arange(len(exponents)) * width)[:, None]
    table = np.bincount(places.reshape(-1), minlength=len(exponents) * width).reshape(-1, width)
    middles = table.argmax(axis=1) + low
    return middles.tolist(), (exponents - middles[:, None]).astype(np.int32)


def _table(numbers: Numbers) -> NDArray[np.int64]:
    """How often each value occurs in each row, zero in the middle."""
    reach = int(np.abs(numbers).max())
    width = 2 * reach + 1
    places = numbers + (np.arange(len(numbers)) * width + reach)[:, None]
    return np.bincount(places.reshape(-1), minlength=len(numbers) * width).reshape(-1, width)


def _counts(codes: Numbers, sizes: Sequence[int]) -> NDArray[np.int64]:
    """How often each value occurs in each slot of each message: (messages, slots, values)."""
    width, slots = len(VALUES), len(sizes)
    starts = np.arange(REACH, slots * width, width)
    places = codes + np.repeat(starts, sizes) + (np.arange(len(codes)) * (slots * width))[:, None]
    return np.bincount(places.reshape(-1), minlength=len(codes) * slots * width).reshape(len(codes), slots, width)


def _useless(codes: Numbers, exponents: Numbers, held: HeldGrids, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For which messages the reference certainly saves less than its digest costs, as `grid_stream.needs_more` says."""
    limits, below = _roughly(counts) - 64, np.zeros(len(codes))
    differences = codes - held.nearest(exponents)
    sizes, least = np.abs(differences), 2 << FINE
    while (below <= limits).any() and (beyond := (sizes >= least).sum(axis=1)).any():
        below += beyond
        least <<= 1
    useless: NDArray[np.bool_] = below > limits
    for row in np.flatnonzero(~useless):
        model = _bucketed(differences[row])
        useless[row] = model.bits >= limits[row]
    return useless


def _bucketed(numbers: Numbers) -> Model:
    """What `Histogram.model` makes of these numbers."""
    symbols = symbols_of(numbers, FINE)[0]
    low = max(0, -int(symbols.min()))
    return Model(FINE, low, np.bincount(symbols + low, minlength=low + 1))


def _roughly(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """What `grid_stream.roughly` says of each message, by how often each value occurs in it."""
    lows, highs = (np.where(counts > 0, ends, 0).max(axis=1)[:, None] for ends in (-VALUES, VALUES))
    written = (-lows <= VALUES) & (highs >= VALUES) & (VALUES != 0)
    lengths = 1 + sum((counts >= 1 << bits).astype(np.int64) for bits in (7, 14))
    entropy = weighed(counts.sum(axis=1)) - weighed(counts).sum(axis=1)
    out: NDArray[np.float64] = entropy + 8.0 * (2 + (written * lengths).sum(axis=1))
    return out

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

from ternfed.quantize.grid import HIGHEST, LARGEST, LOWEST
from ternfed.wire.ans import coder_to_bytes
from ternfed.wire.fast_ans import grid_loops
from ternfed.wire.form import Buffer, Slots
from ternfed.wire.grid_stream import lists_of, read, write_groups
from ternfed.wire.groups import FINE, MOST_PIECES, groups_of_each
from ternfed.wire.held_grids import HeldGrids, Layout, layout_of
from ternfed.wire.models_many import best_of_each, fines_of_each, push
from ternfed.wire.numbers import BLOCK, FINEST, MOST, Model, Numbers, bounds, bucket_of, symbols_of, weighed

REACH = (2 << FINE) - 1
"""The largest code: up to here every number is a bucket by itself."""
VALUES = np.arange(-REACH, REACH + 1)
MANY = 64
"""Messages for which compiled loops are worth loading."""
HIGHEST_BUCKETS = np.array([0, *(bucket_of(MOST, fine) for fine in range(1, FINEST + 1))])
"""By fineness, the bucket of the largest number there is."""


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
    if len(codes) >= MANY and grid_loops() is not None:
        yield from _compiled(codes, exponents, groups, counts, table, layout, alone)
        return
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


def _compiled(
    codes: Numbers,
    exponents: Numbers,
    groups: Sequence[Sequence[int]],
    counts: Sequence[int],
    table: NDArray[np.int64],
    layout: Layout,
    alone: NDArray[np.bool_],
) -> Iterator[bytes | None]:
    """The rest of `streams` in one loop."""
    middles, around = _around(exponents)
    of_groups = fines_of_each(_by_group(table, groups, counts))[0]
    # The list of a message's exponents stands before those of its groups.
    before = np.cumsum(counts) - np.array(counts)
    fines = np.insert(of_groups, before, fines_of_each(_table(around))[0])
    # A number takes 24 bits, and 8 below its bucket, at most; a count of a model three bytes.
    room = 4 * (codes.shape[1] + exponents.shape[1] + 8) + 8 * len(layout.sizes)
    room += int(max(counts)) * (3 * len(VALUES) + 8) + 3 * (2 * int(np.abs(around).max()) + 1) + 8
    out, lengths = np.empty((len(codes), room), np.uint8), np.empty(len(codes), np.int64)
    grid_loops().write_many(
        codes,
        around,
        np.array(middles) - LOWEST,
        np.array(groups, np.int64),
        np.array(counts, np.int64),
        np.array(layout.sizes, np.int64),
        fines,
        out,
        lengths,
    )
    for row, length in enumerate(lengths.tolist()):
        yield out[row, :length].tobytes() if alone[row] else None


def read_each(many: Sequence[Buffer], layout: Layout) -> tuple[Numbers, Numbers]:
    """`grid_stream.read` of many streams: exponents and numbers, a row for each."""
    steps = sum(layout.steps)
    if len(many) < MANY or max(layout.total, steps) > BLOCK or grid_loops() is None:
        parts = [read(memoryview(data), layout) for data in many]
        exponents, codes = (np.stack([part[side] for part in parts]) for side in (0, 1))
        return exponents, codes
    ends = np.cumsum([len(data) for data in many])
    starts = np.concatenate([[0], ends[:-1]])
    exponents, codes = np.empty((len(many), steps), np.int32), np.empty((len(many), layout.total), np.int32)
    is_good = np.zeros(len(many), bool)
    joined = np.frombuffer(b"".join(many), np.uint8)
    grid_loops().read_many(
        joined, starts, ends, np.array(layout.sizes, np.int64), HIGHEST_BUCKETS, exponents, codes, is_good
    )
    for row in np.flatnonzero(~is_good).tolist():
        exponents[row], codes[row] = read(memoryview(many[row]), layout)  # which says what is wrong
    return exponents, codes


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
    if len(codes) >= MANY and grid_loops() is not None:
        counted = np.zeros((len(codes), slots, width), np.int64)
        grid_loops().count_many(codes, np.array(sizes, np.int64), REACH, counted)
        return counted
    starts = np.arange(REACH, slots * width, width)
    places = codes + np.repeat(starts, sizes) + (np.arange(len(codes)) * (slots * width))[:, None]
    return np.bincount(places.reshape(-1), minlength=len(codes) * slots * width).reshape(len(codes), slots, width)


def _useless(codes: Numbers, exponents: Numbers, held: HeldGrids, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For which messages the reference certainly saves less than its digest costs, as `grid_stream.needs_more` says."""
    limits = _roughly(counts) - 64
    if len(codes) >= MANY and grid_loops() is not None:
        return _useless_compiled(codes, exponents, held, limits)
    below, differences = np.zeros(len(codes)), codes - held.nearest(exponents)
    sizes, least = np.abs(differences), 2 << FINE
    while (below <= limits).any() and (beyond := (sizes >= least).sum(axis=1)).any():
        below += beyond
        least <<= 1
    useless: NDArray[np.bool_] = below > limits
    for row in np.flatnonzero(~useless):
        useless[row] = _bucketed(differences[row]).bits >= limits[row]
    return useless


def _useless_compiled(
    codes: Numbers, exponents: Numbers, held: HeldGrids, limits: NDArray[np.float64]
) -> NDArray[np.bool_]:
    lengths = layout_of(held.slots).lengths
    scales, step_of = np.ldexp(1.0, -exponents), np.repeat(np.arange(len(lengths)), lengths)
    asked = codes, held.flat, scales, step_of, float(LARGEST), FINE
    bits, sizes = grid_loops().bits_below(*asked, limits)
    useless: NDArray[np.bool_] = bits > limits
    rows = np.flatnonzero(~useless)
    if len(rows):
        reach = bucket_of(int(sizes[rows].max()), FINE)
        table = np.zeros((len(rows), 2 * reach + 1), np.int64)
        grid_loops().count_differences(*asked, rows, table)
        useless[rows] = _bits_of_each(table) >= limits[rows]
    return useless


def _bits_of_each(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """`Model.bits` of each row of buckets, zero in the middle."""
    middle = table.shape[1] // 2
    buckets = np.arange(-middle, middle + 1)
    low, high = (np.where(table > 0, ends, 0).max(axis=1) for ends in (-buckets, buckets))
    below = table @ bounds(np.abs(buckets), FINE)[1]
    long = np.sum([table >= 1 << bits for bits in (7, 14, 21)], axis=0)
    long[:, middle] = 0
    heads = np.sum([head >= 1 << bits for head in (8 * low + FINE - 1, high) for bits in (7, 14)], axis=0)
    written = 2 + heads + low + high + long.sum(axis=1)
    out: NDArray[np.float64] = weighed(table.sum(axis=1)) - weighed(table).sum(axis=1) + below + 8 * written
    return out


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

"""Many small streams of grids read in one call, compiled by numba; what they mean is what `grid_stream.read` says.

Reading fails on whatever that function would refuse, and says no more: it is asked for the reason. No index is taken
from what arrived without being compared. Where a part of a stream is wrong, the place after it is -1.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ternfed.wire.compiled_buckets import FULL, LEAST, MOST_BUCKETS, PRECISION, WORD, bits, cumulate

FEWEST = 256
"""Numbers for which a table of first guesses is worth making."""
GUESSES = 12
"""Such a table has an entry for each value of a number's top bits, so many."""

_MASK = np.uint64((1 << PRECISION) - 1)
_WRONG = np.int64(-1)


class Room(NamedTuple):
    """Arrays that reading a stream needs, for all streams of a call."""

    counts: NDArray[np.int64]
    """How often each bucket occurs, model after model."""
    starts: NDArray[np.int64]
    guesses: NDArray[np.int64]
    buckets: NDArray[np.int64]
    numbers: NDArray[np.int64]


@njit(cache=True, nogil=True)
def read_many(data, starts, stops, sizes, highest, exponents, codes, is_good):
    """Streams that lie end to end in `data`, one in each row of `exponents` and `codes`."""
    longest = max(codes.shape[1], exponents.shape[1])
    room = Room(
        np.empty(MOST_BUCKETS, np.int64),
        np.empty(MOST_BUCKETS + 1, np.int64),
        np.empty(1 << GUESSES, np.int64),
        np.empty(longest, np.int64),
        np.empty(longest, np.int64),
    )
    for row in range(len(starts)):
        is_good[row] = _read(data, starts[row], stops[row], sizes, highest, exponents[row], codes[row], room)


@njit(cache=True)
def _read(data, at, stop, sizes, highest, exponents, codes, room):
    """One stream into `exponents` and `codes`; whether it is as it should be."""
    base, with_steps = np.int64(0), len(exponents) > 0
    if with_steps:
        if at >= stop:
            return False
        base, at = np.int64(data[at]) - 126, at + 1
    count, at = _varint(data, at, stop)
    if at < 0 or count < 1 or count > max(len(sizes), 1):
        return False
    groups, at = _groups(data, at, stop, len(sizes), count)
    if at < 0:
        return False
    # The list of the exponents stands before those of the groups.
    before = np.int64(1 if with_steps else 0)
    lengths = np.zeros(count + before, np.int64)
    lengths[0] = len(exponents)
    for slot in range(len(sizes)):
        lengths[groups[slot] + before] += sizes[slot]
    fines, lows, firsts, at = _models(data, at, stop, lengths, highest, room.counts)
    if at < 0 or (stop > at and data[stop - 1] == 0):
        return False
    left, state = (stop - at + 3) // 4, np.uint64(0)
    while state < LEAST and left > 0:
        left -= 1
        state = (state << WORD) | _word(data, at, stop, left)
    for each in range(len(lengths)):
        counts, low, length = room.counts[firsts[each] : firsts[each + 1]], lows[each], lengths[each]
        is_right, state, left = _symbols(data, at, stop, left, state, counts, low, length, room)
        if not is_right:
            return False
        largest = max(low, len(counts) - 1 - low)
        state, left = _below(data, at, stop, left, state, fines[each], largest, length, room)
        if each < before:
            for place in range(length):
                exponents[place] = room.numbers[place] + base
        else:
            _to_slots(room.numbers, groups, each - before, sizes, codes)
    return state == 0 and left == 0


@njit(cache=True)
def _groups(data, at, stop, slots, count):
    """The group of each slot, one of `count`; where the next thing starts."""
    groups = np.zeros(slots, np.int64)
    if count == 1:
        return groups, at
    width = bits(count - 1)
    end = at + (width * slots + 7) // 8
    if end > stop:
        return groups, _WRONG
    for bit in range(8 * (end - at)):
        value = (np.int64(data[at + bit // 8]) >> (bit % 8)) & 1
        if bit < width * slots:
            groups[bit // width] |= value << (bit % width)
        elif value:
            return groups, _WRONG
    for slot in range(slots):
        if groups[slot] >= count:
            return groups, _WRONG
    return groups, end


@njit(cache=True)
def _models(data, at, stop, lengths, highest, counts):
    """Of each list: fineness, how many buckets are below zero, where its counts begin; then where the next starts."""
    fines, lows = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    firsts = np.zeros(len(lengths) + 1, np.int64)
    for each in range(len(lengths)):
        head, at = _varint(data, at, stop)
        if at < 0:
            return fines, lows, firsts, _WRONG
        high, at = _varint(data, at, stop)
        if at < 0:
            return fines, lows, firsts, _WRONG
        first, fine, low = firsts[each], head % 8 + 1, head // 8
        if max(low, high) > highest[fine] or first + low + high + 1 > MOST_BUCKETS:
            return fines, lows, firsts, _WRONG
        others = np.int64(0)
        for bucket in range(low + high + 1):
            if bucket == low:
                continue  # zero has what is left
            value, at = _varint(data, at, stop)
            if at < 0 or (value == 0 and (bucket == 0 or bucket == low + high)):
                return fines, lows, firsts, _WRONG
            others += value
            if others > lengths[each]:
                return fines, lows, firsts, _WRONG
            counts[first + bucket] = value
        counts[first + low] = lengths[each] - others
        fines[each], lows[each], firsts[each + 1] = fine, low, first + low + high + 1
    return fines, lows, firsts, at


@njit(cache=True)
def _symbols(data, first, stop, left, state, counts, low, length, room):
    """The buckets of a list, if each comes as often as the model says."""
    kinds, starts, guesses = len(counts), room.starts, room.guesses
    if kinds == 1:
        room.buckets[:length] = 0
        return True, state, left
    cumulate(counts, length, starts)
    is_long = length >= FEWEST
    if is_long:
        symbol = 0
        for place in range(len(guesses)):
            while starts[symbol + 1] <= place << (PRECISION - GUESSES):
                symbol += 1
            guesses[place] = symbol
    found = np.zeros(kinds, np.int64)
    for place in range(length):
        below = state & _MASK
        number = np.int64(below)
        symbol = _guessed(number, starts, guesses) if is_long else _halved(number, starts, kinds)
        frequency = starts[symbol + 1] - starts[symbol]
        state, left = _pop(data, first, stop, left, state, frequency, below, starts[symbol])
        found[symbol] += 1
        room.buckets[place] = symbol - low
    for symbol in range(kinds):
        if found[symbol] != counts[symbol]:
            return False, state, left
    return True, state, left


@njit(cache=True)
def _guessed(number, starts, guesses):
    """The symbol that a number belongs to, from the first that its top bits allow."""
    symbol = guesses[number >> (PRECISION - GUESSES)]
    while number >= starts[symbol + 1]:
        symbol += 1
    return symbol


@njit(cache=True)
def _halved(number, starts, kinds):
    """The same without a table."""
    symbol, above = 0, kinds
    while above - symbol > 1:
        middle = (symbol + above) // 2
        if number >= starts[middle]:
            symbol = middle
        else:
            above = middle
    return symbol


@njit(cache=True)
def _below(data, first, stop, left, state, fine, largest, length, room):
    """The numbers of a list from their buckets: what is below the top bits of large ones follows, width by width."""
    room.numbers[:length] = room.buckets[:length]
    for width in range(1, (largest >> fine) if largest >= 2 << fine else 1):
        for place in range(length):
            bucket = abs(room.buckets[place])
            if bucket >= 2 << fine and (bucket >> fine) - 1 == width:
                below = state & _MASK
                digit = np.int64(below) >> (PRECISION - width)
                start = digit << (PRECISION - width)
                state, left = _pop(data, first, stop, left, state, 1 << (PRECISION - width), below, start)
                size = (((bucket & ((1 << fine) - 1)) + (1 << fine)) << width) + digit
                room.numbers[place] = size if room.buckets[place] > 0 else -size
    return state, left


@njit(cache=True)
def _to_slots(numbers, groups, group, sizes, codes):
    """The numbers of a group, to the slots that are in it."""
    taken, begin = 0, 0
    for slot in range(len(sizes)):
        if groups[slot] == group:
            for place in range(sizes[slot]):
                codes[begin + place] = numbers[taken + place]
            taken += sizes[slot]
        begin += sizes[slot]


@njit(cache=True)
def _varint(data, at, stop):
    """The number that starts at `at`, and where the next thing starts."""
    value = np.int64(0)
    for place in range(8):
        if at + place >= stop:
            return value, _WRONG
        byte = np.int64(data[at + place])
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, _WRONG if byte == 0 and place > 0 else at + place + 1
    return value, _WRONG


@njit(cache=True)
def _word(data, first, stop, place):
    """A word of a stream, whose last one may lack its upper bytes."""
    value, at = np.uint64(0), first + 4 * place
    for byte in range(min(4, stop - at)):
        value |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    return value


@njit(cache=True)
def _pop(data, first, stop, left, state, frequency, below, start):
    """The state after a symbol, and the words that are left."""
    state = np.uint64(frequency) * (state >> FULL) + below - np.uint64(start)
    if state < LEAST and left > 0:
        left -= 1
        state = (state << WORD) | _word(data, first, stop, left)
    return state, left

"""Loops over many small streams of grids, compiled by numba: a thousand messages in one call, the bytes of `grid.py`.

Imported by `fast_ans.py` alone, where numba is installed. What is counted and written is here, what is read in
`compiled_reading.py`.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"
from __future__ import annotations

import numpy as np
from numba import njit

from ternfed.wire.compiled_buckets import (
    FULL,
    LOW,
    MOST_BUCKETS,
    PRECISION,
    WORD,
    bits,
    bucket_of,
    cumulate,
    width_below,
)
from ternfed.wire.compiled_reading import read_many as read_many

_ROOM = np.uint64(64 - PRECISION)


@njit(cache=True, nogil=True)
def count_many(codes, sizes, reach, out):
    """How often each value from -reach to reach occurs in each slot of each message, added to `out`."""
    for row in range(len(codes)):
        begin = 0
        for slot in range(len(sizes)):
            for place in range(begin, begin + sizes[slot]):
                out[row, slot, codes[row, place] + reach] += 1
            begin += sizes[slot]


@njit(cache=True)
def _difference(code, held, scale, largest):
    """How far a code is from the one that what is held would have."""
    return code - np.int64(min(max(np.rint(np.float64(held) * scale), -largest), largest))


@njit(cache=True, nogil=True)
def bits_below(codes, held, scales, step_of, largest, fine, limits):
    """Of each message, the bits below the buckets of its differences, until they exceed a limit; the largest size."""
    bits, sizes = np.zeros(len(codes), np.int64), np.zeros(len(codes), np.int64)
    for row in range(len(codes)):
        for place in range(codes.shape[1]):
            size = abs(_difference(codes[row, place], held[place], scales[row, step_of[place]], largest))
            sizes[row] = max(sizes[row], size)
            if size >= 2 << fine:
                bits[row] += width_below(size, fine)
                if bits[row] > limits[row]:
                    break
    return bits, sizes


@njit(cache=True, nogil=True)
def count_differences(codes, held, scales, step_of, largest, fine, rows, out):
    """How often each bucket of the differences occurs in these messages, added to `out`: zero in the middle."""
    middle = out.shape[1] // 2
    for each, row in enumerate(rows):
        for place in range(codes.shape[1]):
            number = _difference(codes[row, place], held[place], scales[row, step_of[place]], largest)
            out[each, middle + bucket_of(number, fine)] += 1


@njit(cache=True, nogil=True)
def write_many(codes, around, middles, groups, counts_of_groups, sizes, fines, out, lengths):
    """The stream of each message without a reference, one in each row of `out`; `fines` has those of all lists."""
    steps = around.shape[1]
    numbers = np.empty(steps + codes.shape[1], np.int64)
    words = np.empty(len(numbers) + 8, np.uint32)
    counts, starts = np.empty(MOST_BUCKETS, np.int64), np.empty(MOST_BUCKETS + 1, np.int64)
    next_list = 0
    for row in range(len(codes)):
        lists = counts_of_groups[row] + 1
        fine = fines[next_list : next_list + lists]
        next_list += lists
        out[row, 0] = middles[row]
        at = _write_groups(out[row], 1, groups[row], counts_of_groups[row])
        firsts = _in_lists(around[row], codes[row], groups[row], sizes, lists, numbers)
        # Models are written from the first list on, and lists are put on the stack from the last on.
        lows, places = np.zeros(lists, np.int64), np.zeros(lists + 1, np.int64)
        for each in range(lists):
            own = numbers[firsts[each] : firsts[each + 1]]
            lows[each], kinds, at = _write_model(out[row], at, own, fine[each], counts[places[each] :])
            places[each + 1] = places[each] + kinds
        count, state = 0, np.uint64(0)
        for each in range(lists - 1, -1, -1):
            own, model = numbers[firsts[each] : firsts[each + 1]], counts[places[each] : places[each + 1]]
            count, state = _push_list(words, count, state, own, fine[each], lows[each], model, starts)
        lengths[row] = _write_words(out[row], at, words, count, state)


@njit(cache=True)
def _write_groups(out, at, groups, count):
    """How many groups there are, and which slot is in which; where the next thing starts."""
    at = _write_varint(out, at, count)
    if count == 1:
        return at
    width = bits(count - 1)
    end = at + (width * len(groups) + 7) // 8
    out[at:end] = 0
    for slot in range(len(groups)):
        for bit in range(width):
            place = slot * width + bit
            out[at + place // 8] |= ((groups[slot] >> bit) & 1) << (place % 8)
    return end


@njit(cache=True)
def _in_lists(around, codes, groups, sizes, lists, numbers):
    """Where each list begins in `numbers`, which gets the exponents and then the codes of each group."""
    firsts, taken = np.zeros(lists + 1, np.int64), len(around)
    numbers[:taken] = around
    firsts[1] = taken
    for group in range(lists - 1):
        begin = 0
        for slot in range(len(sizes)):
            if groups[slot] == group:
                numbers[taken : taken + sizes[slot]] = codes[begin : begin + sizes[slot]]
                taken += sizes[slot]
            begin += sizes[slot]
        firsts[group + 2] = taken
    return firsts


@njit(cache=True)
def _write_model(out, at, numbers, fine, counts):
    """The model of a list: how many buckets are below zero, how many there are, and where the next thing starts."""
    low, high = np.int64(0), np.int64(0)
    for number in numbers:
        low, high = min(low, number), max(high, number)
    low, high = -bucket_of(low, fine), bucket_of(high, fine)
    counts[: low + high + 1] = 0
    for number in numbers:
        counts[low + bucket_of(number, fine)] += 1
    at = _write_varint(out, at, 8 * low + fine - 1)
    at = _write_varint(out, at, high)
    for bucket in range(low + high + 1):
        if bucket != low:
            at = _write_varint(out, at, counts[bucket])
    return low, low + high + 1, at


@njit(cache=True)
def _push_list(words, count, state, numbers, fine, low, model, starts):
    """The stack with a list on it, last number first: what is below the top bits of large numbers, then the buckets."""
    if len(model) == 1:
        return count, state
    cumulate(model, len(numbers), starts)
    largest = max(low, len(model) - 1 - low)
    for width in range((largest >> fine) - 1 if largest >= 2 << fine else 0, 0, -1):
        for place in range(len(numbers) - 1, -1, -1):
            size = abs(numbers[place])
            if width_below(size, fine) == width:
                digit, frequency = size & ((1 << width) - 1), 1 << (PRECISION - width)
                count, state = _push(words, count, state, frequency, digit * frequency)
    for place in range(len(numbers) - 1, -1, -1):
        symbol = low + bucket_of(numbers[place], fine)
        count, state = _push(words, count, state, starts[symbol + 1] - starts[symbol], starts[symbol])
    return count, state


@njit(cache=True)
def _push(words, count, state, frequency, start):
    """The stack after one more symbol."""
    frequency = np.uint64(frequency)
    if state >> _ROOM >= frequency:
        words[count] = state & LOW
        count += 1
        state >>= WORD
    over = state // frequency
    return count, (over << FULL) + (state - over * frequency) + np.uint64(start)


@njit(cache=True)
def _write_words(out, at, words, count, state):
    """The stack as bytes, without zeros at its end; where they end."""
    while state:
        words[count] = state & LOW
        count += 1
        state >>= WORD
    for place in range(count):
        for byte in range(4):
            out[at + byte] = (words[place] >> np.uint32(8 * byte)) & np.uint32(0xFF)
        at += 4
    if count:
        while out[at - 1] == 0:
            at -= 1
    return at


@njit(cache=True)
def _write_varint(out, at, value):
    while value > 0x7F:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1

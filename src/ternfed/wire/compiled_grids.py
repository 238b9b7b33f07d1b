"""Loops over many small streams of grids, compiled by numba: a thousand messages in one call, the bytes of `grid.py`.

Imported by `fast_ans.py` alone, where numba is installed. Reading fails on whatever `grid_stream.read` would refuse,
and says no more: that function is asked for the reason. No index is taken from what arrived without being compared.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"
from __future__ import annotations

import numpy as np
from numba import njit

MOST_BUCKETS = 1 << 15
"""Of all models of a message; one that has more is left to `grid_stream.read`."""
MOST_NUMBER = 1 << 27
"""More than any number of a stream."""
FEWEST = 256
"""Numbers for which a table of first guesses is worth making."""

_FULL, _WORD, _MASK = np.uint64(24), np.uint64(32), np.uint64((1 << 24) - 1)
_LEAST, _LOW = np.uint64(1 << 32), np.uint64((1 << 32) - 1)
_ROOM = np.uint64(40)
_PRECISION = 1 << 24


@njit(cache=True)
def _width(size, fine):
    """How many bits lie below the top ones of a number."""
    width = 0
    while size >> width >= 2 << fine:
        width += 1
    return width


@njit(cache=True)
def _bucket(number, fine):
    """The bucket of a number, with its sign."""
    size = abs(number)
    if size < 2 << fine:
        return number
    width = _width(size, fine)
    bucket = (width << fine) + (size >> width)
    return bucket if number >= 0 else -bucket


@njit(cache=True)
def _frequencies(counts, first, count, total):
    """Counts of a model made frequencies, in place."""
    free, left, most = _PRECISION - count, _PRECISION - count, first
    for place in range(first, first + count):
        if counts[place] > counts[most]:
            most = place
    for place in range(first, first + count):
        counts[place] = free * counts[place] // total
        left -= counts[place]
    counts[most] += left
    for place in range(first, first + count):
        counts[place] += 1


@njit(cache=True)
def _varint(data, at, stop):
    """The number that starts at `at`, and where the next thing starts; -1 where none does."""
    value = np.int64(0)
    for place in range(8):
        if at + place >= stop:
            return value, np.int64(-1)
        byte = np.int64(data[at + place])
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, np.int64(-1) if byte == 0 and place > 0 else at + place + 1
    return value, np.int64(-1)


@njit(cache=True)
def _word(data, first, stop, place):
    """A word of a stream, whose last one may lack its upper bytes."""
    value, at = np.uint64(0), first + 4 * place
    for byte in range(min(4, stop - at)):
        value |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
    return value


@njit(cache=True)
def _pop(data, first, stop, left, state, frequency, below, start):
    """The state after a symbol."""
    state = np.uint64(frequency) * (state >> _FULL) + below - np.uint64(start)
    if state < _LEAST and left > 0:
        left -= 1
        state = (state << _WORD) | _word(data, first, stop, left)
    return state, left


@njit(cache=True, nogil=True)
def read_one(data, at, stop, sizes, highest, exponents, codes, counts, starts, guess, symbols):
    """One stream into `exponents` and `codes`; whether it is as it should be."""
    slots, steps, base = len(sizes), len(exponents), np.int64(0)
    if steps:
        if at >= stop:
            return False
        base, at = np.int64(data[at]) - 126, at + 1
    count, at = _varint(data, at, stop)
    if at < 0 or count < 1 or count > max(slots, 1):
        return False
    groups = np.zeros(slots, np.int64)
    if count > 1:
        width = 0
        while (count - 1) >> width:
            width += 1
        end = at + (width * slots + 7) // 8
        if end > stop:
            return False
        for bit in range(8 * (end - at)):
            value = (np.int64(data[at + bit // 8]) >> (bit % 8)) & 1
            if bit < width * slots:
                groups[bit // width] |= value << (bit % width)
            elif value:
                return False
        for slot in range(slots):
            if groups[slot] >= count:
                return False
        at = end
    lists = count + 1 if steps else count
    lengths = np.zeros(lists, np.int64)
    if steps:
        lengths[0] = steps
    for slot in range(slots):
        lengths[groups[slot] + lists - count] += sizes[slot]
    fines, lows, totals = np.zeros(lists, np.int64), np.zeros(lists, np.int64), np.zeros(lists, np.int64)
    firsts = np.zeros(lists + 1, np.int64)
    for each in range(lists):
        head, at = _varint(data, at, stop)
        if at < 0:
            return False
        high, at = _varint(data, at, stop)
        if at < 0:
            return False
        fine, low = head % 8 + 1, head // 8
        if max(low, high) > highest[fine]:
            return False
        first = firsts[each]
        if first + low + high + 1 > MOST_BUCKETS:
            return False
        others = np.int64(0)
        for bucket in range(low + high + 1):
            if bucket == low:
                continue
            value, at = _varint(data, at, stop)
            if at < 0 or (value == 0 and (bucket == 0 or bucket == low + high)):
                return False
            others += value
            if others > lengths[each]:
                return False
            counts[first + bucket] = value
        counts[first + low] = lengths[each] - others
        fines[each], lows[each], totals[each] = fine, low, low + high + 1
        firsts[each + 1] = first + low + high + 1
    if stop > at and data[stop - 1] == 0:
        return False
    left, state = (stop - at + 3) // 4, np.uint64(0)
    while state < _LEAST and left > 0:
        left -= 1
        state = (state << _WORD) | _word(data, at, stop, left)
    for each in range(lists):
        first, kinds, low, length = firsts[each], totals[each], lows[each], lengths[each]
        fine = fines[each]
        if kinds == 1:
            symbols[:length] = 0
        else:
            found = np.zeros(kinds, np.int64)
            for place in range(kinds):
                starts[place + 1] = counts[first + place]
            _frequencies(starts, 1, kinds, length)
            starts[0] = 0
            for place in range(kinds):
                starts[place + 1] += starts[place]
            is_long = length >= FEWEST
            if is_long:
                symbol = 0
                for place in range(len(guess)):
                    while starts[symbol + 1] <= place << 12:
                        symbol += 1
                    guess[place] = symbol
            for place in range(length):
                below = state & _MASK
                q = np.int64(below)
                if is_long:
                    symbol = guess[q >> 12]
                    while q >= starts[symbol + 1]:
                        symbol += 1
                else:
                    symbol, above = 0, kinds
                    while above - symbol > 1:
                        middle = (symbol + above) // 2
                        if q >= starts[middle]:
                            symbol = middle
                        else:
                            above = middle
                state, left = _pop(
                    data, at, stop, left, state, starts[symbol + 1] - starts[symbol], below, starts[symbol]
                )
                found[symbol] += 1
                symbols[place] = symbol - low
            for place in range(kinds):
                if found[place] != counts[first + place]:
                    return False
            largest = max(low, kinds - 1 - low)
            if largest >= 2 << fine:
                most = (largest >> fine) - 1
                # Buckets first become the smallest number in them; what is below its top bits comes width by width.
                for width in range(1, most + 1):
                    for place in range(length):
                        bucket = abs(symbols[place])
                        if bucket >= 2 << fine and bucket < MOST_BUCKETS and (bucket >> fine) - 1 == width:
                            below = state & _MASK
                            digit = np.int64(below) >> (24 - width)
                            state, left = _pop(
                                data, at, stop, left, state, 1 << (24 - width), below, digit << (24 - width)
                            )
                            size = (((bucket & ((1 << fine) - 1)) + (1 << fine)) << width) + digit
                            # Marked as done by its size: no bucket is as large.
                            symbols[place] = (size + MOST_NUMBER) if symbols[place] > 0 else -(size + MOST_NUMBER)
                for place in range(length):
                    if symbols[place] > MOST_NUMBER:
                        symbols[place] -= MOST_NUMBER
                    elif symbols[place] < -MOST_NUMBER:
                        symbols[place] += MOST_NUMBER
        if steps and each == 0:
            for place in range(length):
                exponents[place] = symbols[place] + base
            continue
        group, taken, begin = each - (lists - count), 0, 0
        for slot in range(slots):
            if groups[slot] == group:
                for place in range(sizes[slot]):
                    codes[begin + place] = symbols[taken + place]
                taken += sizes[slot]
            begin += sizes[slot]
    return state == 0 and left == 0


@njit(cache=True, nogil=True)
def read_many(data, starts, stops, sizes, highest, exponents, codes, is_good):
    """Streams that lie end to end in `data`, one in each row of `exponents` and `codes`."""
    counts, cumulated = np.empty(MOST_BUCKETS, np.int64), np.empty(MOST_BUCKETS + 1, np.int64)
    guess = np.empty(1 << 12, np.int64)
    symbols = np.empty(max(codes.shape[1], exponents.shape[1]), np.int64)
    for row in range(len(starts)):
        is_good[row] = read_one(
            data, starts[row], stops[row], sizes, highest, exponents[row], codes[row], counts, cumulated, guess, symbols
        )


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
                bits[row] += _width(size, fine)
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
            out[each, middle + _bucket(number, fine)] += 1


@njit(cache=True)
def _write_varint(out, at, value):
    while value > 0x7F:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@njit(cache=True)
def _push(words, count, state, frequency, start):
    """The stack after one more symbol."""
    frequency = np.uint64(frequency)
    if state >> _ROOM >= frequency:
        words[count] = state & _LOW
        count += 1
        state >>= _WORD
    over = state // frequency
    return count, (over << _FULL) + (state - over * frequency) + np.uint64(start)


@njit(cache=True, nogil=True)
def write_many(codes, around, middles, groups, counts_of_groups, sizes, fines, out, lengths):
    """The stream of each message without a reference, one in each row of `out`; `fines` has those of all lists."""
    messages, slots, steps = len(codes), len(sizes), around.shape[1]
    numbers = np.empty(codes.shape[1], np.int64)
    words = np.empty(codes.shape[1] + steps + 8, np.uint32)
    counts, starts = np.empty(MOST_BUCKETS, np.int64), np.empty(MOST_BUCKETS + 1, np.int64)
    next_list = 0
    for row in range(messages):
        lists = counts_of_groups[row] + 1
        out[row, 0] = middles[row]
        at = _write_varint(out[row], 1, counts_of_groups[row])
        if counts_of_groups[row] > 1:
            width = 0
            while (counts_of_groups[row] - 1) >> width:
                width += 1
            end = at + (width * slots + 7) // 8
            out[row, at:end] = 0
            for slot in range(slots):
                for bit in range(width):
                    place = slot * width + bit
                    out[row, at + place // 8] |= ((groups[row, slot] >> bit) & 1) << (place % 8)
            at = end
        # The numbers of all groups, one after another.
        firsts, taken = np.zeros(lists + 1, np.int64), 0
        for group in range(lists - 1):
            begin = 0
            for slot in range(slots):
                if groups[row, slot] == group:
                    for place in range(sizes[slot]):
                        numbers[taken + place] = codes[row, begin + place]
                    taken += sizes[slot]
                begin += sizes[slot]
            firsts[group + 1] = taken
        # Models are written from the first list on, and lists are put on the stack from the last on.
        lows, kinds, places = np.zeros(lists, np.int64), np.zeros(lists, np.int64), np.zeros(lists + 1, np.int64)
        for each in range(lists):
            fine = fines[next_list + each]
            length = steps if each == 0 else firsts[each] - firsts[each - 1]
            low, high = np.int64(0), np.int64(0)
            for place in range(length):
                number = np.int64(around[row, place]) if each == 0 else numbers[firsts[each - 1] + place]
                if number < low:
                    low = number
                if number > high:
                    high = number
            low, high = -_bucket(low, fine), _bucket(high, fine)
            first = places[each]
            counts[first : first + low + high + 1] = 0
            for place in range(length):
                number = np.int64(around[row, place]) if each == 0 else numbers[firsts[each - 1] + place]
                counts[first + low + _bucket(number, fine)] += 1
            at = _write_varint(out[row], at, 8 * low + fine - 1)
            at = _write_varint(out[row], at, high)
            for bucket in range(low + high + 1):
                if bucket != low:
                    at = _write_varint(out[row], at, counts[first + bucket])
            lows[each], kinds[each] = low, low + high + 1
            places[each + 1] = first + low + high + 1
        count, state = 0, np.uint64(0)
        for back in range(lists):
            each = lists - 1 - back
            if kinds[each] == 1:
                continue
            fine = fines[next_list + each]
            length = steps if each == 0 else firsts[each] - firsts[each - 1]
            first, low = places[each], lows[each]
            _frequencies(counts, first, kinds[each], length)
            starts[0] = 0
            for place in range(kinds[each]):
                starts[place + 1] = starts[place] + counts[first + place]
            largest = max(low, kinds[each] - 1 - low)
            if largest >= 2 << fine:
                for width in range((largest >> fine) - 1, 0, -1):
                    for place in range(length - 1, -1, -1):
                        number = np.int64(around[row, place]) if each == 0 else numbers[firsts[each - 1] + place]
                        if _width(abs(number), fine) == width:
                            digit = abs(number) & ((1 << width) - 1)
                            count, state = _push(words, count, state, 1 << (24 - width), digit << (24 - width))
            for place in range(length - 1, -1, -1):
                number = np.int64(around[row, place]) if each == 0 else numbers[firsts[each - 1] + place]
                symbol = low + _bucket(number, fine)
                count, state = _push(words, count, state, counts[first + symbol], starts[symbol])
        next_list += lists
        while state:
            words[count] = state & _LOW
            count += 1
            state >>= _WORD
        for place in range(count):
            for byte in range(4):
                out[row, at + byte] = (words[place] >> np.uint32(8 * byte)) & np.uint32(0xFF)
            at += 4
        if count:
            while out[row, at - 1] == 0:
                at -= 1
        lengths[row] = at

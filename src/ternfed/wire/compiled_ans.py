"""Loops of the `ans` decoder, compiled by numba. Imported by `fast_ans.py` alone, where numba is installed.

No index is taken from what arrived: symbols come from a table that was made here, words are taken while there are some.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"
from __future__ import annotations

import numpy as np
from numba import njit

SHORT = 12
"""The top bits of a number that lead to its symbol."""
FULL = 24
"""All bits of it: the frequencies of a model add up to 2^24."""

_MASK, _LOWER, _FULL, _WORD = np.uint64((1 << FULL) - 1), np.uint64(FULL - SHORT), np.uint64(FULL), np.uint64(32)
_LEAST = np.uint64(1 << 32)


@njit(inline="always")
def _step(words, left, state, starts, short):
    """The next symbol, and the state after it."""
    below = state & _MASK
    symbol = np.int64(short[below >> _LOWER])
    while below >= starts[symbol + 1]:
        symbol += 1
    start = starts[symbol]
    state = (starts[symbol + 1] - start) * (state >> _FULL) + below - start
    if state < _LEAST and left > 0:
        left -= 1
        state = (state << _WORD) | np.uint64(words[left])
    return symbol, state, left


@njit(cache=True, nogil=True)
def pop(words, left, state, starts, short, out, counts):
    """Symbols into `out`; how often each came is added to `counts`."""
    for place in range(len(out)):
        symbol, state, left = _step(words, left, state, starts, short)
        out[place] = symbol
        counts[symbol] += 1
    return state, left


@njit(cache=True, nogil=True)
def pop_into(words, left, state, starts, short, trits, places, out, counts, pad):
    """The symbols of one planar block, their trits to these places of `out`; also how many paddings were none.

    The places hold `pad` already, the commonest trit: five of it are a symbol that needs neither tables nor stores.
    """
    total = len(places)
    size = (total + 4) // 5
    whole, wrong = max(0, size - (5 * size - total)), 0
    first, second, third = places[:size], places[size : 2 * size], places[2 * size : 3 * size]
    fourth, fifth = places[3 * size : 4 * size], places[4 * size :]
    common, same = 121 * (1 + pad), 0
    begin, share = starts[common], starts[common + 1] - starts[common]
    for place in range(whole):
        beyond = (state & _MASK) - begin
        if beyond < share:  # unsigned: below `begin` it is huge
            same += 1
            state = share * (state >> _FULL) + beyond
            if state < _LEAST and left > 0:
                left -= 1
                state = (state << _WORD) | np.uint64(words[left])
            continue
        symbol, state, left = _step(words, left, state, starts, short)
        counts[symbol] += 1
        out[first[place]] = trits[symbol, 0]
        out[second[place]] = trits[symbol, 1]
        out[third[place]] = trits[symbol, 2]
        out[fourth[place]] = trits[symbol, 3]
        out[fifth[place]] = trits[symbol, 4]
    counts[common] += same
    for place in range(whole, size):
        symbol, state, left = _step(words, left, state, starts, short)
        counts[symbol] += 1
        for digit in range(5):
            if place + digit * size < total:
                out[places[place + digit * size]] = trits[symbol, digit]
            elif trits[symbol, digit] != pad:
                wrong += 1
    return state, left, wrong

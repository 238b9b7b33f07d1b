"""What compiled loops of reading and writing share: buckets of numbers, frequencies of a model (`numbers.py`)."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"
from __future__ import annotations

import numpy as np
from numba import njit

MOST_BUCKETS = 1 << 15
"""Of all models of a message; one that has more is left to `grid_stream.read`."""
PRECISION = 24
"""The frequencies of a model sum to 2^24."""
FULL, WORD = np.uint64(PRECISION), np.uint64(32)
LEAST, LOW = np.uint64(1 << 32), np.uint64((1 << 32) - 1)


@njit(cache=True)
def bits(number):
    """How many bits a number has."""
    count = 0
    while number >> count:
        count += 1
    return count


@njit(cache=True)
def width_below(size, fine):
    """How many bits lie below the top ones of a number."""
    width = 0
    while size >> width >= 2 << fine:
        width += 1
    return width


@njit(cache=True)
def bucket_of(number, fine):
    """The bucket of a number, with its sign."""
    size = abs(number)
    if size < 2 << fine:
        return number
    width = width_below(size, fine)
    bucket = (width << fine) + (size >> width)
    return bucket if number >= 0 else -bucket


@njit(cache=True)
def cumulate(counts, total, starts):
    """Where each symbol of a model starts, and the last one ends, among 2^24 numbers."""
    kinds = len(counts)
    free = left = (1 << PRECISION) - kinds
    most = 0
    for symbol in range(kinds):
        if counts[symbol] > counts[most]:
            most = symbol
    for symbol in range(kinds):
        starts[symbol + 1] = free * counts[symbol] // total
        left -= starts[symbol + 1]
    starts[most + 1] += left
    starts[0] = 0
    for symbol in range(kinds):
        starts[symbol + 1] += starts[symbol] + 1

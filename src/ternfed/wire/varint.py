"""Whole numbers in as few bytes as they need: LEB128, least significant seven bits first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternfed.wire.errors import ImpossibleCount, Truncated

LIMIT = 1 << 56


def write(value: int) -> bytes:
    """One to eight bytes; the high bit says that another follows."""
    if not 0 <= value < LIMIT:
        raise ImpossibleCount(f"{value} is not a count")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_many(values: Sequence[int]) -> bytes:
    """`write` of each, end to end."""
    if not values or (min(values) >= 0 and max(values) <= 0x7F):
        return bytes(values)
    return b"".join(write(value) for value in values)


def length(values: NDArray[Any]) -> int:
    """How many bytes `write` makes of all these numbers."""
    total, limit, largest = len(values), 1 << 7, int(values.max(initial=0))
    while limit <= largest:
        total += int(np.count_nonzero(values >= limit))
        limit <<= 7
    return total


def read(data: memoryview, at: int) -> tuple[int, int]:
    """The number that starts at `at` and where the next thing starts."""
    value = 0
    for place in range(8):
        if at + place >= len(data):
            raise Truncated("the bytes end within a number")
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if byte == 0 and place > 0:
                raise ImpossibleCount("a number is not in its shortest form")
            return value, at + place + 1
    raise ImpossibleCount("a number has more than 56 bits")


def read_many(data: memoryview, at: int, count: int) -> tuple[list[int], int]:
    """So many numbers and where the next thing starts."""
    short = bytes(data[at : at + count])
    if len(short) == count and (not count or max(short) < 0x80):
        return list(short), at + count
    values = []
    for _ in range(count):
        value, at = read(data, at)
        values.append(value)
    return values, at

"""The stack of `ans` decoded by compiled loops, where numba is installed (`pip install 'ternfed[fast]'`).

constriction finds each symbol by halving, which a processor cannot predict; here the top bits of a number lead to its
symbol in one step, and trits go straight to their places. The bytes, and what they mean, are the same.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternfed.wire.errors import WrongTrit
from ternfed.wire.trits import SPAN, Bytes, Codes, digits, symbols, unpack_block

FEWEST = 20_000
"""Trits for which tables are worth making."""


@cache
def loops() -> Any:
    """The compiled loops; None where numba is not installed, or does not fit this Python."""
    try:
        return import_module("ternfed.wire.compiled_ans")
    except ImportError:
        return None


@cache
def grid_loops() -> Any:
    """The same for many small streams of grids."""
    try:
        return import_module("ternfed.wire.compiled_grids")
    except ImportError:
        return None


class Stack:
    """The words of a stream, and how far they have been decoded."""

    def __init__(self, words: NDArray[np.uint32]) -> None:
        self._words, self._left, self._state = words, len(words), 0
        while self._state < 1 << 32 and self._left:
            self._left -= 1
            self._state = self._state << 32 | int(words[self._left])

    def is_empty(self) -> bool:
        """Whether all has been decoded."""
        return not self._state and not self._left

    def pop(self, frequencies: NDArray[np.int64], out: Codes, pad: int) -> NDArray[np.int64]:
        """The trits of a group; how many came of -1, 0, +1, padding counted too."""
        starts, short, counts = *_tables(frequencies), np.zeros(len(frequencies), np.int64)
        for at in range(0, len(out), SPAN):
            part = out[at : at + SPAN]
            block = np.empty(symbols(len(part)), np.uint8)
            state, self._left = loops().pop(
                self._words, self._left, np.uint64(self._state), starts, short, block, counts
            )
            self._state = int(state)
            unpack_block(block, part, pad)
        return _trits_in(counts)

    def pop_into(
        self, frequencies: NDArray[np.int64], places: NDArray[np.uint32], out: Codes, pad: int
    ) -> NDArray[np.int64]:
        """The trits of a group, to these places of `out`, which hold `pad`; how many came, padding counted too."""
        starts, short, counts = *_tables(frequencies), np.zeros(len(frequencies), np.int64)
        for at in range(0, len(places), SPAN):
            state, self._left, wrong = loops().pop_into(
                self._words,
                self._left,
                np.uint64(self._state),
                starts,
                short,
                _TRITS,
                places[at : at + SPAN],
                out,
                counts,
                pad,
            )
            self._state = int(state)
            if wrong:
                raise WrongTrit("the padding after the last trit is not padding")
        return _trits_in(counts)


_TRITS = digits().view(np.int8) - np.int8(1)
_DIGIT_COUNTS = np.stack([np.count_nonzero(value == _TRITS, axis=1) for value in (-1, 0, 1)], axis=1)


def _trits_in(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many trits of each value are in so many symbols of each kind."""
    total: NDArray[np.int64] = counts @ _DIGIT_COUNTS
    return total


def _tables(frequencies: NDArray[np.int64]) -> tuple[NDArray[np.uint64], Bytes]:
    """Where each symbol starts, and the symbol at each number whose lower bits are 0."""
    lower = loops().FULL - loops().SHORT
    starts = np.zeros(len(frequencies) + 1, np.int64)
    np.cumsum(frequencies, out=starts[1:])
    firsts = -(-starts >> lower)  # rounded up: the first such number that is not below the symbol
    return starts.astype(np.uint64), np.repeat(np.arange(len(frequencies), dtype=np.uint8), np.diff(firsts))

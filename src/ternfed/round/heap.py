"""Memory that goes back to the system when tensors are freed."""

from __future__ import annotations

import ctypes
import sys

LARGE = 1 << 20
"""Bytes from which on memory is asked of the system itself, and given back to it."""


def give_memory_back() -> None:
    """Linux: from now on, tensors that are freed go back to the system. Its allocator would keep those up to 32 MiB."""
    pieces_of_their_own = -3
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        tune(pieces_of_their_own, LARGE)

"""Memory that goes back to the system when tensors are freed, and where Python looks for garbage."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LARGE = 1 << 20
"""Bytes from which on memory is asked of the system itself, and given back to it."""


def give_memory_back() -> None:
    """Linux: from now on, tensors that are freed go back to the system. Its allocator would keep those up to 32 MiB."""
    pieces_of_their_own = -3
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        tune(pieces_of_their_own, LARGE)


@contextmanager
def settled() -> Iterator[None]:
    """Meanwhile, Python looks for garbage in what is new alone.

    A thousand messages in a round are so many small objects that it looks again and again through all that there is,
    modules of PyTorch too: a fifth of the round. What is left out is the caller's own choice if they made one.
    """
    own = gc.get_freeze_count() == 0
    if own:
        gc.freeze()
    try:
        yield
    finally:
        if own:
            gc.unfreeze()

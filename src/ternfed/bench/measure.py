"""The time and the memory of one call, and of this process."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

Anything = TypeVar("Anything")


def best(call: Callable[[], Anything], repeats: int) -> tuple[float, Anything]:
    """The least CPU time of several calls, in seconds, and what the last returned: other programs do not count."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        result = call()
        times.append(time.thread_time() - start)
    return min(times), result


def peak(call: Callable[[], object]) -> int:
    """Most bytes that Python and numpy hold at once during a call, beyond what they held before it."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resident(which: Literal["VmRSS", "VmHWM"]) -> int:
    """Bytes of this process in memory, now (VmRSS) or at most so far (VmHWM); Linux knows."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(which))

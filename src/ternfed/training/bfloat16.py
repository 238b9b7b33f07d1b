"""Whether this CPU computes in bfloat16 by instructions of its own. Without them it is many times slower than float32.

Measured with ResNet18* and the CNN (docs/speed.md): 1.6 to 2 times as fast as float32 with them, 0.06 times without.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""As Linux names them: Intel's and AMD's, Intel's for matrices, ARM's."""
CPUINFO = Path("/proc/cpuinfo")


def has_instructions(cpuinfo: str) -> bool | None:
    """Whether the CPU that Linux describes so has them; None where it does not say."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    named = next((flags.split() for key, _, flags in lines if key.strip() in ("flags", "Features")), None)
    return None if named is None else not INSTRUCTIONS.isdisjoint(named)


@cache
def cpu_has_bfloat16() -> bool | None:
    """Whether this CPU has them; None where the system does not say."""
    try:
        return has_instructions(CPUINFO.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def slow_precision(precision: str, device: str) -> str | None:
    """Why training in this precision will be slow on a device; None where it will not, or nobody knows."""
    if precision != "bfloat16" or device != "cpu" or cpu_has_bfloat16() is not False:
        return None
    return (
        'training.precision = "bfloat16": this CPU has no instructions for it (avx512_bf16 or amx_bf16), so that '
        "training will be many times slower than in float32"
    )


@cache
def warn_once(sentence: str) -> None:
    """Say it once per process, whoever trains how many clients."""
    logging.getLogger("ternfed").warning("%s", sentence)

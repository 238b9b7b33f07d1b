"""What all kernels written in Triton share: where they run, which images they take, how they are launched."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MOST = 2**31 - 2**20
"""Numbers in a tensor: places are counted in 32 bits."""


@cache
def runs_on(device: str) -> bool:
    """Whether there is a Triton for this device."""
    return device == "cuda" and torch.version.hip is None and find_spec("triton") is not None


def is_matrix(batch: Tensor) -> bool:
    """Whether these are images with channels last, (pixels, channels) in memory."""
    return (
        batch.dim() == 4
        and batch.dtype in _DTYPES
        and 0 < batch.numel() <= _MOST
        and batch.is_contiguous(memory_format=torch.channels_last)
    )


def on_device(x: Tensor) -> Any:
    """Triton launches on the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def power_above(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()

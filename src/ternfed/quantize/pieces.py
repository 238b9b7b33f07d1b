"""Large tensors some numbers at a time: what PyTorch makes on the way would be several more of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

LARGE = 1 << 22
"""Numbers from which on memory counts more than kernels."""
PIECE = 1 << 20
"""Of so many, a large tensor is looked at a time."""


def is_large(tensor: Tensor) -> bool:
    """Whether it is better looked at in pieces."""
    return tensor.numel() >= LARGE and tensor.device.type == "cpu" and tensor.is_contiguous()


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors of one shape, some numbers of each at a time: views."""
    return zip(*(torch.split(tensor.detach().view(-1), PIECE) for tensor in tensors), strict=True)

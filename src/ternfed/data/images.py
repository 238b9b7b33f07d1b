"""Normalisation and augmentation as tensor arithmetic: no loops, fixed shapes, nothing copied from the host.

So both can stand inside a captured CUDA graph or a compiled step, and under any number of leading dimensions (clients ×
batch). The random draws are arguments: the caller makes them from its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Augment:
    """Random crop out of an image padded with zeros on all sides, then a horizontal flip of half of the images."""

    padding: int = 4
    flip: bool = True


def normalise(
    inputs: Tensor,
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """(inputs − mean) / std per channel; …×C×H×W. uint8 inputs are first scaled to [0, 1].

    One mean serves every channel, and inputs that are no images. Other whole numbers are token ids and stay as they
    are. Tensors (of shape C, on the inputs' device) save making the constants again at each call.
    """
    if not inputs.is_floating_point() and inputs.dtype != torch.uint8:
        return inputs
    exact = torch.promote_types(dtype, torch.float32)  # narrower types only round the result
    scale = 255.0 if inputs.dtype == torch.uint8 else 1.0
    values = inputs.to(exact)
    return ((values / scale - _constant(mean, values)) / _constant(std, values)).to(dtype)


def _constant(values: Sequence[float] | Tensor, like: Tensor) -> float | Tensor:
    if len(values) == 1:
        return values.to(like.dtype) if isinstance(values, Tensor) else values[0]
    if like.dim() < 3 or like.shape[-3] != len(values):
        raise ValueError(
            f"{len(values)} channel values for inputs of shape {tuple(like.shape)}; …×{len(values)}×H×W is needed"
        )
    if not isinstance(values, Tensor):
        # Filled on the device: a copy from the host cannot be captured in a CUDA graph.
        values = torch.stack([torch.full((), value, dtype=like.dtype, device=like.device) for value in values])
    return values.to(like.dtype).view(-1, 1, 1)


def crop_flip(inputs: Tensor, offsets: Tensor, flips: Tensor, padding: int = 4) -> Tensor:
    """Each …×C×H×W image padded with zeros, cropped back to H×W at its offset, mirrored where its flip is set.

    offsets: …×2 (row, column), each 0 to 2·padding, where (padding, padding) is no shift; flips: … bool. The result has
    the inputs' type: applied to uint8 before `normalise`, the border is black, as if the file itself had been padded.
    """
    height, width = inputs.shape[-2:]
    y = torch.arange(height, device=inputs.device)
    x = torch.arange(width, device=inputs.device)
    rows = y + offsets[..., :1] - padding
    columns = torch.where(flips[..., None], width - 1 - x, x) + offsets[..., 1:] - padding
    inside = ((rows >= 0) & (rows < height))[..., :, None] & ((columns >= 0) & (columns < width))[..., None, :]
    source = rows.clamp(0, height - 1)[..., :, None] * width + columns.clamp(0, width - 1)[..., None, :]
    index = source.flatten(-2)[..., None, :].expand(*inputs.shape[:-2], height * width)
    moved = inputs.flatten(-2).gather(-1, index).view_as(inputs)
    return torch.where(inside[..., None, :, :], moved, torch.zeros((), dtype=inputs.dtype, device=inputs.device))

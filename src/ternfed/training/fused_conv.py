"""Two convolutions that cuDNN is slow at, for training on an NVIDIA GPU.

- *The first one*, of images with few channels: each patch is so short that a program holds it whole. No slope of the
  images is asked for, and none is made.
- *A 1×1 convolution with a stride*, the shortcut of a residual network: it reads one pixel of four, which are picked
  first; the rest is a product of matrices.

`fuse_convolutions` has a model use these. Names and parameters stay as they are; what they are not for (float32,
another layout in memory, dilation, groups) is computed by PyTorch as ever. What they gain stands in docs/speed.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ternfed.training.kernels import is_matrix, on_device, power_above, runs_on


class Tiling(NamedTuple):
    """How the pixels of a first convolution are shared out among programs. By shape alone, so that runs repeat."""

    pixels: int = 128
    """Of a program at a time."""
    parts: int = 264
    """Of the pixels, at most, whose slopes are added up one by one: two for each multiprocessor of an H100 or H200."""
    warps: int = 4


TILING = Tiling()
LONGEST = 63
"""Numbers of a patch, at most; with the one for the bias a power of two."""
MOST_FILTERS = 128
MOST_OUTPUTS = 2**28
"""Pixels of a batch times filters; places are counted in 32 bits."""


def fuse_convolutions(model: nn.Module) -> nn.Module:
    """The model itself, its convolutions computed in these ways wherever they can be."""
    for module in model.modules():
        if "forward" not in vars(module) and type(module) is nn.Conv2d:  # a subclass may compute anything
            if _picks_pixels(module):
                module.__class__ = _PickingConv
            elif _has_short_patches(module):
                module.__class__ = _FirstConv
    return model


def _is_common(conv: nn.Conv2d) -> bool:
    return (conv.groups, conv.dilation, conv.padding_mode) == (1, (1, 1), "zeros") and isinstance(conv.padding, tuple)


def _has_short_patches(conv: nn.Conv2d) -> bool:
    length = conv.in_channels * conv.kernel_size[0] * conv.kernel_size[1]
    return _is_common(conv) and length <= LONGEST and conv.out_channels <= MOST_FILTERS


def _picks_pixels(conv: nn.Conv2d) -> bool:
    return (
        _is_common(conv)
        and (conv.kernel_size, conv.padding) == ((1, 1), (0, 0))
        and conv.stride != (1, 1)
        and conv.bias is None
    )


def _fits(conv: nn.Conv2d, batch: Tensor) -> bool:
    """Whether the fast way computes what the module would."""
    return (
        runs_on(batch.device.type)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and is_matrix(batch)
        and batch.dtype != torch.float32
        and batch.shape[1] == conv.in_channels
        and batch.numel() // conv.in_channels * conv.out_channels <= MOST_OUTPUTS
        and all(size >= kernel for size, kernel in zip(batch.shape[2:], conv.kernel_size, strict=True))
        and all(t is None or (t.dtype, t.device) == (batch.dtype, batch.device) for t in (conv.weight, conv.bias))
    )


class _FirstConv(nn.Conv2d):
    def forward(self, batch: Tensor) -> Tensor:
        if batch.requires_grad or not _fits(self, batch):
            return super().forward(batch)
        outputs: Tensor = _ShortPatches.apply(batch, self.weight, self.bias, self.stride, self.padding)  # type: ignore[no-untyped-call]
        return outputs


class _PickingConv(nn.Conv2d):
    def forward(self, batch: Tensor) -> Tensor:
        if not _fits(self, batch):
            return super().forward(batch)
        outputs: Tensor = _PickedPixels.apply(batch, self.weight, self.stride)  # type: ignore[no-untyped-call]
        return outputs


class _ShortPatches(torch.autograd.Function):
    """A convolution with its first derivative by weight and bias; none by the images."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        from ternfed.training import conv_kernels

        shape = _shape(x, weight, stride, padding)
        size = (len(x), len(weight), shape["OUT_HEIGHT"], shape["OUT_WIDTH"])
        out = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        rows = _rows(weight)
        pixels = out.numel() // out.shape[1]
        with on_device(x):
            conv_kernels.convolve[(-(-pixels // TILING.pixels),)](
                x, rows, rows if bias is None else bias, out, pixels, **shape, **_tile(weight, bias)
            )
        ctx.save_for_backward(x, weight, bias)
        ctx.shape = shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        from ternfed.training import conv_kernels

        x, weight, bias = ctx.saved_tensors
        slope = slope.to(x.dtype).contiguous(memory_format=torch.channels_last)
        filters, channels, *kernel = weight.shape
        length, tile = channels * kernel[0] * kernel[1], _tile(weight, bias)
        pixels = slope.numel() // filters
        per_part = -(-pixels // (TILING.parts * TILING.pixels)) * TILING.pixels
        partials = x.new_empty(-(-pixels // per_part), tile["BLOCK_L"], tile["BLOCK_F"], dtype=torch.float32)
        with on_device(x):
            conv_kernels.weight_slopes[(len(partials),)](x, slope, partials, pixels, per_part, **ctx.shape, **tile)
        sums = partials.sum(0).to(weight.dtype)
        of_weight = sums[:length, :filters].t().reshape(filters, *kernel, channels).movedim(-1, 1)
        return None, of_weight, None if bias is None else sums[length, :filters], None, None


class _PickedPixels(torch.autograd.Function):
    """A 1×1 convolution of every `stride`-th pixel, with its first derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: tuple[int, int]) -> Tensor:
        picked = _picked(x, stride).contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(picked, weight)
        ctx.like, ctx.stride = x.shape, stride
        return _product(picked, weight.flatten(1).t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        picked, weight = ctx.saved_tensors
        slope = slope.to(picked.dtype).contiguous(memory_format=torch.channels_last)
        of_images = None
        if ctx.needs_input_grad[0]:
            of_images = torch.empty(
                ctx.like, dtype=picked.dtype, device=picked.device, memory_format=torch.channels_last
            )
            _picked(of_images.zero_(), ctx.stride).copy_(_product(slope, weight.flatten(1)))
        of_weight = _pixels(slope).t() @ _pixels(picked)
        return of_images, of_weight.view_as(weight), None


def _picked(images: Tensor, stride: tuple[int, int]) -> Tensor:
    return images[:, :, :: stride[0], :: stride[1]]


def _pixels(images: Tensor) -> Tensor:
    """Images with channels last as (pixels, channels)."""
    return images.movedim(1, -1).flatten(0, 2)


def _product(images: Tensor, matrix: Tensor) -> Tensor:
    """Each pixel times the matrix, (channels, filters)."""
    count, _, *size = images.shape
    return (_pixels(images) @ matrix).view(count, *size, matrix.shape[1]).movedim(-1, 1)


def _rows(weight: Tensor) -> Tensor:
    """(filters, rows × columns × channels), the order in which a patch is read."""
    return weight.movedim(1, -1).reshape(len(weight), -1)


def _shape(x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> dict[str, int]:
    """What the kernels must know of images and patches."""
    filters, channels, *kernel = weight.shape
    height, width = x.shape[2:]
    out = [
        (size + 2 * pad - own) // step + 1
        for size, pad, own, step in zip((height, width), padding, kernel, stride, strict=True)
    ]
    return {
        "HEIGHT": height, "WIDTH": width, "OUT_HEIGHT": out[0], "OUT_WIDTH": out[1], "CHANNELS": channels,
        "KERNEL_WIDTH": kernel[1], "STRIDE_Y": stride[0], "STRIDE_X": stride[1], "PAD_Y": padding[0],
        "PAD_X": padding[1], "LENGTH": channels * kernel[0] * kernel[1], "FILTERS": filters,
    }  # fmt: skip


def _tile(weight: Tensor, bias: Tensor | None) -> dict[str, int]:
    """What a program takes at a time; a product on the GPU has at least 16 of each."""
    length = weight[0].numel() + (bias is not None)
    return {
        "BIAS": bias is not None,
        "BLOCK_P": TILING.pixels,
        "BLOCK_L": max(16, power_above(length)),
        "BLOCK_F": max(16, power_above(len(weight))),
        "num_warps": TILING.warps,
    }

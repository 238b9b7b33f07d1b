"""Kernels of `fused_conv.py`, in Triton. Imported by it alone, where Triton is installed.

A convolution is a product of matrices: a row of patches for each pixel of the output, times the weights. The patches
are read from the image where they are needed, a column of ones after them for the bias; they lie nowhere in memory.
Images have channels last; sums are float32.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# A kernel is written in Triton's Python, which knows neither keyword defaults of ours nor most of the language.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _patches(
    x, first, pixels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr, OUT_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, KERNEL_WIDTH: tl.constexpr, STRIDE_Y: tl.constexpr, STRIDE_X: tl.constexpr,
    PAD_Y: tl.constexpr, PAD_X: tl.constexpr, LENGTH: tl.constexpr, BIAS: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_L: tl.constexpr,
):  # fmt: skip
    """The patches of BLOCK_P pixels, (BLOCK_P, BLOCK_L): 0 beyond the image and behind the patch."""
    pixel = first + tl.arange(0, BLOCK_P)
    column = pixel % OUT_WIDTH
    row = (pixel // OUT_WIDTH) % OUT_HEIGHT
    image = pixel // (OUT_WIDTH * OUT_HEIGHT)
    place = tl.arange(0, BLOCK_L)
    channel = place % CHANNELS
    right = (place // CHANNELS) % KERNEL_WIDTH
    down = place // (CHANNELS * KERNEL_WIDTH)
    y = (row * STRIDE_Y - PAD_Y)[:, None] + down[None, :]
    z = (column * STRIDE_X - PAD_X)[:, None] + right[None, :]
    there = (pixel < pixels)[:, None] & (place < LENGTH)[None, :] & (y >= 0) & (y < HEIGHT) & (z >= 0) & (z < WIDTH)
    at = ((image[:, None] * HEIGHT + y) * WIDTH + z) * CHANNELS + channel[None, :]
    values = tl.load(x + at, mask=there, other=0.0)
    if BIAS:
        values = tl.where((place == LENGTH)[None, :], 1.0, values.to(tl.float32)).to(x.dtype.element_ty)
    return values


@triton.jit(do_not_specialize=["pixels"])
def convolve(
    x, weight, bias, out, pixels, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, CHANNELS: tl.constexpr, KERNEL_WIDTH: tl.constexpr, STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr, LENGTH: tl.constexpr, FILTERS: tl.constexpr,
    BIAS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """out = patches · weightᵀ + bias; weight is (FILTERS, LENGTH), out (pixels, FILTERS)."""
    first = tl.program_id(0) * BLOCK_P
    patches = _patches(
        x, first, pixels, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH, CHANNELS, KERNEL_WIDTH, STRIDE_Y, STRIDE_X, PAD_Y,
        PAD_X, LENGTH, BIAS, BLOCK_P, BLOCK_L,
    )  # fmt: skip
    place = tl.arange(0, BLOCK_L)
    filters = tl.arange(0, BLOCK_F)
    live = (filters < FILTERS)[None, :]
    weights = tl.load(
        weight + filters[None, :] * LENGTH + place[:, None], mask=(place < LENGTH)[:, None] & live, other=0.0
    )
    if BIAS:
        own = tl.load(bias + filters, mask=filters < FILTERS, other=0.0)
        weights = tl.where((place == LENGTH)[:, None], own[None, :], weights)
    pixel = first + tl.arange(0, BLOCK_P)
    sums = tl.dot(patches, weights)
    tl.store(
        out + pixel[:, None] * FILTERS + filters[None, :], sums.to(out.dtype.element_ty),
        mask=(pixel < pixels)[:, None] & live,
    )  # fmt: skip


@triton.jit(do_not_specialize=["pixels", "per_part"])
def weight_slopes(
    x, slope, partials, pixels, per_part, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr, CHANNELS: tl.constexpr, KERNEL_WIDTH: tl.constexpr, STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr, PAD_Y: tl.constexpr, PAD_X: tl.constexpr, LENGTH: tl.constexpr, FILTERS: tl.constexpr,
    BIAS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_F: tl.constexpr,
):  # fmt: skip
    """patchesᵀ · slope of each part of the pixels, into (parts, BLOCK_L, BLOCK_F)."""
    place = tl.arange(0, BLOCK_L)
    filters = tl.arange(0, BLOCK_F)
    sums = tl.zeros((BLOCK_L, BLOCK_F), tl.float32)
    begin = tl.program_id(0) * per_part
    for first in range(begin, tl.minimum(begin + per_part, pixels), BLOCK_P):
        patches = _patches(
            x, first, pixels, HEIGHT, WIDTH, OUT_HEIGHT, OUT_WIDTH, CHANNELS, KERNEL_WIDTH, STRIDE_Y, STRIDE_X, PAD_Y,
            PAD_X, LENGTH, BIAS, BLOCK_P, BLOCK_L,
        )  # fmt: skip
        pixel = first + tl.arange(0, BLOCK_P)
        there = (pixel < pixels)[:, None] & (filters < FILTERS)[None, :]
        own = tl.load(slope + pixel[:, None] * FILTERS + filters[None, :], mask=there, other=0.0)
        sums += tl.dot(tl.trans(patches), own)
    at = (tl.program_id(0) * BLOCK_L + place)[:, None] * BLOCK_F + filters[None, :]
    tl.store(partials + at, sums)

"""Kernels of `fused_norm.py`, in Triton. Imported by it alone, where Triton is installed.

A batch of images with channels last is a matrix of `rows` × `CHANNELS` numbers in memory. A program works on a block of
channels and a part of the rows, tile by tile; sums are float32. What the parts of a sum come to is stored, and a small
kernel adds it, in the same order each time: there are no atomic operations, so that runs repeat bit for bit.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
# A kernel is written in Triton's Python, which knows neither keyword defaults of ours nor most of the language.
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _channels(CHANNELS: tl.constexpr, BLOCK_C: tl.constexpr):
    """The channels of this program, and which of them exist."""
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    return channel, channel < CHANNELS


@triton.jit
def _tile(first, last, channel, live, CHANNELS: tl.constexpr, BLOCK_R: tl.constexpr):
    """Where the numbers of a tile lie, and which of them exist."""
    row = first + tl.arange(0, BLOCK_R)
    return row[:, None] * CHANNELS + channel[None, :], (row < last)[:, None] & live[None, :]


@triton.jit
def _moments(
    x, first, last, channel, live, CHANNELS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Mean, and sum of squared deviations from it, of rows `first` to `last`.

    Everything is taken relative to the first row: squares of large numbers that hardly differ would cancel.
    """
    shift = tl.load(x + first * CHANNELS + channel, mask=live, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for at in tl.range(first, last, BLOCK_R, num_stages=STAGES):
        place, there = _tile(at, last, channel, live, CHANNELS, BLOCK_R)
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        value = tl.where(there, value - shift[None, :], 0.0)
        total += value
        squares += value * value
    count = last - first
    sums = tl.sum(total, 0)
    return shift + sums / count, tl.maximum(tl.sum(squares, 0) - sums * (sums / count), 0.0)


@triton.jit
def _keep_statistics(
    mean, deviations, channel, live, kept, running_mean, running_var, rows, eps, momentum, CHANNELS: tl.constexpr
):
    """Store mean and 1/σ for the backward pass, move the running statistics; gives 1/σ."""
    inverse = tl.rsqrt(deviations / rows + eps)
    tl.store(kept + channel, mean, mask=live)
    tl.store(kept + CHANNELS + channel, inverse, mask=live)
    old = tl.load(running_mean + channel, mask=live, other=0.0)
    tl.store(running_mean + channel, (1.0 - momentum) * old + momentum * mean, mask=live)
    old = tl.load(running_var + channel, mask=live, other=0.0)
    tl.store(running_var + channel, (1.0 - momentum) * old + momentum * (deviations / (rows - 1)), mask=live)
    return inverse


@triton.jit
def _kept(kept, weight, bias, channel, live, CHANNELS: tl.constexpr):
    """Mean, 1/σ, scale and shift of the forward pass."""
    mean = tl.load(kept + channel, mask=live, other=0.0)
    inverse = tl.load(kept + CHANNELS + channel, mask=live, other=0.0)
    scale = inverse * tl.load(weight + channel, mask=live, other=0.0)
    return mean, inverse, scale, tl.load(bias + channel, mask=live, other=0.0)


@triton.jit
def _normalise_rows(
    x, residual, y, mean, scale, shift, first, last, channel, live, CHANNELS: tl.constexpr, BLOCK_R: tl.constexpr,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y = (x - mean) · scale + shift, plus the residual, below 0 cut off. What is not a number stays so."""
    for at in tl.range(first, last, BLOCK_R, num_stages=STAGES):
        place, there = _tile(at, last, channel, live, CHANNELS, BLOCK_R)
        value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * scale[None, :] + shift[None, :]
        if RESIDUAL:
            value += tl.load(residual + place, mask=there, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0.0, 0.0, value)
        tl.store(y + place, value.to(y.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "per_part"])
def part_moments(
    x, partials, rows, per_part, CHANNELS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Mean and squared deviations of each part of the rows, into (parts, 2, CHANNELS)."""
    part = tl.program_id(0)
    channel, live = _channels(CHANNELS, BLOCK_C)
    first = part * per_part
    last = tl.minimum(first + per_part, rows)
    mean, deviations = _moments(x, first, last, channel, live, CHANNELS, BLOCK_R, BLOCK_C, STAGES)
    place = partials + part * (2 * CHANNELS) + channel
    tl.store(place, mean, mask=live)
    tl.store(place + CHANNELS, deviations, mask=live)


@triton.jit(do_not_specialize=["rows", "per_part", "parts"])
def join_moments(
    partials, kept, running_mean, running_var, rows, per_part, parts, eps, momentum, CHANNELS: tl.constexpr,
    BLOCK_C: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The statistics of all parts as those of the whole (Chan, Golub, LeVeque 1979)."""
    channel, live = _channels(CHANNELS, BLOCK_C)
    part = tl.arange(0, PARTS)
    there = (part < parts)[:, None] & live[None, :]
    place = partials + part[:, None] * (2 * CHANNELS) + channel[None, :]
    means = tl.load(place, mask=there, other=0.0)
    inside = tl.load(place + CHANNELS, mask=there, other=0.0)
    count = tl.maximum(tl.minimum(rows - part * per_part, per_part), 0).to(tl.float32)[:, None]
    mean = tl.sum(means * (count / rows), 0)
    between = means - mean[None, :]
    deviations = tl.sum(inside + count * between * between, 0)
    _keep_statistics(mean, deviations, channel, live, kept, running_mean, running_var, rows, eps, momentum, CHANNELS)


@triton.jit(do_not_specialize=["rows", "per_part"])
def normalise_parts(
    x, residual, y, weight, bias, kept, rows, per_part, CHANNELS: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A part of y."""
    channel, live = _channels(CHANNELS, BLOCK_C)
    mean, _, scale, shift = _kept(kept, weight, bias, channel, live, CHANNELS)
    first = tl.program_id(0) * per_part
    last = tl.minimum(first + per_part, rows)
    _normalise_rows(
        x, residual, y, mean, scale, shift, first, last, channel, live, CHANNELS, BLOCK_R, RELU, RESIDUAL, STAGES
    )


@triton.jit(do_not_specialize=["rows"])
def normalise_whole(
    x, residual, y, weight, bias, kept, running_mean, running_var, rows, eps, momentum,
    CHANNELS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Statistics and y of all rows by one program per block of channels, for few rows."""
    channel, live = _channels(CHANNELS, BLOCK_C)
    mean, deviations = _moments(x, 0, rows, channel, live, CHANNELS, BLOCK_R, BLOCK_C, STAGES)
    inverse = _keep_statistics(
        mean, deviations, channel, live, kept, running_mean, running_var, rows, eps, momentum, CHANNELS
    )
    scale = inverse * tl.load(weight + channel, mask=live, other=0.0)
    shift = tl.load(bias + channel, mask=live, other=0.0)
    _normalise_rows(
        x, residual, y, mean, scale, shift, 0, rows, channel, live, CHANNELS, BLOCK_R, RELU, RESIDUAL, STAGES
    )


@triton.jit
def _slope(
    slope, beside, x, y, place, there, mean, scale, shift, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
    BOTH: tl.constexpr,
):  # fmt: skip
    """The slope of what ReLU got, and x - mean. Without a residual, what ReLU got follows from x.

    With `BOTH` the outputs went two ways, and a slope came back from each.
    """
    value = tl.load(slope + place, mask=there, other=0.0).to(tl.float32)
    if BOTH:
        value += tl.load(beside + place, mask=there, other=0.0).to(tl.float32)
    centred = tl.load(x + place, mask=there, other=0.0).to(tl.float32) - mean[None, :]
    if RELU:
        if RESIDUAL:
            before = tl.load(y + place, mask=there, other=0.0).to(tl.float32)
        else:
            before = centred * scale[None, :] + shift[None, :]
        value = tl.where(before <= 0.0, 0.0, value)
    return value, centred


@triton.jit
def _slope_sums(
    slope, beside, x, y, cut, mean, inverse, scale, shift, first, last, channel, live, CHANNELS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, BOTH: tl.constexpr,
    CUT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Σ slope and Σ slope · x̂ of rows `first` to `last`; with `CUT` the slope of what ReLU got is stored."""
    total = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    product = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for at in tl.range(first, last, BLOCK_R, num_stages=STAGES):
        place, there = _tile(at, last, channel, live, CHANNELS, BLOCK_R)
        value, centred = _slope(slope, beside, x, y, place, there, mean, scale, shift, RELU, RESIDUAL, BOTH)
        if CUT:
            tl.store(cut + place, value.to(cut.dtype.element_ty), mask=there)
        total += value
        product += value * centred  # where nothing lies, the slope is 0
    return tl.sum(total, 0), tl.sum(product, 0) * inverse


@triton.jit
def _slope_rows(
    slope, beside, x, y, cut, out, mean, inverse, scale, shift, total, product, first, last, rows, channel, live,
    CHANNELS: tl.constexpr, BLOCK_R: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, BOTH: tl.constexpr,
    CUT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The slope of x: scale · (slope - mean of it - x̂ · mean of slope · x̂)."""
    level = total / rows
    tilt = inverse * (product / rows)
    for at in tl.range(first, last, BLOCK_R, num_stages=STAGES):
        place, there = _tile(at, last, channel, live, CHANNELS, BLOCK_R)
        value, centred = _slope(slope, beside, x, y, place, there, mean, scale, shift, RELU, RESIDUAL, BOTH)
        if CUT:
            tl.store(cut + place, value.to(cut.dtype.element_ty), mask=there)
        value = scale[None, :] * (value - level[None, :] - centred * tilt[None, :])
        tl.store(out + place, value.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "per_part"])
def part_slopes(
    slope, beside, x, y, cut, partials, weight, bias, kept, rows, per_part, CHANNELS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, BOTH: tl.constexpr,
    CUT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Both sums of each part of the rows, into (parts, 2, CHANNELS); with `CUT`, also the slope of what ReLU got."""
    part = tl.program_id(0)
    channel, live = _channels(CHANNELS, BLOCK_C)
    mean, inverse, scale, shift = _kept(kept, weight, bias, channel, live, CHANNELS)
    first = part * per_part
    last = tl.minimum(first + per_part, rows)
    total, product = _slope_sums(
        slope, beside, x, y, cut, mean, inverse, scale, shift, first, last, channel, live, CHANNELS, BLOCK_R, BLOCK_C,
        RELU, RESIDUAL, BOTH, CUT, STAGES,
    )  # fmt: skip
    place = partials + part * (2 * CHANNELS) + channel
    tl.store(place, total, mask=live)
    tl.store(place + CHANNELS, product, mask=live)


@triton.jit(do_not_specialize=["parts"])
def join_slopes(partials, parameter_slopes, parts, CHANNELS: tl.constexpr, BLOCK_C: tl.constexpr, PARTS: tl.constexpr):
    """The sums of all parts, which are the slopes of weight and bias."""
    channel, live = _channels(CHANNELS, BLOCK_C)
    part = tl.arange(0, PARTS)
    there = (part < parts)[:, None] & live[None, :]
    place = partials + part[:, None] * (2 * CHANNELS) + channel[None, :]
    total = tl.sum(tl.load(place, mask=there, other=0.0), 0)
    product = tl.sum(tl.load(place + CHANNELS, mask=there, other=0.0), 0)
    tl.store(parameter_slopes + channel, product, mask=live)
    tl.store(parameter_slopes + CHANNELS + channel, total, mask=live)


@triton.jit(do_not_specialize=["rows", "per_part"])
def input_slopes_parts(
    slope, beside, x, out, weight, bias, kept, parameter_slopes, rows, per_part, CHANNELS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, RELU: tl.constexpr, BOTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A part of the slope of x. `RELU` says that the slope is still to be cut, by what follows from x."""
    channel, live = _channels(CHANNELS, BLOCK_C)
    mean, inverse, scale, shift = _kept(kept, weight, bias, channel, live, CHANNELS)
    product = tl.load(parameter_slopes + channel, mask=live, other=0.0)
    total = tl.load(parameter_slopes + CHANNELS + channel, mask=live, other=0.0)
    first = tl.program_id(0) * per_part
    last = tl.minimum(first + per_part, rows)
    _slope_rows(
        slope, beside, x, x, x, out, mean, inverse, scale, shift, total, product, first, last, rows, channel, live,
        CHANNELS, BLOCK_R, RELU, False, BOTH, False, STAGES,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def input_slopes_whole(
    slope, beside, x, y, cut, out, weight, bias, kept, parameter_slopes, rows, CHANNELS: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, BOTH: tl.constexpr,
    CUT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums and all slopes by one program per block of channels, for few rows."""
    channel, live = _channels(CHANNELS, BLOCK_C)
    mean, inverse, scale, shift = _kept(kept, weight, bias, channel, live, CHANNELS)
    total, product = _slope_sums(
        slope, beside, x, y, cut, mean, inverse, scale, shift, 0, rows, channel, live, CHANNELS, BLOCK_R, BLOCK_C, RELU,
        RESIDUAL, BOTH, False, STAGES,
    )  # fmt: skip
    tl.store(parameter_slopes + channel, product, mask=live)
    tl.store(parameter_slopes + CHANNELS + channel, total, mask=live)
    _slope_rows(
        slope, beside, x, y, cut, out, mean, inverse, scale, shift, total, product, 0, rows, rows, channel, live,
        CHANNELS, BLOCK_R, RELU, RESIDUAL, BOTH, CUT, STAGES,
    )  # fmt: skip

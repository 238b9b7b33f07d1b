"""Tensors on a grid: whole numbers times a power of two, one step per tensor or one per row.

What is not ternary travels like this (biases, BatchNorm, the outer layers). A step is a power of two, so scaling by it
is exact on every machine, and the difference between a value and any older value of it is a whole number of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import EllipsisType
from typing import NamedTuple

import torch
from torch import Tensor

from ternfed.quantize.ternary import check_finite

LOWEST, HIGHEST = -126, 100
"""The exponents that a step may have: 2^-126 is float32's smallest normal number."""
PIECE = 2**20
"""Numbers that are put on a grid at a time."""
BYTE = 127
"""No larger are codes that a byte holds."""
LARGEST = 2**24
"""No code is larger: every multiple of a step up to here is a float32."""


class Grid(NamedTuple):
    """θ = codes · 2^exponent. A tuple of tensors, as `Ternary` is."""

    codes: Tensor
    """int32, the shape of the tensor; int8 of a large one whose codes are all within ±127."""
    exponents: Tensor
    """int16: one number, or one for each row of the first dimension."""

    def dense(self) -> Tensor:
        """The numbers themselves, float32."""
        return self.codes * _along(_powers(self.exponents), self.codes.dim())


def exponents_for(largest: Tensor, bits: int) -> Tensor:
    """The smallest steps with which changes of this size have codes of so many bits: ±(2^(bits-1) - 1) of them.

    `largest` is max|change|, of a tensor or of each row; a change of nothing gets the finest step. One bit is -1, 0 or
    +1 as two are, with twice the step, so that most codes are 0.
    """
    check_finite(largest, "a change")
    top = largest_code(bits)
    mantissa, exponent = torch.frexp(largest.float() / top)  # largest / top = mantissa · 2^exponent, mantissa in [½, 1)
    exact = exponent - (mantissa == 0.5).int()
    return torch.where(largest > 0, exact, LOWEST).clamp(LOWEST, HIGHEST).to(torch.int16)


def largest_code(bits: int) -> float:
    """Of codes of so many bits; half a one where there is one bit, whose step is twice that of two."""
    if bits < 1:
        raise ValueError(f"bits = {bits}: at least 1 is needed")
    return 2 ** (bits - 1) - 1 or 0.5


def on_grid(value: Tensor, exponents: Tensor, source: torch.Generator | None = None) -> Grid:
    """The value rounded to the grid: to nearest, or with a `source` at random so that the mean is the value."""
    check_finite(value, "a tensor")
    codes = torch.empty(value.shape, dtype=torch.int32, device=value.device)
    for own, steps in _steps(value, exponents):
        if source is None:
            steps.round_()
        else:
            # Pieces in order draw the numbers that one draw for all of them would.
            steps.add_(torch.rand(steps.shape, generator=source, dtype=torch.float64).to(steps.device)).floor_()
        codes[own] = steps.clamp_(-LARGEST, LARGEST).to(torch.int32)
    return Grid(codes, exponents.to(torch.int16))


def recognise(value: Tensor) -> Grid | None:
    """The codes and steps of a float32 tensor that lies exactly on a grid whose codes are single bytes."""
    by_row = value.dim() > 1
    if value.dtype != torch.float32 or not value.numel() or not bool(torch.isfinite(value).all()):
        return None
    if by_row and value.numel() > PIECE and recognise(value[0].reshape(-1)) is None:
        return None  # so that a large tensor of floats costs nothing
    mantissa, exponent = torch.frexp(value)
    whole = torch.ldexp(mantissa, torch.tensor(24)).int()
    lowest = torch.frexp((whole & -whole).float()).exponent - 1  # the place of the last bit that is set
    finest = torch.where(value != 0, exponent - 24 + lowest, HIGHEST)
    steps = finest.flatten(1).amin(1) if by_row else finest.amin()
    size = value.abs().flatten(1).amax(1) if by_row else value.abs().max()
    exponents = torch.where(size > 0, steps, LOWEST).clamp(LOWEST, HIGHEST).to(torch.int16)
    if bool((torch.ldexp(size.double(), -exponents.int()) > BYTE).any()):
        return None
    grid = on_grid(value, exponents)
    return grid if torch.equal(grid.dense(), value) else None  # numbers below the finest step of all


def nearest_codes(held: Tensor, exponents: Tensor) -> Tensor:
    """The codes nearest to what a receiver holds already, int32: what a value on this grid is coded given."""
    codes = torch.empty(held.shape, dtype=torch.int32, device=held.device)
    for own, steps in _steps(held, exponents):
        codes[own] = steps.nan_to_num_(0.0, 0.0, 0.0).round_().clamp_(-LARGEST, LARGEST).to(torch.int32)
    return codes


def _steps(value: Tensor, exponents: Tensor) -> Iterator[tuple[slice | EllipsisType, Tensor]]:
    """The value in steps of its grid, float64, some rows at a time: whole, it would be two more of a large model."""
    along = -_along(exponents.int(), value.dim())
    if value.numel() <= PIECE or not value.dim():
        yield ..., torch.ldexp(value.double(), along)
        return
    rows = max(1, PIECE // value[0].numel())
    for at in range(0, len(value), rows):
        own = slice(at, at + rows)
        yield own, torch.ldexp(value[own].double(), along[own] if along.dim() else along)


def _powers(exponents: Tensor) -> Tensor:
    """2^exponent as float32, exactly: all of them are normal numbers, so the exponent's bits say it all."""
    return ((exponents.int() + 127) << 23).view(torch.float32)


def _along(exponents: Tensor, dimensions: int) -> Tensor:
    """One exponent as it is; one per row shaped so that each row meets its own."""
    return exponents if exponents.dim() == 0 else exponents.view(-1, *[1] * (dimensions - 1))

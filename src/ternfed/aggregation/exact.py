"""Sums without rounding: the order of their terms cannot change a bit of them.

Floats are rounded to a grid of 2⁻³⁰ once, as terms; 64 times finer than float32's own at 1. A term is then a whole
number of grid steps, and float64 adds whole numbers exactly while they stay below 2⁵³. Larger sums carry into further
limbs, base 2⁴⁰, which come about only when they are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ternfed.wire import Value, dense, dense_rows, is_large, row_slices

GRID = 2.0**30
BASE = 2.0**40
EXACT = 2.0**52
"""A limb stays below this, which leaves room for the carries of `_joined`."""
INT64 = 2**63


@dataclass(eq=False)
class GridSum:
    """Σ samples · value over floats of any finite size."""

    limbs: list[Tensor] = field(default_factory=list)
    """Whole numbers in float64; the sum is Σ limbs[i] · BASEⁱ grid steps."""
    bounds: list[float] = field(default_factory=list)
    """What the size of each limb cannot exceed."""

    def add(self, value: Tensor, samples: int, largest: float) -> None:
        """Add samples · value, where `largest` is max|value|."""
        steps = samples * GRID
        # In place, on a copy: of a large model every term in float64 counts.
        self._add(value.to(torch.float64, copy=True).mul_(steps).round_(), largest * steps + 1, 0)

    def add_rows(self, value: Value, samples: int, largest: float) -> None:
        """The same for a large value, some rows at a time."""
        steps = samples * GRID
        bound = largest * steps + 1
        if bound >= EXACT / 2:  # which hardly ever happens
            self.add(dense(value), samples, largest)
            return
        if not self.limbs:
            like = value if isinstance(value, Tensor) else value.codes
            self.limbs.append(torch.empty(like.shape, dtype=torch.float64, device=like.device))
            self.bounds.append(bound)
            for own, part in dense_rows(value):  # no sum with 0, which would take the sign of a zero
                self.limbs[0][own] = part.to(torch.float64, copy=True).mul_(steps).round_()
            return
        if self.bounds[0] + bound >= EXACT:
            self._carry(0)
        self.bounds[0] += bound
        for own, part in dense_rows(value):
            self.limbs[0][own] += part.to(torch.float64, copy=True).mul_(steps).round_()

    def mean(self, weight: int) -> Tensor:
        """The sum / weight as float32: a function of the exact sum alone, however it came about."""
        if len(self.limbs) == 1 and is_large(total := self.limbs[0]):
            out = torch.empty(total.shape, dtype=torch.float32, device=total.device)
            for own in row_slices(total):
                out[own] = total[own] / (weight * GRID)
            return out
        return (self._joined() / (weight * GRID)).float()

    def _add(self, term: Tensor, bound: float, place: int) -> None:
        high = None
        if bound >= EXACT / 2:
            high = (term / BASE).trunc_()
            term, high_bound, bound = term - high * BASE, bound / BASE + 1, BASE
        if place == len(self.limbs):
            self.limbs.append(term)
            self.bounds.append(bound)
        else:
            if self.bounds[place] + bound >= EXACT:
                self._carry(place)
            self.limbs[place].add_(term)
            self.bounds[place] += bound
        if high is not None:
            self._add(high, high_bound, place + 1)

    def _carry(self, place: int) -> None:
        high, bound = (self.limbs[place] / BASE).trunc_(), self.bounds[place] / BASE + 1
        self.limbs[place].sub_(high * BASE)
        self.bounds[place] = BASE
        self._add(high, bound, place + 1)

    def _joined(self) -> Tensor:
        """The sum in grid steps, rounded to float64 where it has more than 53 bits.

        With every limb but the highest brought into [0, BASE), the limbs are determined by the sum. Joined from the
        highest on, each step rounds the sum's own leading limbs, so that a limb more or less makes no difference.
        """
        limbs = list(self.limbs)
        for place in range(len(limbs) - 1):
            high = (limbs[place] / BASE).floor_()
            limbs[place] = limbs[place] - high * BASE
            limbs[place + 1] = limbs[place + 1] + high
        total = limbs[-1]
        for limb in reversed(limbs[:-1]):
            total = total * BASE + limb
        return total


@dataclass(eq=False)
class WholeSum:
    """Σ samples · value over integers or truth values."""

    total: Tensor | NDArray[Any] | None = None
    """int64; Python's own integers where that is too small, which is slow and hardly ever happens."""
    bound: int = 0
    """What the size of the sum cannot exceed."""
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.int64

    def add(self, value: Tensor, samples: int, largest: float) -> None:
        """Add samples · value, where `largest` is max|value|."""
        self.bound += samples * int(largest)
        self.shape, self.dtype = tuple(value.shape), value.dtype
        whole = value.reshape(-1).to(torch.int64)
        if self.bound < INT64:
            term = whole * samples
            self.total = term if self.total is None else self.total + term
        else:
            before = 0 if self.total is None else np.asarray(self.total).astype(object)
            self.total = before + whole.numpy().astype(object) * samples

    def mean(self, weight: int) -> Tensor:
        """⌊sum / weight⌋ in the dtype that came in."""
        assert self.total is not None
        quotient = self.total // weight
        flat = quotient if isinstance(quotient, Tensor) else torch.from_numpy(quotient.astype(np.int64))
        return flat.view(self.shape).to(self.dtype)


def sum_for(tensor: Tensor) -> GridSum | WholeSum:
    """An empty sum for tensors like this one."""
    return GridSum() if tensor.is_floating_point() else WholeSum()

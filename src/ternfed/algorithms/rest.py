"""Tensors on a grid as an algorithm sends them: clients' changes rounded at random, the server's model to nearest.

Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, NeurIPS 2017, and Reisizadeh et al.: FedPAQ, AISTATS 2020, round updates
at random so that their mean is right. The server rounds to nearest and keeps what that loses in its own, unrounded
model; of buffers, which are found anew in each round, it keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ternfed.algorithms.algorithm import Network, Weights
from ternfed.quantize.grid import BYTE, HIGHEST, LARGEST, LOWEST, PIECE, Grid, exponents_for, largest_code, on_grid
from ternfed.wire import row_slices

FINEST = 24
"""So many bits hold every code: as many as a float32 has."""
USUAL = 6
"""Of the largest number of a row in a broadcast, unless told: on MNIST finer steps gain nothing (docs/frontier.md)."""

FEW = 1 << 18
"""Numbers of a large tensor that are rounded at a time: what comes about on the way has some forty bytes of each."""
SMALL = 1 << 16
"""Models of so many numbers are rounded in one go."""
BUFFER_BITS = 8
"""Of each number of a buffer, unless told: networks divide by BatchNorm's variances, and so few may have many bits."""


def check_finest(bits: int) -> None:
    """ValueError for a `finest_bits` that no grid can have."""
    if not 2 <= bits <= FINEST:
        raise ValueError(f"finest_bits = {bits}: 2 to {FINEST} is allowed")


def bits_of(names: Iterable[str], network: Network, bits: int | None, buffer_bits: int = BUFFER_BITS) -> dict[str, int]:
    """How many bits each number of these tensors gets; {}: they travel as floats."""
    return {} if bits is None else {name: buffer_bits if name in network.buffers else bits for name in names}


def changes(
    moved: Weights, received: Mapping[str, Tensor], bits: Mapping[str, int], source: torch.Generator | None
) -> dict[str, Grid]:
    """Client: how each tensor differs from what was received, in codes of so many bits.

    Right on average; to nearest without a `source`, by who keeps what is lost.
    """
    return changes_each([moved], received, bits, [source])[0]


def changes_each(
    moved: Sequence[Weights],
    received: Mapping[str, Tensor],
    bits: Mapping[str, int],
    sources: Sequence[torch.Generator | None],
) -> list[dict[str, Grid]]:
    """The changes of several clients, each with a source of its own."""
    together = _together(moved, received, bits, sources)
    if together is not None:
        return together
    return [_one_by_one(own, received, bits, source) for own, source in zip(moved, sources, strict=True)]


def _one_by_one(
    moved: Weights, received: Mapping[str, Tensor], bits: Mapping[str, int], source: torch.Generator | None
) -> dict[str, Grid]:
    out = {}
    for name, tensor in moved.items():  # one at a time: of a large model all differences are another model
        before = received[name]
        if tensor.dim() > 1 and tensor.numel() > PIECE:
            out[name] = _by_rows(tensor, before, bits[name], source)
        else:
            change = tensor.float() - before.float()
            out[name] = on_grid(change, _steps(change, bits[name]), source)
    return out


def _by_rows(tensor: Tensor, before: Tensor, bits: int, source: torch.Generator | None) -> Grid:
    """The change of a large tensor, some rows at a time: each row has a step of its own."""
    narrow = torch.int8 if largest_code(bits) <= BYTE else torch.int32
    codes = torch.empty(tensor.shape, dtype=narrow, device=tensor.device)
    exponents = torch.empty(len(tensor), dtype=torch.int16, device=tensor.device)
    for own in row_slices(tensor, FEW):
        change = tensor[own].float() - before[own].float()
        part, exponents[own] = on_grid(change, _steps(change, bits), source)
        if codes.dtype is torch.int8 and part.numel() and max(-int(part.min()), int(part.max())) > BYTE:
            codes = codes.to(torch.int32)  # a change so large that no step is: it has larger codes
        codes[own] = part
    return Grid(codes, exponents)


class _Rows(NamedTuple):
    """The rows of some tensors end to end: each has a step of its own."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    largest_codes: NDArray[np.float32]
    counts: list[int]
    """Of each tensor."""


@lru_cache(64)
def _rows(shapes: tuple[tuple[int, ...], ...], bits: tuple[int, ...]) -> _Rows:
    counts = [shape[0] if len(shape) > 1 else 1 for shape in shapes]
    lengths = np.repeat([prod(shape) // count for shape, count in zip(shapes, counts, strict=True)], counts)
    tops = np.repeat(np.array([largest_code(each) for each in bits], np.float32), counts)
    return _Rows(np.cumsum(lengths) - lengths, lengths, tops, counts)


def _together(
    moved: Sequence[Weights],
    received: Mapping[str, Tensor],
    bits: Mapping[str, int],
    sources: Sequence[torch.Generator | None],
) -> list[dict[str, Grid]] | None:
    """The same for all tensors in one go, as thousands of small models want it; None where it does not apply."""
    names = list(moved[0])
    tensors = [own[name] for own in moved for name in names]
    sizes = [moved[0][name].numel() for name in names]
    if not 0 < sum(sizes) <= SMALL or 0 in sizes:
        return None
    before = [received[name] for name in names]
    if any(tensor.device.type != "cpu" for tensor in tensors + before):
        return None
    new, old = (torch.cat([tensor.detach().reshape(-1) for tensor in part]).float() for part in (tensors, before))
    change = (new.view(len(moved), -1) - old).numpy()
    shapes = [tuple(tensor.shape) for tensor in before]
    rows = _rows(tuple(shapes), tuple(bits[name] for name in names))
    largest = np.maximum.reduceat(np.abs(change), rows.starts, axis=1)
    if not np.isfinite(largest).all():
        return None  # one by one, so that it is refused as ever
    mantissa, exponent = np.frexp(largest / rows.largest_codes)
    exponents = np.where(largest > 0, exponent - (mantissa == 0.5), LOWEST).clip(LOWEST, HIGHEST)
    steps = change * np.repeat(np.ldexp(1.0, -exponents), rows.lengths, axis=1)
    for own, source in zip(steps, sources, strict=True):
        if source is None:
            np.rint(own, out=own)
        else:
            own += torch.rand(len(own), generator=source, dtype=torch.float64).numpy()
            np.floor(own, out=own)
    codes = torch.from_numpy(steps.clip(-LARGEST, LARGEST).astype(np.int32))
    powers, columns = torch.from_numpy(exponents.astype(np.int16)), []
    for shape, own, power in zip(
        shapes, torch.split(codes, sizes, dim=1), torch.split(powers, rows.counts, dim=1), strict=True
    ):
        pairs = own.view(len(moved), *shape), power if len(shape) > 1 else power[:, 0]
        columns.append([Grid(*pair) for pair in zip(*(part.unbind() for part in pairs), strict=True)])
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def rounded(weights: Weights, before: Weights, bits: Mapping[str, int], finest: int = FINEST) -> dict[str, Grid]:
    """Server: each tensor to nearest. Its change since the last broadcast, or it itself, has codes of so many bits.

    However little has changed, a step is large enough for the tensor itself to have codes of `finest` bits, which are
    never fewer than the change has. A variance is at least one step: networks divide by it.
    """
    out = {}
    for name, tensor in weights.items():
        change = tensor - before[name] if name in before else tensor
        steps = torch.maximum(_steps(change, bits[name]), _steps(tensor, max(finest, bits[name])))
        grid = on_grid(tensor, steps)
        out[name] = grid._replace(codes=grid.codes.clamp_min(1)) if _is_variance(name) else grid
    return out


def added(own: Weights, shown: Weights, change: Weights, network: Network) -> Weights:
    """The server's own tensors after the mean change from what clients were shown; a variance stays one.

    What rounding lost of a parameter comes later. Of a buffer it must not: a variance below one step is shown as a
    whole one, and the difference, added to each new estimate, would take that to 0.
    """
    moved = {n: (shown[n] if n in network.buffers else tensor) + change[n] for n, tensor in own.items()}
    return {name: tensor.clamp_min(0) if _is_variance(name) else tensor for name, tensor in moved.items()}


def _is_variance(name: str) -> bool:
    return name.endswith("running_var")


def _steps(change: Tensor, bits: int) -> Tensor:
    """One step for each row of a matrix or kernel, one for anything smaller."""
    if change.dim() > 1 and change.numel():
        return exponents_for(change.abs().flatten(1).amax(1), bits)
    rows = change.shape[:1] if change.dim() > 1 else ()
    return exponents_for(change.abs().max().expand(rows) if change.numel() else torch.zeros(rows), bits)

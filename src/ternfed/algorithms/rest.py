"""Tensors on a grid as an algorithm sends them: clients' changes rounded at random, the server's model to nearest.

Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, NeurIPS 2017, and Reisizadeh et al.: FedPAQ, AISTATS 2020, round updates
at random so that their mean is right. The server rounds to nearest and keeps what that loses in its own, unrounded
model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ternfed.algorithms.algorithm import Network, Weights
from ternfed.quantize.grid import Grid, exponents_for, on_grid

FINEST = 24
"""So many bits hold every code: as many as a float32 has."""


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
    moved: Weights, received: Weights, bits: Mapping[str, int], source: torch.Generator | None
) -> dict[str, Grid]:
    """Client: how each tensor differs from what was received, in codes of so many bits.

    Right on average; to nearest without a `source`, by who keeps what is lost.
    """
    out = {}
    for name, tensor in moved.items():  # one at a time: of a large model all differences are another model
        change = tensor.float() - received[name].float()
        out[name] = on_grid(change, _steps(change, bits[name]), source)
    return out


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


def added(weights: Weights, change: Weights) -> Weights:
    """The tensors with their changes; a variance stays one."""
    moved = {name: tensor + change[name] for name, tensor in weights.items()}
    return {name: tensor.clamp_min(0) if _is_variance(name) else tensor for name, tensor in moved.items()}


def _is_variance(name: str) -> bool:
    return name.endswith("running_var")


def _steps(change: Tensor, bits: int) -> Tensor:
    """One step for each row of a matrix or kernel, one for anything smaller."""
    if change.dim() > 1 and change.numel():
        return exponents_for(change.abs().flatten(1).amax(1), bits)
    rows = change.shape[:1] if change.dim() > 1 else ()
    return exponents_for(change.abs().max().expand(rows) if change.numel() else torch.zeros(rows), bits)

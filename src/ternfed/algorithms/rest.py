"""Tensors on a grid as an algorithm sends them: clients' changes rounded at random, the server's model to nearest.

Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, NeurIPS 2017, and Reisizadeh et al.: FedPAQ, AISTATS 2020, round updates
at random so that their mean is right. The server rounds to nearest and keeps what that loses in its own, unrounded
model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ternfed.algorithms.algorithm import Weights
from ternfed.quantize.grid import LARGEST, Grid, exponents_for, on_grid


def changes(moved: Weights, received: Weights, bits: int, source: torch.Generator) -> dict[str, Grid]:
    """Client: how each tensor differs from what was received, in codes of so many bits, right on average."""
    differences = {name: tensor.float() - received[name].float() for name, tensor in moved.items()}
    return {name: on_grid(change, _steps(change, bits), source) for name, change in differences.items()}


def rounded(weights: Weights, before: Weights, bits: int) -> dict[str, Grid]:
    """Server: each tensor to nearest. Its change since the last broadcast, or it itself, has codes of so many bits."""

    def steps(name: str, weight: Tensor) -> Tensor:
        # Of a row that hardly changes the step would be so fine that its own codes have no place.
        change = weight - before[name] if name in before else weight
        return torch.maximum(_steps(change, bits), _steps(weight, LARGEST.bit_length()))

    return {name: on_grid(weight, steps(name, weight)) for name, weight in weights.items()}


def added(weights: Weights, change: Weights) -> Weights:
    """The tensors with their changes; a variance stays one."""
    moved = {name: tensor + change[name] for name, tensor in weights.items()}
    return {name: tensor.clamp_min(0) if name.endswith("running_var") else tensor for name, tensor in moved.items()}


def _steps(change: Tensor, bits: int) -> Tensor:
    """One step for each row of a matrix or kernel, one for anything smaller."""
    if change.dim() > 1 and change.numel():
        return exponents_for(change.abs().flatten(1).amax(1), bits)
    rows = change.shape[:1] if change.dim() > 1 else ()
    return exponents_for(change.abs().max().expand(rows) if change.numel() else torch.zeros(rows), bits)

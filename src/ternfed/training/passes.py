"""The forward and the backward pass of a chain of linear layers, by hand and for many clients at once.

Activations lie as (clients, features, samples), because W · Xᵀ and Ȳ · X are the products that BLAS runs fastest for
narrow layers. A client must end with the same bits whoever is trained beside it, and BLAS and PyTorch choose their code
by the size of a product or a sum. So a single client is computed as one of two, and a short batch is filled up only as
far as nobody's bits change (`widest`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from ternfed.training.chain import Layer

WHOLE = 16
"""A short batch is filled up to a multiple of this: the rest after whole vectors is computed by other code."""
WAYS = ((0.0, 1.0), (1.0, -0.1), (0.9, 1.0), (0.9, -0.1))
"""What gradients are products for, (keep, times) of keep · tensor + times · product: by themselves, in SGD's step, its
momentum, and a step with weight decay."""
COMPARED = 8
"""So many clients' numbers are compared, so that equal bits are no accident even of the smallest layers."""

Gradient = Tensor | tuple[Tensor, Tensor]
"""A pair stands for its batched product, so that the product can be added right onto what it changes."""
Multiply = Callable[[Tensor, Tensor], Tensor]
"""The batched product."""


def forward(chain: Sequence[Layer], weights: Mapping[str, Tensor], inputs: Tensor, multiply: Multiply) -> list[Tensor]:
    """The inputs and every layer's outputs, (clients, features, samples)."""
    values = [inputs]
    for layer in chain:
        above = multiply(weights[layer.weight], values[-1])
        if layer.bias is not None:
            above += weights[layer.bias].unsqueeze(2)
        values.append(above.relu_() if layer.relu else above)
    return values


def backward(
    chain: Sequence[Layer],
    weights: Mapping[str, Tensor],
    values: list[Tensor],
    slope: Tensor,
    multiply: Multiply,
    batch: int,
) -> dict[str, Gradient]:
    """The gradients of the chain's tensors, from its `values` (one more than layers) and that of its last output.

    `batch`: how many samples a whole one has.
    """
    gradients: dict[str, Gradient] = {}
    for i, layer in reversed(list(enumerate(chain))):
        if layer.relu:
            slope = torch.ops.aten.threshold_backward(slope, values[i + 1], 0)
        gradients[layer.weight] = slope, values[i].transpose(1, 2)
        if layer.bias is not None:
            # PyTorch adds up 48 numbers in another order than those and 16 zeros.
            missing = batch - slope.size(2)
            gradients[layer.bias] = (functional.pad(slope, (0, missing)) if missing else slope).sum(2)
        if i > 0:
            slope = multiply(weights[layer.weight].transpose(1, 2), slope)
    return gradients


def product(gradient: Gradient, multiply: Multiply) -> Tensor:
    """The gradient itself."""
    return multiply(*gradient) if isinstance(gradient, tuple) else gradient


def as_among_many(first: Tensor, second: Tensor) -> Tensor:
    """The batched product, for one client with the bits that it has among many: BLAS rounds a single one otherwise."""
    return torch.bmm(first, second) if first.size(0) > 1 else torch.bmm(twice(first), twice(second))[:1]


def twice(single: Tensor) -> Tensor:
    """One client as two, without a copy."""
    return single.expand(2, -1, -1)


def widest(chain: Sequence[Layer], weights: Mapping[str, Tensor], width: int, batch: int) -> int:
    """How far a batch of so many samples may be filled up on a CPU; `batch` on others."""
    like = weights[chain[0].weight]
    if like.device.type != "cpu":
        return batch
    names = [name for layer in chain for name in (layer.weight, layer.bias) if name is not None]
    shapes = tuple((name, weights[name].shape[1:]) for name in names)
    while width < batch and _same_bits(tuple(chain), shapes, like.dtype, width, min(batch, width + WHOLE)):
        width = min(batch, width + WHOLE)
    return width


@cache
def _same_bits(
    chain: tuple[Layer, ...], shapes: tuple[tuple[str, torch.Size], ...], dtype: torch.dtype, width: int, filled: int
) -> bool:
    """Whether samples that are filled up to more have the same bits, tried with random numbers.

    Nothing tells which code BLAS chooses. MKL's for small products with AVX-512, for one, adds a gradient to weights
    with another rounding than its code for large ones, and 16 samples are small where 32 are not.
    """
    source = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(COMPARED, *shape, generator=source, dtype=dtype)

    weights = {name: random(*shape) / shape[-1] ** 0.5 for name, shape in shapes}
    inputs = random(filled, weights[chain[0].weight].shape[2])
    slope = random(weights[chain[-1].weight].shape[1], filled)
    slope[:, :, width:] = 0

    def results(samples: int) -> Iterator[Tensor]:
        values = forward(chain, weights, inputs[:, :samples].contiguous().transpose(1, 2), torch.bmm)
        yield values[-1][:, :, :width]
        short = slope[:, :, :samples].contiguous()
        for name, gradient in backward(chain, weights, values, short, torch.bmm, filled).items():
            if isinstance(gradient, tuple):
                yield from (torch.baddbmm(weights[name], *gradient, beta=keep, alpha=times) for keep, times in WAYS)
            else:
                yield gradient

    return all(torch.equal(one, other) for one, other in zip(results(width), results(filled), strict=True))

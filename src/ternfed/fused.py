"""The quantizers of `ternary.py` for many layers at once, in a few kernels: what training uses.

All layers lie end to end in one flat tensor, cut into segments: one a layer, or one a (client, layer) pair when the
tensors carry a leading client dimension. A threshold or a factor is then one number a segment, spread over its
elements by an index. `quantize_all` is the differentiable form; `forward` and `backward` are its two halves, for
training loops that write their own backward pass. Tests hold it to `ternary.quantize` to float64 rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ternfed.ternary import FactorGradient, Quantizer, Rule, Scale


class Trace(NamedTuple):
    """What the backward half needs from the forward half; flat, n elements in s segments."""

    kept: Tensor
    """(n,) bool: where the code is not 0."""
    codes: Tensor
    """(n,) in the dtype of the weights."""
    scale: Tensor
    """(n,) or, for one segment, (1,): the size of each kept weight."""
    factors: Tensor | None
    """(s,) or (2s,)."""
    shapes: tuple[torch.Size, ...]
    batched: bool
    quantizer: Quantizer


def quantize_all(
    latents: Sequence[Tensor], factors: Sequence[Tensor], quantizer: Quantizer, *, batched: bool = False
) -> list[Tensor]:
    """θ^t of many layers, differentiable: the list version of `ternary.quantize`.

    `factors` holds (1,) or (2,) a layer, and nothing at all for the scale `mean`. With `batched`, every latent has
    shape (clients, …) and every factor (clients, 1 or 2).
    """
    return list(_QuantizeAll.apply(quantizer, batched, len(latents), *latents, *factors))  # type: ignore[no-untyped-call]


def forward(
    latents: Sequence[Tensor], factors: Sequence[Tensor], quantizer: Quantizer, *, batched: bool = False
) -> tuple[list[Tensor], Trace]:
    """The ternary weights of every layer, and the trace its `backward` reads."""
    shapes = tuple(latent.shape for latent in latents)
    flat = _join(latents, batched)
    segments = _segments(shapes, batched, flat.device)
    size = flat.abs()
    delta = segments.reduce(size, "amax" if quantizer.rule is Rule.MAX else "mean") * quantizer.factor
    kept = size > segments.spread(delta)
    codes = flat.sign() * kept
    joined = None
    if quantizer.scale is Scale.MEAN:
        count = segments.reduce(kept.to(flat.dtype), "sum").clamp_min(1)
        scale = segments.spread(segments.reduce(size * kept, "sum") / count)
    elif quantizer.scale is Scale.TRAINED:
        joined = _join(factors, batched)
        scale = segments.spread(joined)
    else:
        joined = _join(factors, batched)
        pair = joined.view(-1, 2)
        scale = torch.where(codes > 0, segments.spread(pair[:, 0]), segments.spread(pair[:, 1])).abs()
    trace = Trace(kept, codes, scale, joined, shapes, batched, quantizer)
    return _split(codes * scale, shapes, batched), trace


def backward(trace: Trace, gradients: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """From ∂J/∂θ^t of every layer to the gradients of its latent weights (eq. grad_fp) and of its factors."""
    flat = _join(gradients, trace.batched)
    segments = _segments(trace.shapes, trace.batched, flat.device)
    latents = flat if trace.quantizer.straight else torch.where(trace.kept, flat * trace.scale, flat)
    split = _split(latents, trace.shapes, trace.batched)
    if trace.factors is None:
        return split, []
    if trace.quantizer.scale is Scale.PAIR:
        plus = segments.dot(flat, (trace.codes > 0).to(flat.dtype))
        both = segments.dot(flat, trace.codes)
        summed = torch.stack((plus, both - plus), dim=1).view(-1) * trace.factors.sign()
    elif trace.quantizer.gradient is FactorGradient.PAPER:
        summed = segments.dot(flat, (trace.codes > 0).to(flat.dtype))
    else:
        summed = segments.dot(flat, trace.codes)
    width = 2 if trace.quantizer.scale is Scale.PAIR else 1
    lead = trace.shapes[0][:1] if trace.batched else torch.Size()
    return split, _split(summed, ((*lead, width),) * len(trace.shapes), trace.batched)


class _QuantizeAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, quantizer: Quantizer, batched: bool, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        weights, trace = forward(tensors[:count], tensors[count:], quantizer, batched=batched)
        ctx.save_for_backward(*trace[:4])
        ctx.rest = trace[4:]
        return tuple(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        latents, factors = backward(Trace(*ctx.saved_tensors, *ctx.rest), gradients)
        return (None, None, None, *latents, *factors)


def _join(tensors: Sequence[Tensor], batched: bool) -> Tensor:
    """All elements end to end, (n,): by layer, or by client and then layer."""
    if len(tensors) == 1:
        return tensors[0].reshape(-1)
    if batched:
        return torch.cat([t.reshape(t.shape[0], -1) for t in tensors], dim=1).view(-1)
    return torch.cat([t.reshape(-1) for t in tensors])


def _split(flat: Tensor, shapes: Sequence[tuple[int, ...]], batched: bool) -> list[Tensor]:
    """The inverse of `_join`: views of the flat tensor."""
    if len(shapes) == 1:
        return [flat.view(shapes[0])]
    if batched:
        parts = torch.split(flat.view(shapes[0][0], -1), [_length(s, batched) for s in shapes], dim=1)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
    parts = torch.split(flat, [prod(s) for s in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _length(shape: tuple[int, ...], batched: bool) -> int:
    return prod(shape[1:] if batched else shape)


@dataclass(frozen=True)
class _Segments:
    """How n elements lie in s = clients × layers segments."""

    clients: int
    layers: tuple[int, ...]
    """The length of each layer."""
    lengths: Tensor
    """(s,)"""
    index: Tensor
    """(n,) the segment of each element."""

    def reduce(self, flat: Tensor, how: str) -> Tensor:
        """The sum, mean or maximum (`amax`) of each segment, (s,)."""
        if len(set(self.layers)) == 1:
            return _along_rows(flat.view(-1, self.layers[0]), how)
        if flat.device.type == "cpu":  # where segment_reduce is several times slower than a reduction a layer
            parts = torch.split(flat.view(self.clients, -1), list(self.layers), dim=1)
            return torch.stack([_along_rows(part, how) for part in parts], dim=1).view(-1)
        # unsafe skips checks that would wait for the device; the lengths are ours and add up.
        return torch.segment_reduce(flat, how.removeprefix("a"), lengths=self.lengths, unsafe=True)

    def dot(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ left · right of each segment, (s,)."""
        return self.reduce(left * right, "sum")

    def spread(self, numbers: Tensor) -> Tensor:
        """One number a segment, (s,), given to each of its elements, (n,)."""
        return numbers if len(self.lengths) == 1 else numbers.index_select(0, self.index)


def _along_rows(rows: Tensor, how: str) -> Tensor:
    return rows.sum(1) if how == "sum" else rows.mean(1) if how == "mean" else rows.amax(1)


@lru_cache(maxsize=64)
def _segments(shapes: tuple[torch.Size, ...], batched: bool, device: torch.device) -> _Segments:
    layers = tuple(_length(shape, batched) for shape in shapes)
    clients = shapes[0][0] if batched else 1
    lengths = torch.tensor(layers * clients, device=device)
    return _Segments(clients, layers, lengths, torch.repeat_interleave(lengths))

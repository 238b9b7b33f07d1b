"""The quantizers of `ternary.py` for many layers at once, in a few kernels: what training uses.

All layers lie end to end in one flat tensor, cut into segments: one per layer, or one per (client, layer) pair when the
tensors carry a leading client dimension. A threshold or a factor is then one number per segment, spread over its
elements by an index. `quantize_all` is the differentiable form; `forward` and `backward` are its two halves, for
training loops that write their own backward pass. Tests hold it to `ternary.quantize` to float64 rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ternfed.quantize.pieces import is_large, pieces
from ternfed.quantize.ternary import FactorGradient, Quantizer, Rule, Scale


class Trace(NamedTuple):
    """What the backward half needs from the forward half; flat, n elements in s segments."""

    kept: Tensor
    """(n,) or (s, n/s), like the next two: 1 where the code is not 0, else 0; of large layers the codes themselves."""
    codes: Tensor
    """In the dtype of the weights; int8 of a large layer with one factor."""
    scale: Tensor
    """The size of each kept weight, or (s, 1)."""
    factors: Tensor | None
    """(s,) or (2s,)."""
    shapes: tuple[torch.Size, ...]
    batched: bool
    segments: Segments
    quantizer: Quantizer


def quantize_all(
    latents: Sequence[Tensor],
    factors: Sequence[Tensor],
    quantizer: Quantizer,
    *,
    batched: bool = False,
    dtype: torch.dtype | None = None,
    segments: Segments | None = None,
) -> list[Tensor]:
    """θ^t of many layers, differentiable: the list version of `ternary.quantize`.

    `factors` holds (1,) or (2,) a layer, and nothing at all for the scale `mean`. With `batched`, every latent has
    shape (clients, …) and every factor (clients, 1 or 2). `dtype` rounds the result, all layers in one kernel.
    Whoever calls it often keeps the `segments` of its layers and hands them over.
    """
    # The order of a layer's elements does not matter here, so that of their memory, which takes no copies, is best.
    last = [not batched and _is_channels_last(latent) for latent in latents]
    moved = [latent.movedim(1, -1) if flag else latent for latent, flag in zip(latents, last, strict=True)]
    segments = segments or Segments.of(moved, batched=batched)
    weights = _QuantizeAll.apply(quantizer, batched, segments, dtype, len(latents), *moved, *factors)  # type: ignore[no-untyped-call]
    return [weight.movedim(-1, 1) if flag else weight for weight, flag in zip(weights, last, strict=True)]


def forward(
    latents: Sequence[Tensor],
    factors: Sequence[Tensor],
    quantizer: Quantizer,
    *,
    batched: bool = False,
    thresholds: Tensor | None = None,
    segments: Segments | None = None,
) -> tuple[list[Tensor], Trace]:
    """The ternary weights of every layer, and the trace its `backward` reads.

    `thresholds`, (clients, 1), gives each client a factor of its own (T_k) in place of the quantizer's.
    """
    shapes = tuple(latent.shape for latent in latents)
    joined = _join(factors, batched) if factors else None
    segments = segments or Segments.of(latents, batched=batched)
    weights, trace = forward_flat(_join(latents, batched), joined, shapes, quantizer, segments, batched, thresholds)
    return _split(weights, shapes, batched), trace


def forward_flat(
    flat: Tensor,
    factors: Tensor | None,
    shapes: tuple[torch.Size, ...],
    quantizer: Quantizer,
    segments: Segments,
    batched: bool = False,
    thresholds: Tensor | None = None,
) -> tuple[Tensor, Trace]:
    """`forward` of layers that lie end to end already: (n,) latent weights, (s,) or (2s,) factors."""
    flat = segments.lay(flat)
    size = flat.abs()
    delta = segments.reduce(size, "amax" if quantizer.rule is Rule.MAX else "mean")
    delta.view(-1, len(shapes)).mul_(quantizer.factor if thresholds is None else thresholds)
    # Masks are 0 and 1 in the dtype of the weights: mixing bool and float takes several times as long.
    room = torch.empty_like(size) if quantizer.scale is Scale.MEAN else size  # whose sizes are of use no longer
    kept = torch.gt(size, segments.spread(delta), out=room)
    # Of large layers every tensor counts: there the codes stand for what is kept, too.
    codes = torch.copysign(kept, flat, out=kept if room is size and is_large(flat) else None)
    if quantizer.scale is Scale.MEAN:
        count = segments.reduce(kept, "sum").clamp_min(1)
        scale = segments.spread(segments.dot(size, kept) / count)
    elif factors is None:
        raise ValueError(f"the scale '{quantizer.scale}' trains factors: start_factors(latent, quantizer) makes them")
    elif quantizer.scale is Scale.TRAINED:
        scale = segments.spread(factors.abs())
    else:
        positive, negative = (segments.spread(part) for part in factors.view(-1, 2).abs().unbind(1))
        scale = _chosen(codes.clamp_min(0), positive, negative)
    if kept is codes and scale.numel() == 1:
        kept = codes = codes.to(torch.int8)
        weights = room.mul_(scale)  # where the codes were
    else:
        weights = codes * scale
    return weights.view(-1), Trace(kept, codes, scale, factors, shapes, batched, segments, quantizer)


def backward(trace: Trace, gradients: Sequence[Tensor], over: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    """From ∂J/∂θ^t of every layer to the gradients of its latent weights (eq. grad_fp) and of its factors.

    `over`: of a large layer they may be written over those that were given.
    """
    latents, factors = backward_flat(trace, _join(gradients, trace.batched), over)
    split = _split(latents, trace.shapes, trace.batched)
    if factors is None:
        return split, []
    width = 2 if trace.quantizer.scale is Scale.PAIR else 1
    lead = trace.shapes[0][:1] if trace.batched else torch.Size()
    return split, _split(factors, ((*lead, width),) * len(trace.shapes), trace.batched)


def backward_flat(trace: Trace, flat: Tensor, over: bool = False) -> tuple[Tensor, Tensor | None]:
    """`backward` of layers that lie end to end: (n,) and (s,) or (2s,)."""
    segments = trace.segments
    flat = segments.lay(flat if trace.codes.dtype is torch.int8 else flat.to(trace.codes.dtype))
    summed = _of_factors(trace, flat)
    if trace.quantizer.straight:
        return flat.view(-1), summed
    if trace.kept is trace.codes and trace.scale.numel() == 1:
        latents = flat if over else torch.empty_like(flat)
        for out, codes, own in pieces(latents, trace.codes, flat):
            out[:] = _chosen(codes.abs().to(own.dtype), own * trace.scale.view(-1), own)
        return latents.view(-1), summed
    kept = trace.kept.abs() if trace.kept is trace.codes else trace.kept
    return _chosen(kept, flat * trace.scale, flat).view(-1), summed


def _of_factors(trace: Trace, flat: Tensor) -> Tensor | None:
    """The gradients of the factors, where there are some."""
    segments = trace.segments
    if trace.factors is None or trace.quantizer.scale is Scale.MEAN:
        return None
    if trace.quantizer.scale is Scale.PAIR:
        plus = segments.dot(flat, trace.codes.clamp_min(0))
        both = segments.dot(flat, trace.codes)
        summed = torch.stack((plus, both - plus), dim=1).view(-1) * trace.factors.sign().view(-1)
    else:
        counted = trace.codes.clamp_min(0) if trace.quantizer.gradient is FactorGradient.PAPER else trace.codes
        summed = segments.dot(flat, counted) * trace.factors.sign().view(-1)
        if trace.quantizer.gradient is FactorGradient.SCALED:
            summed.mul_(segments.lengths.to(summed.dtype).rsqrt())
    return summed


def _chosen(mask: Tensor, one: Tensor, zero: Tensor) -> Tensor:
    """`one` where the mask is 1, `zero` where it is 0: `lerp` is exact at both ends, and faster than `where`."""
    return torch.lerp(zero, one, mask)


class _QuantizeAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        quantizer: Quantizer,
        batched: bool,
        segments: Segments,
        dtype: torch.dtype | None,
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        shapes = tuple(latent.shape for latent in tensors[:count])
        factors = _join(tensors[count:], batched) if len(tensors) > count else None
        weights, trace = forward_flat(_join(tensors[:count], batched), factors, shapes, quantizer, segments, batched)
        ctx.save_for_backward(*trace[:4])
        ctx.rest = trace[4:]
        return tuple(_split(weights.to(dtype or weights.dtype), shapes, batched))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        latents, factors = backward(Trace(*ctx.saved_tensors, *ctx.rest), gradients)
        return (None, None, None, None, None, *latents, *factors)


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


def _join(tensors: Sequence[Tensor], batched: bool) -> Tensor:
    """All elements end to end, (n,): by layer, or by client and then layer. A single layer stays as it is."""
    if len(tensors) == 1:
        return tensors[0]
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


@dataclass(frozen=True, eq=False)
class Segments:
    """How n elements lie in s = clients × layers segments; its index is as long as they are, so somebody owns it."""

    clients: int
    layers: tuple[int, ...]
    """The length of each layer."""
    device: torch.device

    @staticmethod
    def of(latents: Sequence[Tensor], *, batched: bool = False) -> Segments:
        """Those of some layers."""
        lengths = tuple(_length(latent.shape, batched) for latent in latents)
        return Segments(latents[0].shape[0] if batched else 1, lengths, latents[0].device)

    @cached_property
    def lengths(self) -> Tensor:
        """(s,)"""
        return torch.tensor(self.layers * self.clients, device=self.device)

    @cached_property
    def index(self) -> Tensor:
        """(n,) the segment of each element."""
        return torch.repeat_interleave(self.lengths)

    @cached_property
    def piece(self) -> int:
        """The longest length that all layers are multiples of."""
        return gcd(*self.layers)

    @cached_property
    def members(self) -> Tensor:
        """(layers, pieces of a client) bool: which pieces make up which layer."""
        layer = torch.arange(len(self.layers), device=self.device)
        counts = torch.tensor([length // self.piece for length in self.layers], device=self.device)
        return layer.unsqueeze(1) == layer.repeat_interleave(counts)

    @cached_property
    def even(self) -> bool:
        """All segments have one length, so that they are the rows of a matrix."""
        return len(set(self.layers)) == 1

    def lay(self, flat: Tensor) -> Tensor:
        """The elements as the other functions take them: (s, n/s) where the segments are even, else (n,)."""
        return flat.reshape(-1, self.layers[0]) if self.even else flat

    def reduce(self, laid: Tensor, how: str) -> Tensor:
        """The sum, mean or maximum (`amax`) of each segment, (s,)."""
        if self.even:
            return _along_rows(laid, how)
        if laid.device.type == "cpu":  # where segment_reduce is several times slower than a reduction per layer
            parts = torch.split(laid.view(self.clients, -1), list(self.layers), dim=1)
            return torch.stack([_along_rows(part, how) for part in parts], dim=1).view(-1)
        if len(self.layers) <= 4 * self.piece:  # else what `members` spreads out would be longer than the weights
            return self.reduce_by_pieces(laid, how)
        # unsafe skips checks that would wait for the device; the lengths are ours and add up.
        return torch.segment_reduce(laid, how.removeprefix("a"), lengths=self.lengths, unsafe=True)

    def reduce_by_pieces(self, laid: Tensor, how: str) -> Tensor:
        """Like `reduce`, for a maximum of at least 0: three kernels, however many layers of whatever lengths."""
        one = "amax" if how == "amax" else "sum"
        pieces = _along_rows(laid.view(-1, self.piece), one).view(self.clients, 1, -1)
        whole = _along_rows(pieces * self.members, one).view(-1)
        return whole / self.lengths if how == "mean" else whole

    def dot(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ left · right of each segment, (s,)."""
        if len(self.layers) * self.clients == 1 and is_large(left):
            return torch.stack([(one * other).sum() for one, other in pieces(left, right)]).sum().view(1)
        return self.reduce(left * right, "sum")

    def spread(self, numbers: Tensor) -> Tensor:
        """One number per segment, (s,), shaped so that each of its elements meets it."""
        return numbers.view(-1, 1) if self.even else numbers.index_select(0, self.index)


def _along_rows(rows: Tensor, how: str) -> Tensor:
    return rows.sum(-1) if how == "sum" else rows.mean(-1) if how == "mean" else rows.amax(-1)

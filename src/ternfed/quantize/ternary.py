"""Ternary weights: what they are, where the thresholds lie, and how a network is trained through them.

Three quantizers share one shape. Each picks, layer by layer, a threshold Δ and codes in {-1, 0, +1}; they differ in
where the scales come from and how gradients pass:

| preset | paper            | scales                       | gradient of the latent weights        |
|--------|------------------|------------------------------|---------------------------------------|
| `TWN`  | Li & Liu 2016    | mean of the kept weights     | straight through                      |
| `TTQ`  | Zhu et al. 2016  | two trained factors w_p, w_n | times the factor where the code is ±1 |
| `FTTQ` | Xu et al. 2020   | one trained factor w^q       | times the factor where the code is ±1 |

`quantize` is the plain version, one layer at a time, and the documentation of all three. `fused.py` computes the
same for many layers in a few kernels. Equations are named by their label in the FTTQ paper (Xu et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from ternfed.quantize.pieces import is_large, pieces


class Rule(StrEnum):
    """Which size of a layer its threshold is a fraction of."""

    MAX = "max"
    MEAN = "mean"


class Scale(StrEnum):
    """Where the scales of a layer come from."""

    TRAINED = "trained"
    """One factor w^q a layer, trained with the weights (FTTQ)."""
    PAIR = "pair"
    """Two factors w_p, w_n a layer, trained with the weights (TTQ)."""
    MEAN = "mean"
    """No factor: the mean of the weights above the threshold, computed anew each step (TWN)."""


class FactorGradient(StrEnum):
    """The gradient of FTTQ's factor w^q, with g = ∂J/∂θ^t and codes I."""

    PAPER = "paper"
    """Σ g over I_p alone (eq. grad_wq)."""
    EXACT = "exact"
    """Σ g·I over I_p and I_n: the true derivative of θ^t = w^q · I."""
    SCALED = "scaled"
    """The exact one over √n, n the layer's weights (as Esser et al. 2020 scale the gradient of a learned step): the sum
    grows with the layer, and plain SGD would diverge on wide ones. Adam does not see the difference."""


class NonFiniteError(ValueError):
    """A tensor that must be quantized holds NaN or infinity."""


class Ternary(NamedTuple):
    """A ternary tensor: θ^t = w_p on code +1, 0 on code 0, -w_n on code -1.

    A tuple of tensors, so it passes through `torch.func.vmap` and other tree functions.
    """

    codes: Tensor
    """int8 in {-1, 0, +1}, the shape of the weight."""
    positive: Tensor
    """w_p ≥ 0, one number (0 where no code is +1)."""
    negative: Tensor
    """w_n ≥ 0, one number (0 where no code is -1)."""

    def dense(self) -> Tensor:
        """The weights themselves: scale × code, in the dtype of the scales, the shape of the codes."""
        if not is_large(self.codes):
            return _dense(self.codes, self.positive, self.negative)
        out = torch.empty(self.codes.shape, dtype=self.positive.dtype, device=self.codes.device)
        for codes, own in pieces(self.codes, out):
            own.copy_(_dense(codes, self.positive, self.negative))
        return out


def _dense(codes: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    return torch.where(codes > 0, positive, negative).mul_(codes)


@dataclass(frozen=True)
class Quantizer:
    """How a layer's latent weights become ternary ones."""

    rule: Rule = Rule.MEAN
    factor: float = 0.7
    scale: Scale = Scale.TRAINED
    gradient: FactorGradient = FactorGradient.EXACT
    straight: bool = False
    """Latent gradients pass unchanged, instead of times the factor where the code is ±1 (eq. grad_fp)."""

    def __post_init__(self) -> None:
        check_threshold_factor(self.rule, self.factor)


def check_threshold_factor(rule: Rule, factor: float) -> None:
    """Refuse a factor with which no weight, or a meaningless set of them, could be kept."""
    if not (math.isfinite(factor) and factor >= 0):
        raise ValueError(f"threshold factor {factor} must be a finite number of at least 0")
    if rule is Rule.MAX and factor >= 1:
        raise ValueError(f"threshold factor {factor} must be under 1 with the rule 'max', or no weight is kept")


TWN = Quantizer(Rule.MEAN, 0.7, Scale.MEAN, straight=True)
TTQ = Quantizer(Rule.MAX, 0.05, Scale.PAIR)
FTTQ = Quantizer(Rule.MEAN, 0.05, Scale.TRAINED, FactorGradient.PAPER)
"""The letter of the FTTQ paper; `Quantizer()` is what trained best so far (docs/recipe.md)."""


def threshold(weight: Tensor, rule: Rule, factor: float) -> Tensor:
    """Δ of one layer: factor · max|θ| (eq. ttq_delta, ttq_Bound) or factor · mean|θ| (eq. Attq_Bound)."""
    return factor * (_largest(weight) if rule is Rule.MAX else weight.abs().mean())


def _largest(weight: Tensor) -> Tensor:
    """max|θ|."""
    if not is_large(weight):
        return weight.abs().max()
    low, high = torch.aminmax(weight)
    return torch.maximum(-low, high)


def client_factor(
    client: int, clients: int, generator: torch.Generator, base: float = 0.05, spread: float = 0.01
) -> float:
    """T_k of client k in 0..N-1 (eq. tk): base + spread · (a random number, or k/N, on the toss of a coin)."""
    if not 0 <= client < clients:
        raise ValueError(f"client {client} must be one of 0 to {clients - 1}")
    coin, number = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    share: float = number if coin > 0.5 else client / clients
    return base + spread * share


def normalise(weight: Tensor) -> Tensor:
    """θ^s = g(θ) = θ / max|θ|, in [-1, 1] (eq. scale_funtion); an all-zero layer stays zero."""
    return weight / largest_size(weight)


def largest_size(weight: Tensor) -> Tensor:
    """max|θ|; 1 for an all-zero layer."""
    largest = _largest(weight)
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def codes_of(weight: Tensor, delta: Tensor) -> Tensor:
    """I^t = sign(mask ⊙ θ), mask = ε(|θ| - Δ) (eq. mask_1, I): int8, the shape of the weight."""
    if not is_large(weight):
        return _codes(weight, delta)
    out = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    for own, codes in pieces(weight, out):
        codes.copy_(_codes(own, delta))
    return out


def _codes(weight: Tensor, delta: Tensor) -> Tensor:
    return (weight > delta).to(torch.int8).sub_((weight < -delta).to(torch.int8))


def kept_scales(weight: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """w_p*, w_n*: the mean size of the weights coded +1 and -1 (eq. optimal_solution); 0 for an empty set."""
    return _mean_size(weight, codes, lambda codes: codes > 0), _mean_size(weight, codes, lambda codes: codes < 0)


def kept_scale(weight: Tensor, codes: Tensor) -> Tensor:
    """α*: the mean size of all weights coded ±1 (eq. twn and below); 0 when none is."""
    return _mean_size(weight, codes, lambda codes: codes != 0)


def _mean_size(weight: Tensor, codes: Tensor, which: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean size of the weights with these codes."""
    if not is_large(weight) or not codes.is_contiguous():
        kept = which(codes)
        return weight.abs().mul_(kept).sum() / torch.count_nonzero(kept).clamp_min(1)
    sizes, count = torch.empty_like(weight), torch.zeros((), dtype=torch.int64)
    for own, own_codes, size in pieces(weight, codes, sizes):
        kept = which(own_codes)
        torch.mul(own.abs(), kept, out=size)
        count += torch.count_nonzero(kept)
    return sizes.sum() / count.clamp_min(1)  # the sum of all: one of pieces would be rounded otherwise


def start_factors(latent: Tensor, quantizer: Quantizer) -> Tensor | None:
    """The factors a layer's training starts from, shape (1,) or (2,): the optimal scales of its latent weights."""
    codes = codes_of(latent, threshold(latent, quantizer.rule, quantizer.factor))
    match quantizer.scale:
        case Scale.MEAN:
            return None
        case Scale.TRAINED:
            return kept_scale(latent, codes).reshape(1)
        case Scale.PAIR:
            return torch.stack(kept_scales(latent, codes))


def quantize(latent: Tensor, factors: Tensor | None, quantizer: Quantizer) -> Tensor:
    """θ^t of one layer for training: ternary going forward, the quantizer's gradients going back.

    Forward: eq. Attq_Bound, mask_1, I and update_w, or eq. ttq_quantize with two factors. Factors count by their size:
    one that crosses zero must not turn all signs of a layer around at once. The normalisation of eq. scale_funtion
    needs no step of its own: both threshold rules scale with the weights, so θ and θ/max|θ| have the same codes.
    Backward: eq. grad_fp for the latent weights, and `FactorGradient` for w^q.
    The factors have shape (1,) for `trained`, (2,) for `pair`; `mean` takes None.
    """
    fixed = latent.detach()
    size = fixed.abs()
    kept = size > quantizer.factor * (size.max() if quantizer.rule is Rule.MAX else size.mean())
    codes = fixed.sign() * kept
    match quantizer.scale:
        case Scale.MEAN:
            scale = (size * kept).sum() / kept.sum().clamp_min(1)
            weight = codes * scale
        case Scale.TRAINED:
            scale = _required(factors, quantizer).abs()
            if quantizer.gradient is FactorGradient.SCALED:
                scale = scale.detach() + (scale - scale.detach()) / math.sqrt(latent.numel())
            weight = codes * scale
            if quantizer.gradient is FactorGradient.PAPER:
                # Only I_p passes a gradient to w^q; the part on I_n keeps its value.
                weight = torch.where(codes > 0, weight, weight.detach())
        case Scale.PAIR:
            positive, negative = _required(factors, quantizer).abs().unbind()
            scale = torch.where(codes > 0, positive, negative)
            weight = codes * scale
    gain = torch.where(kept, scale.detach(), 1)
    # latent - fixed is exactly zero: it adds nothing to the value and carries the latent weights' gradient.
    return weight + (latent - fixed) if quantizer.straight else torch.addcmul(weight, gain, latent - fixed)


def _required(factors: Tensor | None, quantizer: Quantizer) -> Tensor:
    if factors is None:
        raise ValueError(f"the scale '{quantizer.scale}' trains factors: start_factors(latent, quantizer) makes them")
    return factors


def ternary_of(latent: Tensor, factors: Tensor | None, quantizer: Quantizer, name: str = "weight") -> Ternary:
    """What `quantize` computes, as the value that is sent: codes, and scales of at least 0."""
    with torch.no_grad():
        check_finite(latent, name)
        codes = codes_of(latent, threshold(latent, quantizer.rule, quantizer.factor))
        if quantizer.scale is Scale.MEAN:
            scale = kept_scale(latent, codes)
            return Ternary(codes, scale, scale.clone())
        scales = _required(factors, quantizer)
        check_finite(scales, f"{name} (its factors)")
        return Ternary(codes, scales[0].abs(), scales[-1].abs())


def twn(weight: Tensor, factor: float = 0.7, name: str = "weight") -> Ternary:
    """The ternary tensor nearest a weight by TWN's rule of thumb: Δ = 0.7 · mean|θ|, one scale α (eq. twn)."""
    return ternary_of(weight, None, Quantizer(Rule.MEAN, factor, Scale.MEAN, straight=True), name)


def recognise(weight: Tensor) -> Ternary | None:
    """The codes and scales of a weight that is exactly scale × code: at most one value above zero and one below."""
    if weight.dtype != torch.float32 or not bool(torch.isfinite(weight).all()):
        return None
    above, below = weight[weight > 0], weight[weight < 0]
    if any(bool((side != side[0]).any()) for side in (above, below) if len(side)):
        return None
    none = weight.new_zeros(())
    return Ternary(weight.sign().to(torch.int8), above[0] if len(above) else none, -below[0] if len(below) else none)


def requantize(
    weight: Tensor,
    rule: Rule = Rule.MAX,
    factor: float = 0.05,
    name: str = "weight",
    held: Tensor | None = None,
    hold: float = 0.0,
) -> Ternary:
    """The server's quantization of an averaged layer: Δ^S, then w_p^S and w_n^S (Algorithm 2).

    A weight whose code in `held` is 0 gets another only beyond (1 + hold) · Δ, and one that has another only loses it
    below (1 - hold) · Δ.
    """
    check_threshold_factor(rule, factor)
    with torch.no_grad():
        check_finite(weight, name)
        delta = threshold(weight, rule, factor)
        if held is None or not hold:
            codes = codes_of(weight, delta)
        else:
            codes = torch.where(held != 0, codes_of(weight, (1 - hold) * delta), codes_of(weight, (1 + hold) * delta))
        return Ternary(codes, *kept_scales(weight, codes))


def check_finite(tensor: Tensor, name: str) -> None:
    """Raise `NonFiniteError` naming the tensor when it holds NaN or infinity."""
    parts = (part for (part,) in pieces(tensor)) if is_large(tensor) else (tensor,)
    if not all(bool(torch.isfinite(part).all()) for part in parts):
        raise NonFiniteError(f"{name} holds NaN or infinity and cannot be quantized")

"""The paper's propositions on trained layers: prints the tables of docs/theory.md (`ternfed bench theory`).

The network is the MLP on scikit-learn's digits. tests/quantize/test_propositions.py checks the propositions where their
assumptions hold; this measures by how much they fail where training has been at work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from math import ceil
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ternfed.bench.tables import markdown
from ternfed.models import mlp
from ternfed.quantize.ternary import (
    TTQ,
    Quantizer,
    Rule,
    codes_of,
    kept_scale,
    kept_scales,
    normalise,
    quantize,
    requantize,
    start_factors,
    ternary_of,
    threshold,
)
from ternfed.sweep.trial import one_thread

Data = tuple[Tensor, Tensor]
Rows = defaultdict[str, list[tuple[float, ...]]]
SEEDS = range(5)
CLIENTS, ROUNDS, LOCAL_EPOCHS, BATCH, RATE = 10, 20, 5, 64, 0.1
# A factor's gradient is a sum over its whole layer: at the weights' own rate TTQ's training diverges. Where the factors
# end depends on their rate, so all of these are shown.
FACTOR_RATES = (RATE, RATE / 10, RATE / 100, RATE / 1000)


@dataclass(frozen=True)
class LayerFacts:
    """What propositions 1 and 2 say about one layer θ^s = θ / max|θ|, at the threshold Δ = 0.05 (rule `max`)."""

    size: float
    """mean |θ^s|: ½ for U(-1, 1)."""
    gap: float
    """|w_p* - w_n*| relative to their mean: 0."""
    gap_deviations: float
    """The same gap in standard deviations of symmetric weights: under about 2."""
    factor: float
    """w^q*: (1 + Δ)/2 = 0.525."""
    shift: float
    """|mean FTTQ(θ) - mean θ| relative to mean |θ|: 0."""
    shift_deviations: float
    """The same shift in standard deviations of independent weights: under about 2."""
    error: float
    """‖FTTQ(θ) - θ‖ / ‖θ‖: what a per-weight unbiased estimator would average away, and this one does not."""


@dataclass(frozen=True)
class Divergence:
    """‖θ - θ^Cen‖ / ‖θ^Cen‖ of a federated layer, plain and quantized."""

    plain: float
    """WD of FedAvg (eq. weight_divergence)."""
    ratio: float
    """WD of the same layer requantized with Δ = 0, over WD of FedAvg: √(7/8) = 0.935 in the paper."""
    ratio_server: float
    """The same with the server's Δ = 0.05 · max."""
    zero: float
    """WD of the layer 0 over WD of FedAvg: √(1/2) = 0.707 under the paper's assumptions."""
    agreement: float
    """β = ⟨θ - θ^q, θ^Cen⟩ / ‖θ - θ^q‖²: quantization brings the layer nearer to θ^Cen exactly when β < ½."""


def relative_gap(positive: float, negative: float) -> float:
    """|w_p - w_n| over their mean."""
    return 2 * abs(positive - negative) / (positive + negative)


def layer_facts(weight: Tensor) -> LayerFacts:
    """Propositions 1 and 2 on one layer; deviations from its own kept weights, as independent draws."""
    scaled = normalise(weight.double())
    codes = codes_of(scaled, threshold(scaled, Rule.MAX, 0.05))
    positive, negative = (float(scale) for scale in kept_scales(scaled, codes))
    above, below = scaled[codes > 0], scaled[codes < 0]
    spread = float(above.var() / above.numel() + below.var() / below.numel()) ** 0.5
    factor = kept_scale(scaled, codes)
    error = factor * codes - scaled
    return LayerFacts(
        size=float(scaled.abs().mean()),
        gap=relative_gap(positive, negative),
        gap_deviations=abs(positive - negative) / spread,
        factor=float(factor),
        shift=float(error.mean().abs() / scaled.abs().mean()),
        shift_deviations=float(error.mean().abs() / (error.square().mean() / error.numel()).sqrt()),
        error=float(error.norm() / scaled.norm()),
    )


def divergence(federated: Tensor, central: Tensor) -> Divergence:
    """Proposition 3 on one layer of two models that started from the same weights."""
    fed, cen = federated.double(), central.double()
    plain = (fed - cen).norm()
    half, server = requantize(fed, factor=0.0).dense(), requantize(fed).dense()
    return Divergence(
        plain=float(plain / cen.norm()),
        ratio=float((half - cen).norm() / plain),
        ratio_server=float((server - cen).norm() / plain),
        zero=float(cen.norm() / plain),
        agreement=float(((fed - half) * cen).sum() / (fed - half).square().sum()),
    )


def digits() -> tuple[Data, Data]:
    """Scikit-learn's digits in [0, 1]: 1,437 to train with and 360 to test, always the same ones."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
    return (x[:1437], y[:1437]), (x[1437:], y[1437:])


def split(labels: Tensor, classes: int, generator: torch.Generator) -> list[Tensor]:
    """Indices of each client: IID with 10 classes, else shards of the sorted labels, `classes` of them per client."""
    if classes == 10:
        return list(torch.randperm(len(labels), generator=generator).chunk(CLIENTS))
    shards = labels.argsort(stable=True).chunk(CLIENTS * classes)
    dealt = torch.randperm(len(shards), generator=generator).chunk(CLIENTS)
    return [torch.cat([shards[i] for i in hand]) for hand in dealt]


def train(
    state: dict[str, Tensor],
    data: Data,
    epochs: int,
    generator: torch.Generator,
    quantizer: Quantizer | None = None,
    factor_rate: float = RATE / 100,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """SGD from `state`; with a quantizer every layer is trained through it. Returns the weights and the factors."""
    latents = {name: weight.detach().clone().requires_grad_() for name, weight in state.items()}
    factors: dict[str, Tensor] = {}
    if quantizer is not None:
        for name, weight in latents.items():
            start = start_factors(weight.detach(), quantizer)
            assert start is not None
            factors[name] = start.requires_grad_()
    groups: list[dict[str, Any]] = [{"params": list(latents.values()), "lr": RATE}]
    if factors:
        groups.append({"params": list(factors.values()), "lr": factor_rate})
    optimizer = torch.optim.SGD(groups)
    model = mlp(inputs=64)
    x, y = data
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(y), generator=generator), BATCH):
            weights = latents
            if quantizer is not None:
                weights = {name: quantize(weight, factors[name], quantizer) for name, weight in latents.items()}
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(functional_call(model, weights, (x[batch],)), y[batch])
            torch.autograd.backward(loss)
            optimizer.step()
    return ({n: w.detach() for n, w in latents.items()}, {n: f.detach() for n, f in factors.items()})


def fedavg(
    state: dict[str, Tensor], data: Data, parts: Sequence[Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """FedAvg with every client in every round."""
    x, y = data
    for _ in range(ROUNDS):
        total = {name: torch.zeros_like(weight) for name, weight in state.items()}
        for part in parts:
            own, _ = train(state, (x[part], y[part]), LOCAL_EPOCHS, generator)
            for name, weight in own.items():
                total[name] += weight * (len(part) / len(y))
        state = total
    return state


def accuracy(state: dict[str, Tensor], data: Data) -> float:
    """Percent of the examples classified rightly."""
    x, y = data
    return 100 * float((functional_call(mlp(inputs=64), state, (x,)).argmax(1) == y).double().mean())


def start_state(seed: int) -> dict[str, Tensor]:
    """The initial weights of a seed, PyTorch's default: U(-b, b) in each layer."""
    torch.manual_seed(seed)
    return {name: weight.detach() for name, weight in mlp(inputs=64).named_parameters()}


def summary(values: Iterable[float]) -> str:
    numbers = list(values)
    return f"{mean(numbers):.3f} ± {stdev(numbers):.3f}" if len(numbers) > 1 else f"{numbers[0]:.3f}"


def names(kind: type[LayerFacts] | type[Divergence]) -> list[str]:
    return [field.name for field in fields(kind)]


@dataclass(frozen=True)
class Theory:
    """Rows by name, one entry per seed: what `table` shows."""

    accuracy: Rows
    facts: Rows
    factors: Rows
    apart: Rows


@one_thread()
def run(seeds: Iterable[int] = SEEDS) -> Theory:
    """Train centralized, with TTQ and federated from the same start, and measure every layer."""
    data, test = digits()
    epochs = ROUNDS * LOCAL_EPOCHS
    right: Rows = defaultdict(list)
    facts: Rows = defaultdict(list)
    factors: Rows = defaultdict(list)
    apart: Rows = defaultdict(list)
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        uniform = 2 * torch.rand(1_000_000, generator=generator, dtype=torch.float64) - 1
        facts["U(-1, 1), a million weights"].append(astuple(layer_facts(uniform)))
        start = start_state(seed)
        central, _ = train(start, data, epochs, generator)
        right["centralized"].append((accuracy(central, test),))
        # As many steps one after another as a client of FedAvg takes: equal epochs are eight times as many.
        steps = ROUNDS * LOCAL_EPOCHS * ceil(ceil(len(data[1]) / CLIENTS) / BATCH)
        brief, _ = train(start, data, round(steps / ceil(len(data[1]) / BATCH)), torch.Generator().manual_seed(seed))
        right["centralized, as many steps as a client"].append((accuracy(brief, test),))
        for name in start:
            layer = name.removesuffix(".weight")
            facts[f"{layer}, before training"].append(astuple(layer_facts(start[name])))
            facts[f"{layer}, trained"].append(astuple(layer_facts(central[name])))
        for rate in FACTOR_RATES:
            latents, pairs = train(start, data, epochs, torch.Generator().manual_seed(seed), TTQ, rate)
            ternary = {name: ternary_of(weight, pairs[name], TTQ).dense() for name, weight in latents.items()}
            right[f"centralized, TTQ, factors at {rate:g}"].append((accuracy(ternary, test),))
            for name, weight in latents.items():
                positive, negative = pairs[name].abs().tolist()
                best = requantize(weight)
                factors[f"{name.removesuffix('.weight')}, factors at {rate:g}"].append(
                    (positive, negative, relative_gap(positive, negative), float(best.positive), float(best.negative))
                )
        for classes in (10, 2):
            federated = fedavg(start, data, split(data[1], classes, generator), generator)
            right[f"FedAvg, N_c = {classes}"].append((accuracy(federated, test),))
            for name, weight in federated.items():
                row = f"{name.removesuffix('.weight')}, N_c = {classes}"
                apart[row].append(astuple(divergence(weight, central[name])))
                apart[f"{row}, equal steps"].append(astuple(divergence(weight, brief[name])))
    return Theory(right, facts, factors, apart)


def table(theory: Theory) -> str:
    """The tables of docs/theory.md: mean ± standard deviation over the seeds."""
    epochs = ROUNDS * LOCAL_EPOCHS
    seeds = len(next(iter(theory.accuracy.values())))
    sections = [
        ("Accuracy on 360 test images", ["%"], theory.accuracy),
        ("Propositions 1 and 2: one layer, Δ = 0.05", names(LayerFacts), theory.facts),
        ("The factors that TTQ trained", ["w_p", "w_n", "gap", "w_p* of θ", "w_n* of θ"], theory.factors),
        ("Proposition 3: divergence from the centralized model", names(Divergence), theory.apart),
    ]
    head = f"MLP 64-30-20-10 on digits, {seeds} seeds, {epochs} epochs or {ROUNDS} rounds × {LOCAL_EPOCHS} epochs"
    return "\n\n".join([head, *(f"### {title}\n\n{_section(columns, rows)}" for title, columns, rows in sections)])


def _section(columns: Sequence[str], rows: Rows) -> str:
    return markdown(
        ("", *columns),
        [(name, *(summary(column) for column in zip(*rows[name], strict=True))) for name in sorted(rows)],
    )

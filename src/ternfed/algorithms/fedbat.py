"""FedBAT: a client learns an update that is binary, one bit per weight, and the size of its steps.

Li, Xu, Wang, Tang, Qi, Xu, Luo, Li, He, Li: FedBAT: Communication-Efficient Federated Learning via Learnable
Binarization, ICML 2024. The first part of the local steps trains plain weights. Then the network computes with the
received weights plus a binarized update: ±α, drawn so that the mean is the update as long as that lies in [-α, α].
Gradients pass through to the update where it does, and to α, which starts at the update's mean size and learns as
α₀ · exp(ρ·a). What is sent is one last draw: a sign per weight, and α of each tensor.

As in the authors' public code: α₀ and the limits of α, matrices and kernels alone are binarized, and a learns at the
rate of the weights. Vectors (biases, BatchNorm) are on a grid, as are broadcasts: there it is FedPAQ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ternfed.algorithms import fedpaq
from ternfed.algorithms.algorithm import UP, About, Algorithm, Client, Local, Network, Training, Weights
from ternfed.algorithms.fedavg import receive
from ternfed.algorithms.network import dense_weights
from ternfed.algorithms.rest import FINEST, USUAL, bits_of, changes
from ternfed.algorithms.statistics import Statistics
from ternfed.quantize.ternary import Ternary
from ternfed.wire import Message, Value

ABOUT = About("FedBAT", trains_ternary=False, sends_trits=True, before={"finest_bits": FINEST})

SMALLEST, LARGEST = 5e-4, 5e-2
"""The limits of α."""


@dataclass(frozen=True)
class Settings:
    """FedBAT's settings."""

    warm_up: float = 0.5
    """φ: the share of the local steps that trains plain weights."""
    rho: float = 6.0
    """ρ: how fast α learns; 0: it stays at α₀."""
    rest_bits_up: int = 4
    """Of each number that is not binarized: its change, rounded at random."""
    bits_down: int | None = 4
    """Of each number of a broadcast: its change since the last one, rounded to nearest. "none": floats."""
    finest_bits: int = USUAL
    """No step of a broadcast is finer than this: the largest number of a row has at most so many bits."""
    statistics: Statistics = Statistics.AVERAGE

    def __post_init__(self) -> None:
        if not 0 <= self.warm_up < 1:
            raise ValueError(f"warm_up = {self.warm_up}: 0 to below 1 is allowed")
        if self.rho < 0:
            raise ValueError(f"rho = {self.rho}: at least 0 is needed")
        if not 1 <= self.rest_bits_up <= 8:
            raise ValueError(f"rest_bits_up = {self.rest_bits_up}: 1 to 8 is allowed")
        fedpaq.Settings(bits_down=self.bits_down, finest_bits=self.finest_bits)


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedPAQ with binary updates that are learned."""
    base = fedpaq.algorithm(
        network,
        training,
        fedpaq.Settings(
            settings.rest_bits_up,
            settings.bits_down,
            statistics=settings.statistics,
            finest_bits=settings.finest_bits,
        ),
    )
    shapes = {name: tensor.shape for name, tensor in network.weights().items()}
    binary = tuple(name for name in network.parameters if name in network.floats and len(shapes[name]) > 1)
    rest = tuple(name for name in network.floats if name not in binary)
    rest_bits = bits_of(rest, network, settings.rest_bits_up)

    def start(message: Message, memory: Any, client: Client) -> tuple[Local, Any]:
        # Of each tensor: α₀, which is 0 until the warm-up ends, and a.
        return replace(receive(message, network), factors={name: torch.zeros(2) for name in binary}), memory

    def forward(leaves: Weights, factors: Weights, started: Local, done: float) -> Weights:
        if done < settings.warm_up:
            return leaves
        used = dict(leaves)
        for name in binary:
            update, factor = leaves[name] - started.weights[name], factors[name]
            if not factor[0]:
                with torch.no_grad():
                    factor[0] = update.abs().mean() if update.numel() else 0.0
            used[name] = started.weights[name] + _binarize(update, _step(factor, settings.rho))
        return used

    def finish(local: Local, received: Message, memory: Any, client: Client) -> tuple[Message, Any]:
        moved = network.without_counters({**local.weights, **local.buffers})
        before, source = dense_weights(received), client.draw("binarize")
        values: dict[str, Value] = {name: tensor for name, tensor in moved.items() if name not in network.floats}
        values |= changes({name: moved[name] for name in rest}, before, rest_bits, client.draw("changes"))
        for name in binary:
            step, update = _step(local.factors[name], settings.rho), moved[name] - before[name]
            drawn = torch.rand(update.shape, generator=source)
            values[name] = Ternary((2 * ups(update, step, drawn) - 1).to(torch.int8), step, step)
        return Message(values, {}), memory

    up = network.schema(binary, UP, grid=rest)
    return replace(
        base, name="fedbat", training=replace(training, forward=forward), up=(up,), start=start, finish=finish
    )


def ups(update: Tensor, step: Tensor, drawn: Tensor) -> Tensor:
    """1 where the draw from [0, 1) makes an update +α, 0 where it makes it -α: right on average between the two."""
    return (drawn < (update / step + 1) / 2).to(update.dtype)


def _step(factor: Tensor, rho: float) -> Tensor:
    """α of a tensor."""
    return (factor[0].detach() * torch.exp(rho * factor[1])).clamp(SMALLEST, LARGEST)


class _Binarize(torch.autograd.Function):
    """±α at random, with the authors' derivatives for the update and for α."""

    @staticmethod
    def forward(ctx: Any, update: Tensor, step: Tensor, drawn: Tensor) -> Tensor:
        signs = 2 * ups(update, step, drawn) - 1
        ctx.save_for_backward(update / step, signs)
        return signs * step

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        ratio, signs = ctx.saved_tensors
        inside = ratio.abs() <= 1
        # Between -α and α, what the draw added to the update moves with α; beyond, the whole value does.
        by_step = torch.where(inside, signs - ratio, signs)
        return gradient * inside, (gradient * by_step).sum(), None


def _binarize(update: Tensor, step: Tensor) -> Tensor:
    binarized: Tensor = _Binarize.apply(update, step, torch.rand_like(update))  # type: ignore[no-untyped-call]
    return binarized

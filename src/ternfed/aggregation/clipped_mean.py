"""The weighted mean, in which an upload that moved a tensor much farther than most did is pulled back or left out.

Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019, clip each client's update to a norm;
Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021, show what that is good for.
Here the norm follows from the round itself, tensor by tensor: `FACTOR` times the median of the clients' own, or of what
would be the tensor's part of their whole update, where that is more; and more for clients with more samples than the
median, who take more steps. Whoever is beyond `FAR` times that is left out. As long as nobody is beyond the norm, the
result is that of `mean` to the bit. The uploads of a round are held in memory until its end, up to `MOST_BYTES`: where
there may be more, and where fewer than three came, nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt

import torch
from torch import Tensor

from ternfed.aggregation import mean
from ternfed.aggregation.aggregation import Aggregation, Start, Uploads, median, refuse_second, samples_of, values_of
from ternfed.wire import Message, dense

FACTOR = 3.0
"""Honest clients rarely differ by more; with two classes per client one in fifty does (docs/security.md)."""
FAR = 2.0
MOST_BYTES = 1 << 30
FEWEST = 3
"""Of two that disagree nobody knows who lies."""


@dataclass(eq=False)
class Clipped:
    """What has arrived so far."""

    center: Mapping[str, Tensor] | None = None
    """What a client sends that has learned nothing; None: nothing is clipped, nothing is held."""
    sums: mean.Sums = field(default_factory=mean.Sums)
    messages: dict[int, Message] = field(default_factory=dict)
    norms: dict[int, dict[str, float]] = field(default_factory=dict)
    """‖upload - center‖ of each float tensor, by client."""


def aggregation() -> Aggregation[Clipped]:
    """The clipped mean."""
    return Aggregation("clipped_mean", Clipped, add, finish, begin_at)


def begin_at(start: Start) -> Clipped:
    """Before the first upload of a round that started there."""
    size = max(start.size, sum(tensor.nbytes for tensor in start.center.values()))
    is_held = start.expected >= FEWEST and start.expected * size <= MOST_BYTES
    return Clipped(start.center if is_held else None)


def add(state: Clipped, client: int, message: Message) -> None:
    """Keep a client's model, and how far it moved."""
    if state.center is None or not message.tensors:
        mean.add(state.sums, client, message)
        return
    refuse_second(client, state.messages)
    samples_of(message)
    values = values_of(message)
    state.norms[client] = {
        name: norm_of(value.tensor, state.center.get(name))
        for name, value in values.items()
        if value.tensor.is_floating_point()
    }
    state.messages[client] = message


def finish(state: Clipped) -> Uploads:
    """The mean of what is left."""
    clients = sorted(state.messages)
    norms = limits(state) if len(clients) >= FEWEST else {}
    usual = median([samples_of(state.messages[client]) for client in clients]) if clients else 0
    notes: dict[int, str] = {}
    for client in clients:
        message = state.messages.pop(client)
        steps = max(1.0, samples_of(message) / max(usual, 1))
        most = {name: norm * steps for name, norm in norms.items()}
        beyond = {n: size for n, size in state.norms[client].items() if n in most and size > most[n]}
        if beyond:
            worst = max(beyond, key=lambda n: beyond[n] / most[n] if most[n] else beyond[n])
            others = f" and {len(beyond) - 1} more" if len(beyond) > 1 else ""
            far = any(size > FAR * most[n] for n, size in beyond.items())
            fate = f"left out, {FAR * most[worst]:.3g} is the most" if far else f"clipped to {most[worst]:.3g}"
            notes[client] = f"client {client}: {worst}{others} moved {beyond[worst]:.3g}, {fate}"
            if far:
                continue
            pulled = {n: _pulled(dense(message.tensors[n]), state.center, n, most[n] / beyond[n]) for n in beyond}
            message = Message({**message.tensors, **pulled}, message.numbers)
        mean.add(state.sums, client, message)
    return replace(mean.finish(state.sums), notes=notes)


def limits(state: Clipped) -> dict[str, float]:
    """How far each tensor may have moved on a client with the usual number of samples."""
    assert state.center is not None
    names = next(iter(state.norms.values()))
    whole = median([sqrt(sum(size**2 for size in own.values())) for own in state.norms.values()])
    sizes = {name: dense(next(iter(state.messages.values())).tensors[name]).numel() for name in names}
    total = max(sum(sizes.values()), 1)
    return {
        name: FACTOR * max(median([own[name] for own in state.norms.values()]), whole * sqrt(sizes[name] / total))
        for name in names
    }


def norm_of(tensor: Tensor, center: Tensor | None) -> float:
    """‖tensor - center‖ in float64."""
    moved = tensor.double() if center is None else tensor.double() - center.double()
    return float(torch.linalg.vector_norm(moved))


def _pulled(tensor: Tensor, center: Mapping[str, Tensor] | None, name: str, share: float) -> Tensor:
    """The tensor moved back until only a share of its way is left."""
    own = None if center is None else center.get(name)
    if own is None:
        return (tensor.double() * share).float()
    return (own.double() + (tensor.double() - own.double()) * share).float()

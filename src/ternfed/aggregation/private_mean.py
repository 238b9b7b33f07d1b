"""The mean with client-level differential privacy: each upload's change is clipped, and the sum gets Gaussian noise.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018, with uniform
weights and a fixed denominator: the number of clients that were asked. What a client sends is clipped after it is
decoded, so the bound holds for whatever the client or its compression did; all that the server does afterwards, trits
and grids included, is post-processing. The noise comes from the system and not from the experiment's seed, which every
client knows: two private runs differ.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import fsum, sqrt

import torch
from torch import Tensor

from ternfed.aggregation.aggregation import Aggregation, Start, Uploads, refuse_second, values_of
from ternfed.aggregation.clipped_mean import norm_of
from ternfed.aggregation.exact import GridSum
from ternfed.wire import Message


@dataclass(eq=False)
class Private:
    """What has arrived so far."""

    center: Mapping[str, Tensor] = field(default_factory=dict)
    expected: int = 0
    sums: dict[str, GridSum] = field(default_factory=dict)
    """Of the clipped changes."""
    shapes: dict[str, torch.Size] = field(default_factory=dict)
    clients: set[int] = field(default_factory=set)
    losses: dict[int, float] = field(default_factory=dict)
    skipped: int = 0


def private(clip: float, noise: float) -> Aggregation[Private]:
    """Changes of at most the norm `clip`, and noise of the standard deviation `noise` · `clip` on their sum."""

    def begin_at(start: Start) -> Private:
        return Private(start.center, start.expected)

    def begin() -> Private:
        return Private()

    def add(state: Private, client: int, message: Message) -> None:
        if not message.tensors:
            state.skipped += 1
            return
        refuse_second(client, dict.fromkeys(state.clients))
        values = values_of(message)
        if not all(value.tensor.is_floating_point() for value in values.values()):
            raise ValueError("privacy: whole numbers travel with this model, and cannot be clipped")
        norm = sqrt(fsum(norm_of(value.tensor, state.center.get(name)) ** 2 for name, value in values.items()))
        share = 1.0 if norm <= clip else clip / norm
        for name, value in values.items():
            center = state.center.get(name)
            change = value.tensor.double() - (0.0 if center is None else center.double())
            change *= share
            largest = float(change.abs().max()) if change.numel() else 0.0
            state.sums.setdefault(name, GridSum()).add(change, 1, largest)
            state.shapes[name] = value.tensor.shape
        state.clients.add(client)
        state.losses[client] = message.numbers["loss"]

    def finish(state: Private) -> Uploads:
        if not state.clients:
            return Uploads({}, {}, 0, state.skipped)
        source = torch.Generator().manual_seed(secrets.randbits(63))
        count, average = max(state.expected, len(state.clients)), {}
        for name, total in state.sums.items():
            drawn = torch.randn(state.shapes[name], generator=source, dtype=torch.float64) * (noise * clip / count)
            center = state.center.get(name)
            moved = total.mean(count).double() + drawn
            average[name] = (moved if center is None else center.double() + moved).float()
        losses = [state.losses[client] for client in sorted(state.losses)]
        numbers = {"loss": fsum(losses) / len(losses)}
        return Uploads(average, numbers, len(state.clients), state.skipped)

    return Aggregation("private_mean", begin, add, finish, begin_at)

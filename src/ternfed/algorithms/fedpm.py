"""FedPM: weights stay random; clients learn which of them to keep, and send that mask: one bit per weight or less.

Isik, Pase, Gunduz, Weissman, Zorzi: Sparse Random Networks for Communication-Efficient Federated Learning, ICLR 2023.
A weight is ±e/√(inputs), its sign drawn once and for all, and is kept with probability θ, the sigmoid of a score. In
each local step a mask is drawn and the scores are trained through it (straight-through). What is sent is a last draw,
coded given θ; the server's new θ is the mean of the masks, the mode of a Beta distribution with a uniform prior that
is forgotten every `reset` rounds.

The model that is judged is one draw too: random numbers that stay the same, compared with θ. So it is a seed and a
bit per weight. Beyond the paper, θ is sent in a few bits, and starts at 1/2 instead of sigmoid(N(0, 1)). Matrices and
kernels are masked; vectors (biases, BatchNorm), which the authors mask or do not have, are trained and on a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms.algorithm import (
    DOWN,
    UP,
    About,
    Algorithm,
    Client,
    Helpers,
    Local,
    Network,
    Server,
    Training,
    Weights,
)
from ternfed.algorithms.network import dense_weights, split
from ternfed.algorithms.rest import added, bits_of, changes, rounded
from ternfed.algorithms.statistics import Statistics, recounts, with_statistics
from ternfed.draws import generator
from ternfed.quantize.grid import Grid, on_grid
from ternfed.quantize.ternary import Ternary
from ternfed.wire import Kind, Message, Schema, Slot, Value, WrongValue, dense, trits_of

ABOUT = About("FedPM", trains_ternary=False, sends_trits=True, masks=True)

SURE = 0.01
"""θ stays between this and 1 less this, so that scores are finite."""


@dataclass(frozen=True)
class Settings:
    """FedPM's settings."""

    reset: int = 1
    """After so many rounds the server forgets the masks that it counted."""
    bits_down: int = 6
    """Of each θ of a broadcast."""
    rest_bits_up: int = 4
    """Of each number that is not masked, in uploads: its change, rounded at random."""
    rest_bits_down: int = 4
    """And in broadcasts: of its change since the last one, rounded to nearest."""
    statistics: Statistics = Statistics.AVERAGE

    def __post_init__(self) -> None:
        if self.reset < 1:
            raise ValueError(f"reset = {self.reset}: a whole number of at least 1 is needed")
        if not 2 <= self.bits_down <= 16:
            raise ValueError(f"bits_down = {self.bits_down}: 2 to 16 is allowed")
        for key in ("rest_bits_up", "rest_bits_down"):
            if not 1 <= getattr(self, key) <= 8:
                raise ValueError(f"{key} = {getattr(self, key)}: 1 to 8 is allowed")


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """What the server remembers."""

    kept: Weights = field(default_factory=dict)
    """Of each weight: the masks since the last reset that kept it, a round's weighted by samples to its count."""
    counted: Tensor | None = None
    """Masks since then, and rounds."""
    rest: Weights = field(default_factory=dict)
    """What is not masked, unrounded."""


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedPM for a network; its own weights only give the signs."""
    own = network.weights()
    masked = tuple(name for name in network.parameters if name in network.floats and own[name].dim() > 1)
    rest = tuple(name for name in network.floats if name not in masked)
    rest_up, rest_down = (bits_of(rest, network, b) for b in (settings.rest_bits_up, settings.rest_bits_down))
    constants = {name: random_weights(own[name]) for name in masked}

    def model_of(chances: Weights) -> Weights:
        """One network of those that the chances θ stand for: always with the same random numbers."""
        return {n: constants[n] * (_fixed_draw(n, chance.shape) < chance) for n, chance in chances.items()}

    def server_with(chances: Weights, others: Weights, before: Weights, memory: ServerMemory) -> Server:
        sent: dict[str, Value] = {n: _rounded_chance(chance, settings.bits_down) for n, chance in chances.items()}
        sent |= rounded({n: others[n] for n in rest}, {n: before[n] for n in rest if n in before}, rest_down)
        shown = {**others, **{n: dense(value) for n, value in sent.items()}}
        shown |= model_of({n: shown[n] for n in masked})
        return Server(shown, sent, replace(memory, rest={n: others[n] for n in rest}))

    def opening(weights: Weights) -> Server:
        chances = {n: torch.full_like(weights[n], 0.5) for n in masked}
        return server_with(chances, {n: t for n, t in weights.items() if n not in masked}, {}, ServerMemory())

    def start(message: Message, memory: Any, client: Client) -> tuple[Local, Any]:
        values = dense_weights(message)
        parameters, buffers = split({**values, **{n: torch.logit(values[n], SURE) for n in masked}}, network)
        return Local(parameters, buffers), memory

    def forward(leaves: Weights, factors: Weights, started: Local, done: float) -> Weights:
        masks = {n: _draw(torch.sigmoid(leaves[n])) for n in masked}
        return {**leaves, **{n: constants[n].to(mask.device) * mask for n, mask in masks.items()}}

    def finish(local: Local, received: Message, memory: Any, client: Client) -> tuple[Message, Any]:
        moved = network.without_counters({**local.weights, **local.buffers})
        source = client.draw("mask")
        values: dict[str, Value] = {n: tensor for n, tensor in moved.items() if n not in network.floats}
        values |= changes({n: moved[n] for n in rest}, dense_weights(received), rest_up, client.draw("changes"))
        for n in masked:
            kept = torch.rand(moved[n].shape, generator=source) < torch.sigmoid(moved[n])
            values[_slot(n)] = Ternary(kept.to(torch.int8), torch.ones(()), torch.ones(()))
        return Message(values, {}), memory

    def meaning(message: Message, client: Client) -> Message:
        """The masks by the names of their weights; a client may have sent any trits and scales."""
        tensors = {n: value for n, value in message.tensors.items() if n not in map(_slot, masked)}
        for n in masked:
            trits = trits_of(message.tensors[_slot(n)])
            assert trits is not None
            if bool((trits < 0).any()):
                raise WrongValue(f"{n}: a mask has 0 and 1")
            tensors[n] = trits.float()
        return Message(tensors, message.numbers)

    def update(server: Server, uploads: Uploads, helpers: Helpers) -> Server:
        if not uploads.average:
            return server
        memory: ServerMemory = server.memory
        count, rounds = (0.0, 0.0) if memory.counted is None else memory.counted.tolist()
        if rounds >= settings.reset:
            count, rounds, memory = 0.0, 0.0, replace(memory, kept={})
        kept = {n: memory.kept.get(n, torch.zeros(())) + uploads.count * uploads.average[n] for n in masked}
        count, rounds = count + uploads.count, rounds + 1
        chances = {n: (each / count).clamp(SURE, 1 - SURE) for n, each in kept.items()}
        others = {n: t for n, t in uploads.average.items() if n not in masked}
        others |= added({n: memory.rest[n] for n in rest}, server.weights, uploads.average, network)
        if recounts(settings.statistics, network):
            judged = with_statistics({**others, **model_of(chances)}, network, settings.statistics, helpers)
            others |= {n: judged[n] for n in rest}
        counted = replace(memory, kept=kept, counted=torch.tensor([count, rounds]))
        return server_with(chances, others, server.weights, counted)

    def reference(message: Message) -> dict[str, Tensor]:
        """Broadcasts are coded given the last one, masks given whether θ is low, in between or high."""
        values = {n: dense(message.tensors[n]) for n in (*masked, *rest)}
        levels = {_slot(n): ((values[n] > 2 / 3).to(torch.int8) - (values[n] < 1 / 3).to(torch.int8)) for n in masked}
        return {**values, **levels}

    whole = network.schema(grid=(*masked, *rest)).slots
    down = tuple(replace(slot, kind=Kind.GRID) if slot.name in masked else slot for slot in whole)
    up = tuple(Slot(_slot(s.name), s.shape, Kind.TERNARY) if s.name in masked else s for s in whole)
    return Algorithm(
        name="fedpm",
        training=replace(training, forward=forward),
        down=(Schema(down, DOWN),),
        up=(Schema(up, UP),),
        open=opening,
        broadcast=lambda server: Message({**network.without_counters(server.weights), **server.sent}, {}),
        start=start,
        finish=finish,
        meaning=meaning,
        update=update,
        reference=reference,
        changes=tuple(rest_up),
        server_memory=ServerMemory,
        needs_held_out=recounts(settings.statistics, network),
    )


def random_weights(like: Tensor) -> Tensor:
    """±e/√(inputs) with the signs of a weight as it was drawn at first."""
    inputs = max(like[0].numel(), 1) if len(like) else 1
    return torch.where(like < 0, -1.0, 1.0) * (math.e / math.sqrt(inputs))


def _slot(name: str) -> str:
    """The slot of a mask."""
    return f"{name}/mask"


def _fixed_draw(name: str, shape: torch.Size) -> Tensor:
    """Of each weight one number from [0, 1): the same in every round, on every side and in every run."""
    return torch.rand(shape, generator=generator(0, f"fedpm {name}"))


def _rounded_chance(chance: Tensor, bits: int) -> Grid:
    """θ in steps of 2^-bits."""
    return on_grid(chance, torch.tensor(-bits, dtype=torch.int16))


def _draw(chances: Tensor) -> Tensor:
    """A mask of zeros and ones, whose gradient goes to the chances as it is."""
    with torch.no_grad():
        apart = (torch.rand_like(chances) < chances).to(chances.dtype) - chances
    return chances + apart

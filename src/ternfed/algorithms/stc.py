"""STC: sparse ternary updates in both directions, what they leave out fed back into the next one.

Sattler, Wiedemann, Müller, Samek: Robust and Communication-Efficient Federated Learning from Non-IID Data, IEEE TNNLS
2019. Of an update, the share p of largest size is kept, as the sign times their mean size μ; the rest stays in a
residual that is added to the next update, on each client and on the server. A client that missed the last broadcast
gets the whole model in full precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

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
    dense_weights,
    split,
)
from ternfed.quantize.ternary import Ternary
from ternfed.wire import Message, trits_of

ABOUT = About("STC", trains_ternary=False, sends_trits=True)


@dataclass(frozen=True)
class Settings:
    """STC's settings."""

    sparsity_up: float = 1 / 400
    """p of a client's update."""
    sparsity_down: float = 1 / 400
    """p of the server's update."""

    def __post_init__(self) -> None:
        for key in ("sparsity_up", "sparsity_down"):
            if not 0 < getattr(self, key) <= 1:
                raise ValueError(f"{key} = {getattr(self, key)}: a share above 0, at most 1, is needed")


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """What the server remembers."""

    residual: Weights = field(default_factory=dict)
    """What the last update left out."""


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """What a client remembers."""

    model: Weights = field(default_factory=dict)
    """The parameters it started from, to which the next broadcast's update is added."""
    residual: Weights = field(default_factory=dict)
    """What its last update left out."""


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """STC for a network: every parameter's update is ternary, buffers travel as they are."""
    names = network.parameters

    def broadcast(server: Server, held: bool) -> Message:
        sent = network.without_counters(server.weights)
        return Message({**sent, **server.sent} if held else {**sent}, {})

    def start(received: Message, memory: ClientMemory, client: Client) -> tuple[Local, ClientMemory]:
        parameters, buffers = split(dense_weights(received), network)
        if any(trits_of(value) is not None for value in received.tensors.values()):
            parameters = {name: memory.model[name] + parameters[name] for name in names}
        return Local(parameters, buffers), replace(memory, model=parameters)

    def finish(local: Local, received: Message, memory: ClientMemory, client: Client) -> tuple[Message, ClientMemory]:
        update = {name: local.weights[name] - memory.model[name] for name in names}
        sent, residual = compress(add(update, memory.residual), settings.sparsity_up)
        return Message({**sent, **network.without_counters(local.buffers)}, {}), replace(memory, residual=residual)

    def update(server: Server, uploads: Uploads, helpers: Helpers) -> Server:
        if not uploads.average:
            return replace(server, sent={})  # the last update must not be applied twice
        parameters, buffers = split(uploads.average, network)
        sent, residual = compress(add(parameters, server.memory.residual), settings.sparsity_down)
        weights = {name: server.weights[name] + sent[name].dense() for name in names}
        return Server({**weights, **buffers}, sent, ServerMemory(residual))

    return Algorithm(
        name="stc",
        training=training,
        down=(network.schema(names, DOWN), network.schema((), DOWN)),
        up=(network.schema(names, UP),),
        open=lambda weights: Server(weights, memory=ServerMemory()),
        broadcast=broadcast,
        start=start,
        finish=finish,
        update=update,
        server_memory=ServerMemory,
        client_memory=ClientMemory,
    )


def add(update: Weights, residual: Weights) -> Weights:
    """The update and what earlier ones left out."""
    return {name: part + residual.get(name, torch.zeros(())) for name, part in update.items()}


def compress(update: Weights, share: float) -> tuple[dict[str, Ternary], Weights]:
    """The share of largest size as μ · sign, over all tensors together; and what that leaves out."""
    flat = torch.cat([part.reshape(-1) for part in update.values()])
    size = flat.abs()
    count = max(1, round(share * flat.numel()))
    kept = torch.zeros_like(flat, dtype=torch.bool)
    kept[size.topk(count).indices] = True
    scale = size[kept].mean()
    codes = (flat.sign() * kept).to(torch.int8)
    parts = torch.split(codes, [part.numel() for part in update.values()])
    sent = {
        name: Ternary(part.view(tensor.shape), scale, scale)
        for (name, tensor), part in zip(update.items(), parts, strict=True)
    }
    residual = {name: tensor - sent[name].dense() for name, tensor in update.items()}
    return sent, residual

"""Compressed updates in both directions, what they leave out fed back: what STC, top-k and signs have in common.

A client adds to its update what its earlier ones left out, sends the compressed sum and keeps the rest. The server
does the same with the mean of the uploads: it remembers the model it would have if nothing were left out, and each
broadcast moves the clients' model by the compressed difference.

The clients' model lies on grids whose steps become finer, and coarser only where they are finer than allowed; what
rounding loses is left out like the rest, and comes later. So a broadcast is the whole model, coded given the newest one
that its receiver holds: to whoever holds the last one it costs the compressed update, to whoever missed some rounds the
sum of the updates of these, and nobody needs float32.

BatchNorm's few parameters and statistics are not part of the compressed update: they travel on grids of their own
(`rest.py`), all of them in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms.algorithm import DOWN, UP, Algorithm, Client, Helpers, Local, Network, Server, Training, Weights
from ternfed.algorithms.fedavg import receive
from ternfed.algorithms.network import dense_weights
from ternfed.algorithms.rest import added, bits_of, changes, rounded
from ternfed.algorithms.statistics import Statistics, recounts, with_statistics
from ternfed.quantize.grid import Grid, exponents_for, on_grid
from ternfed.quantize.ternary import check_finite
from ternfed.wire import Kind, Message, Schema, Value, dense

Compress = Callable[[Weights], Mapping[str, Value]]
"""An update ─▶ what is sent of it."""

FIRST_BITS = 6
"""Of each weight in the first broadcast, the model before training, unless no step may be so fine."""
FINEST_BEFORE = 16
"""What `finest_bits` was before it could be set."""
REST_BITS = 3
"""Of each change of BatchNorm's parameters, in both directions; its statistics have more (`rest.py`)."""


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """What the server remembers."""

    model: Weights = field(default_factory=dict)
    """Every float of the model as it would be if broadcasts left nothing out."""
    steps: Weights = field(default_factory=dict)
    """The exponents of the grids that the clients' model lies on."""


@dataclass(frozen=True, eq=False)
class ClientMemory:
    """What a client remembers."""

    residual: Weights = field(default_factory=dict)
    """What its updates have left out so far."""


@dataclass(frozen=True)
class Ways:
    """How updates are compressed."""

    up: Compress
    kind: Kind
    """What `up` makes: `ternary`, or `grid` with one step per tensor."""
    down: Compress
    bits_down: int
    """The server's update is rounded to codes of about so many bits where the clients' model needs finer steps."""
    finest_bits: int
    """No step of a broadcast is finer than this: the largest number of a tensor has at most so many bits."""


def with_feedback(name: str, network: Network, training: Training, ways: Ways, statistics: Statistics) -> Algorithm:
    """Plain local training, compressed updates, error feedback on both sides."""
    norm = _batchnorm(network)
    names = tuple(n for n in network.parameters if n not in norm)
    rest = tuple(n for n in network.floats if n not in names)
    first = min(FIRST_BITS, ways.finest_bits)
    rest_bits, first_bits = (bits_of(rest, network, bits) for bits in (REST_BITS, first))

    def finish(local: Local, received: Message, memory: ClientMemory, client: Client) -> tuple[Message, ClientMemory]:
        before = dense_weights(received)
        moved = network.without_counters({**local.weights, **local.buffers})
        wanted = {n: moved[n] - before[n] + memory.residual.get(n, torch.zeros(())) for n in names}
        for n, tensor in wanted.items():
            check_finite(tensor, n)
        sent = ways.up(wanted)
        others = {n: tensor for n, tensor in moved.items() if n not in (*names, *rest)}
        floats = changes({n: moved[n] for n in rest}, before, rest_bits, client.draw("rest"))
        residual = {n: wanted[n] - dense(sent[n]) for n in names}
        return Message({**sent, **floats, **others}, {}), replace(memory, residual=residual)

    def opening(weights: Weights) -> Server:
        sent = {n: one_step(weights[n], first) for n in names}
        sent |= rounded({n: weights[n] for n in rest}, {}, first_bits)
        shown = {**weights, **{n: value.dense() for n, value in sent.items()}}
        # What the weights lose here need not come later: they are random numbers still.
        exact = {n: shown[n] if n in names else weights[n] for n in (*names, *rest)}
        return Server(shown, sent, ServerMemory(exact, {n: sent[n].exponents for n in names}))

    def update(server: Server, uploads: Uploads, helpers: Helpers) -> Server:
        if not uploads.average:
            return server
        memory: ServerMemory = server.memory
        average, before = uploads.average, server.weights
        exact = added(memory.model, before, average, network)
        change = ways.down({n: exact[n] - before[n] for n in names})
        sent = {n: _moved(before[n], dense(change[n]), memory.steps[n], ways) for n in names}
        shown = {**average, **exact, **{n: value.dense() for n, value in sent.items()}}
        shown = with_statistics(shown, network, statistics, helpers)
        exact |= {n: shown[n] for n in rest}
        sent |= rounded({n: shown[n] for n in rest}, before, rest_bits, ways.finest_bits)
        shown |= {n: sent[n].dense() for n in rest}
        return Server(shown, sent, ServerMemory(exact, {n: sent[n].exponents for n in names}))

    return Algorithm(
        name=name,
        training=training,
        down=(_schema(network, names, rest, Kind.GRID, DOWN),),
        up=(_schema(network, names, rest, ways.kind, UP),),
        open=opening,
        broadcast=lambda server: Message({**network.without_counters(server.weights), **server.sent}, {}),
        start=lambda message, memory, client: (receive(message, network), memory),
        finish=finish,
        update=update,
        reference=lambda message: {n: dense(message.tensors[n]) for n in (*names, *rest)},
        changes=(*names, *rest),
        server_memory=ServerMemory,
        client_memory=ClientMemory,
        needs_held_out=recounts(statistics, network),
    )


def largest(update: Weights, share: float) -> Weights:
    """The share of largest size over all tensors together; zeros elsewhere."""
    flat = torch.cat([part.reshape(-1) for part in update.values()])
    kept = torch.zeros_like(flat)
    places = flat.abs().topk(max(1, round(share * flat.numel()))).indices
    kept[places] = flat[places]
    parts = torch.split(kept, [part.numel() for part in update.values()])
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(update.items(), parts, strict=True)}


def one_step(tensor: Tensor, bits: int) -> Grid:
    """The tensor rounded to codes of so many bits, all of one step."""
    return on_grid(tensor, exponents_for(_largest(tensor), bits))


def check_share(key: str, share: float) -> None:
    """Refuse what is no share of an update."""
    if not 0 < share <= 1:
        raise ValueError(f"{key} = {share}: a share above 0, at most 1, is needed")


def _moved(before: Tensor, change: Tensor, exponent: Tensor, ways: Ways) -> Grid:
    """The clients' model after a change, on a grid at least as fine as far as it may be: what stays costs nothing."""
    if not change.any():
        return on_grid(before, exponent)
    wanted = before + change
    finer = torch.minimum(exponent, exponents_for(_largest(change), ways.bits_down))
    return on_grid(wanted, torch.maximum(finer, exponents_for(_largest(wanted), ways.finest_bits)))


def _largest(tensor: Tensor) -> Tensor:
    return tensor.abs().max() if tensor.numel() else torch.zeros(())


def _schema(
    network: Network, names: tuple[str, ...], rest: tuple[str, ...], kind: Kind, numbers: tuple[str, ...]
) -> Schema:
    """The whole model: compressed tensors of one kind, a grid having one step per tensor, and the rest on grids."""
    schema = network.schema(names if kind is Kind.TERNARY else (), numbers, grid=rest)
    return Schema(tuple(replace(slot, kind=kind) if slot.name in names else slot for slot in schema.slots), numbers)


def _batchnorm(network: Network) -> set[str]:
    """The parameters of BatchNorm."""
    return {
        f"{module_name}.{name}".removeprefix(".")
        for module_name, module in network.model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name, _ in module.named_parameters(recurse=False)
    }

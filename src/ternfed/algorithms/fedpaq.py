"""FedPAQ: FedAvg whose messages are a few bits per number, in both directions.

Reisizadeh, Mokhtari, Hassani, Jadbabaie, Pedarsani: FedPAQ: A Communication-Efficient Federated Learning Method with
Periodic Averaging and Quantization, AISTATS 2020. A client sends how far it moved from the model that it received,
rounded at random so that the mean is right; the quantizer is that of Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD,
NeurIPS 2017, with the largest change of a row in place of its norm and steps that are powers of two (`rest.py`).

Beyond the paper, broadcasts are small too: the model is rounded to nearest, and what that loses stays on the server.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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
from ternfed.algorithms.fedavg import receive
from ternfed.algorithms.network import OneByOne
from ternfed.algorithms.rest import FINEST, USUAL, added, bits_of, changes, check_finest, rounded
from ternfed.algorithms.statistics import Statistics, recounts, with_statistics
from ternfed.quantize.grid import Grid
from ternfed.wire import Message, dense

ABOUT = About("FedPAQ", trains_ternary=False, before={"finest_bits": FINEST})


@dataclass(frozen=True)
class Settings:
    """FedPAQ's settings."""

    bits_up: int | None = 2
    """Of each number of an upload: its change, rounded at random; buffers have eight. "none": models as floats, as
    FedAvg has them."""
    bits_down: int | None = 4
    """Of each number of a broadcast: its change since the last one, rounded to nearest. "none": floats."""
    first_bits: int | None = None
    """And in the first broadcast: of the number itself; none: as many."""
    statistics: Statistics = Statistics.AVERAGE
    finest_bits: int = USUAL
    """No step of a broadcast is finer than this: the largest number of a row has at most so many bits."""

    def __post_init__(self) -> None:
        for key in ("bits_up", "bits_down", "first_bits"):
            bits = getattr(self, key)
            if bits is not None and not 1 <= bits <= 8:
                raise ValueError(f"{key} = {bits}: 1 to 8 is allowed, or none")
        check_finest(self.finest_bits)


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """What the server remembers, where it rounds its broadcasts."""

    model: Weights = field(default_factory=dict)
    """The floats of its model, unrounded."""


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedPAQ for a network: every float tensor is on a grid, whole numbers travel as they are."""
    floats = network.floats
    found = tuple(name for name in floats if name in network.buffers)
    learned = tuple(name for name in floats if name not in found)
    up_bits, down_bits = (bits_of(floats, network, bits) for bits in (settings.bits_up, settings.bits_down))
    first_bits = down_bits if settings.first_bits is None else bits_of(floats, network, settings.first_bits)

    def server_with(model: Weights, before: Weights, helpers: Helpers | None = None) -> Server:
        """The server with this model, whose clients have had another one before."""
        if settings.bits_down is None:
            return Server(with_own_statistics(model, helpers), memory=ServerMemory())
        given = {name: before[name] for name in floats if name in before}
        bits = down_bits if given else first_bits

        def on_air(names: Iterable[str], weights: Weights) -> dict[str, Grid]:
            return rounded({name: weights[name] for name in names}, given, bits, settings.finest_bits)

        # Statistics belong to the weights that clients will have, not to those that only the server knows.
        sent = on_air(learned, model)
        shown = with_own_statistics({**model, **{name: value.dense() for name, value in sent.items()}}, helpers)
        sent |= on_air(found, shown)
        own = {name: model[name] if name in learned else shown[name] for name in floats}
        return Server({**shown, **{name: sent[name].dense() for name in found}}, {**sent}, ServerMemory(own))

    def with_own_statistics(model: Weights, helpers: Helpers | None) -> Weights:
        return model if helpers is None else with_statistics(model, network, settings.statistics, helpers)

    def broadcast(server: Server) -> Message:
        return Message({**network.without_counters(server.weights), **server.sent}, {})

    def finish(local: Local, received: Message, memory: Any, client: Client) -> tuple[Message, Any]:
        moved = network.without_counters({**local.weights, **local.buffers})
        if settings.bits_up is None:
            return Message({**moved}, {}), memory
        own = {name: moved[name] for name in floats}
        changed = changes(own, OneByOne(received), up_bits, client.draw("changes"))
        return Message({**moved, **changed}, {}), memory

    def update(server: Server, uploads: Uploads, helpers: Helpers) -> Server:
        if not uploads.average:
            return server
        return server_with(moved_by(uploads.average, server), server.weights, helpers)

    def moved_by(average: Weights, server: Server) -> Weights:
        """The server's own model after the mean change of the clients'."""
        if settings.bits_up is None and settings.bits_down is None:
            return average  # FedAvg, to the bit
        change = {name: average[name] for name in floats}
        if settings.bits_up is None:
            change = {name: mean - server.weights[name] for name, mean in change.items()}
        own = server.weights if settings.bits_down is None else server.memory.model
        return {**average, **added({name: own[name] for name in floats}, server.weights, change, network)}

    def reference(message: Message) -> dict[str, Tensor] | None:
        return {name: dense(message.tensors[name]) for name in floats} if down_bits else None

    return Algorithm(
        name="fedpaq",
        training=training,
        down=(network.schema(numbers=DOWN, grid=tuple(down_bits)),),
        up=(network.schema(numbers=UP, grid=tuple(up_bits)),),
        open=lambda weights: server_with(weights, {}),
        broadcast=broadcast,
        start=lambda message, memory, client: (receive(message, network), memory),
        finish=finish,
        update=update,
        reference=reference,
        changes=tuple(up_bits),
        server_memory=ServerMemory,
        needs_held_out=recounts(settings.statistics, network),
    )

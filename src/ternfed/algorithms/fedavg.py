"""FedAvg: clients train, the server averages their models weighted by their samples.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017. Everything travels in full precision; the yardstick of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms.algorithm import DOWN, UP, About, Algorithm, Client, Helpers, Local, Network, Server, Training
from ternfed.algorithms.network import as_kind, dense_weights, split
from ternfed.algorithms.statistics import Statistics, recounts, with_statistics
from ternfed.wire import Kind, Message

ABOUT = About("FedAvg", trains_ternary=False)


@dataclass(frozen=True)
class Settings:
    """FedAvg's settings."""

    dense: Kind = Kind.FLOAT32
    """The precision that parameters travel in: `float32`, `bfloat16` or `float16`."""
    statistics: Statistics = Statistics.AVERAGE


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedAvg for a network."""

    def broadcast(server: Server) -> Message:
        return Message({**as_kind(server.weights, network, settings.dense)}, {})

    def finish(local: Local, received: Message, memory: Any, client: Client) -> tuple[Message, Any]:
        return Message({**as_kind({**local.weights, **local.buffers}, network, settings.dense)}, {}), memory

    def update(server: Server, uploads: Uploads, helpers: Helpers) -> Server:
        if not uploads.average:
            return server
        return Server(with_statistics(uploads.average, network, settings.statistics, helpers))

    return Algorithm(
        name="fedavg",
        training=training,
        down=(network.schema(numbers=DOWN, kind=settings.dense),),
        up=(network.schema(numbers=UP, kind=settings.dense),),
        open=Server,
        broadcast=broadcast,
        start=lambda message, memory, client: (receive(message, network), memory),
        finish=finish,
        update=update,
        needs_held_out=recounts(settings.statistics, network),
    )


def receive(message: Message, network: Network) -> Local:
    """Plain local training starts from the model as it was broadcast."""
    parameters, buffers = split(dense_weights(message), network)
    return Local(parameters, buffers)

"""What a server accepts from a client over a network: a message of this model and round, within bounds."""

from __future__ import annotations

from typing import NamedTuple

from ternfed.algorithms.algorithm import Algorithm, Client, Network
from ternfed.engines.flower.envelope import WrongRound
from ternfed.round.acceptance import Bounds, accepted
from ternfed.round.exchange import Broadcast, collect
from ternfed.wire import Message


class Accepted(NamedTuple):
    """An upload that counts."""

    message: Message
    """As it travelled."""
    meaning: Message
    """What the aggregation adds."""


def accept(
    algorithm: Algorithm,
    network: Network,
    data: bytes,
    broadcast: Broadcast,
    sender: Client,
    round: int,
    bounds: Bounds,
) -> Accepted:
    """The upload in these bytes, or the WireError that names what is wrong with it."""
    message = collect(algorithm, data, broadcast)
    if message.numbers["round"] != round:
        raise WrongRound(f"of round {message.numbers['round']:g}, this is round {round}")
    return Accepted(message, accepted(algorithm, network, message, broadcast, sender, bounds))

"""Who trains the clients of a round: a crew gets what they receive and remember, and gives what they send.

`train_here` is the crew of one process. Another engine may be a crew too: `engines/ranks` spreads the clients over
several processes, and each of them calls `train_here`. Answers come in the order in which the clients were named, so
that whatever the server does with them does not depend on the crew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor

from ternfed.quantize.ternary import NonFiniteError
from ternfed.round.exchange import Broadcast, Broadcasts, reply_each
from ternfed.round.federation import Federation, Site, finish_each, prepare
from ternfed.round.traffic import Clock
from ternfed.training.choose import train_recovering
from ternfed.training.work import Trained, Work

CHUNK = 256
"""So many clients are trained, and their models held, at a time."""
TOGETHER = 1 << 20
"""So many numbers are coded in one go: the messages of many small models, or of one large one."""


class Answer(NamedTuple):
    """What comes from one client."""

    client: int
    data: bytes
    """Its upload; empty where it has none."""
    memory: Any
    """What it will remember, if its upload counts."""
    diverged: str | None = None
    """Why it has nothing to send."""


Crew = Callable[[Broadcasts, Sequence[int], Mapping[int, Any], Clock], Iterator[Answer]]
"""Trains these clients of a round, from what they remember; their answers, in their order."""


def train_here(
    federation: Federation,
    number: int,
    broadcast: Broadcast,
    clients: Sequence[int],
    memories: Mapping[int, Any],
    clock: Clock,
) -> Iterator[Answer]:
    """The clients' halves of a round in this process: start, local training, finish."""
    together = at_once(federation)
    chunk = CHUNK if together > 1 else 1
    for at in range(0, len(clients), chunk):
        sites = [federation.site(index) for index in clients[at : at + chunk]]
        fresh = federation.algorithm.client_memory
        ready = [prepare(site, number, broadcast, memories.get(site.index, fresh())) for site in sites]
        clock.lap("prepare")
        orders, started = [work.order for work, _ in ready], [memory for _, memory in ready]
        works = [work for work, _ in ready]
        del ready  # the trainer has what it needs
        again = None
        if chunk == 1:  # a large model
            again = partial(_again, sites, number, broadcast, memories)
        trained = train_recovering(federation.trainer, works, federation.algorithm.retries, again)
        del works
        for first in range(0, len(sites), together):
            part = slice(first, first + together)
            done = list(islice(trained, together))
            if part.stop >= len(sites):
                del trained  # and what the clients started from
            clock.lap("train")
            yield from _sent(sites[part], number, broadcast, started[part], orders[part], done)


def _again(sites: Sequence[Site], number: int, broadcast: Broadcast, memories: Mapping[int, Any], place: int) -> Work:
    """The work of a client once more: nothing but its draws is random, and these are the same."""
    site = sites[place]
    return prepare(site, number, broadcast, memories.get(site.index, site.algorithm.client_memory()))[0]


def at_once(federation: Federation) -> int:
    """Clients whose messages are coded in one go."""
    return max(1, TOGETHER // max(1, federation.parameter_count))


def _sent(
    sites: Sequence[Site],
    number: int,
    broadcast: Broadcast,
    memories: Sequence[Any],
    orders: Sequence[Tensor],
    trained: list[Trained],
) -> list[Answer]:
    """What some clients send. What they trained is taken out of its list, and gone before it is bytes."""
    ended = finish_each(sites, number, broadcast, memories, orders, trained)
    trained.clear()
    messages = [own[0] for own in ended if not isinstance(own, NonFiniteError)]
    remembered = [own if isinstance(own, NonFiniteError) else own[1] for own in ended]
    del ended
    coded = iter(reply_each(sites[0].algorithm, messages, broadcast))
    return [
        Answer(site.index, b"", None, str(own))
        if isinstance(own, NonFiniteError)
        else Answer(site.index, next(coded), own)
        for site, own in zip(sites, remembered, strict=True)
    ]

"""The uploads of a round on their way into the aggregation, and how much each of them counts.

A client says itself how many samples it trained on, and that is its weight in a mean. It counts for as many as it has
by the partition of the experiment. One that claims more may have data of its own: it waits until the round is over, and
counts for no more than the median of all claims. So the order of arrival makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ternfed.aggregation.aggregation import Aggregation, Start, Uploads, check_values, median, refuse_second
from ternfed.algorithms.algorithm import Algorithm
from ternfed.round.acceptance import center_of
from ternfed.round.exchange import Broadcast
from ternfed.wire import Message


@dataclass(eq=False)
class Intake:
    """What has arrived so far."""

    rule: Aggregation[Any]
    begin: Callable[[], Any]
    """The rule's own state before the first upload."""
    registered: Sequence[int]
    """How many samples each client has by the partition."""
    keeps: bool = False
    """Whether what is taken in is kept, so that it can be counted without somebody."""
    taken: dict[int, Message] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, Message] = field(default_factory=dict)
    arrived: Any = field(init=False)

    def __post_init__(self) -> None:
        self.arrived = self.begin()

    @staticmethod
    def of(
        algorithm: Algorithm, broadcast: Broadcast, registered: Sequence[int], expected: int, keeps: bool = False
    ) -> Intake:
        """Before the first upload of a round in which so many clients were asked."""
        rule, begin = algorithm.aggregate, algorithm.aggregate.begin
        if rule.begin_at is not None:
            size = max(schema.size for schema in algorithm.up)
            begin = partial(rule.begin_at, Start(center_of(algorithm, broadcast), expected, size))
        return Intake(rule, begin, registered, keeps)

    def add(self, client: int, message: Message) -> None:
        """Take in what a client sent; one that cannot be averaged is refused by name."""
        refuse_second(client, self.claims)
        samples = message.numbers["samples"]
        if samples > self.registered[client]:
            check_values(message)  # refuses what cannot be averaged
            self.waiting[client] = message
        else:
            self.rule.add(self.arrived, client, message)
        self.claims[client] = int(samples)
        if self.keeps:
            self.taken[client] = message

    def of_only(self, clients: Sequence[int]) -> Uploads:
        """What it would have come to with these clients alone."""
        fresh = Intake(self.rule, self.begin, self.registered)
        for client in clients:
            fresh.add(client, self.taken[client])
        return fresh.finish()

    def finish(self) -> Uploads:
        """All uploads made one, with a note on each that counts for less than it claimed."""
        notes: dict[int, str] = {}
        for client, message in self.waiting.items():
            most = max(self.registered[client], int(median(list(self.claims.values()))))
            if self.claims[client] > most:
                notes[client] = f"client {client}: claimed {self.claims[client]} samples, counted as {most}"
                message = Message(message.tensors, {**message.numbers, "samples": float(most)})
            self.rule.add(self.arrived, client, message)
        uploads = self.rule.finish(self.arrived)
        both = {
            client: "; ".join(part for part in (notes.get(client), uploads.notes.get(client)) if part)
            for client in sorted({*notes, *uploads.notes})
        }
        return replace(uploads, notes=both)

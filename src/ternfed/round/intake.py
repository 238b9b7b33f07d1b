"""The uploads of a round on their way into the aggregation, and how much each of them counts.

A client says itself how many samples it trained on, and that is its weight in a mean. It counts for as many as it has
by the partition of the experiment. One that claims more may have data of its own: it waits until the round is over, and
counts for no more than `TIMES` the median of all claims. So the order of arrival makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ternfed.aggregation.aggregation import Aggregation, Start, Uploads, median, refuse_second, values_of
from ternfed.algorithms.algorithm import Algorithm
from ternfed.round.acceptance import center_of
from ternfed.round.exchange import Broadcast
from ternfed.wire import Message

TIMES = 2


@dataclass(eq=False)
class Intake:
    """What has arrived so far."""

    rule: Aggregation[Any]
    arrived: Any
    """The rule's own state."""
    registered: Sequence[int]
    """How many samples each client has by the partition."""
    claims: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, Message] = field(default_factory=dict)

    @staticmethod
    def of(algorithm: Algorithm, broadcast: Broadcast, registered: Sequence[int], expected: int) -> Intake:
        """Before the first upload of a round in which so many clients were asked."""
        rule = algorithm.aggregate
        if rule.begin_at is None:
            return Intake(rule, rule.begin(), registered)
        return Intake(rule, rule.begin_at(Start(center_of(algorithm, broadcast), expected)), registered)

    def add(self, client: int, message: Message) -> None:
        """Take in what a client sent; one that cannot be averaged is refused by name."""
        refuse_second(client, self.claims)
        samples = message.numbers["samples"]
        if samples > self.registered[client]:
            values_of(message)  # refuses what cannot be averaged
            self.waiting[client] = message
        else:
            self.rule.add(self.arrived, client, message)
        self.claims[client] = int(samples)

    def finish(self) -> Uploads:
        """All uploads made one, with a note on each that counts for less than it claimed."""
        notes: dict[int, str] = {}
        for client, message in self.waiting.items():
            most = max(self.registered[client], TIMES * median(list(self.claims.values())))
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

"""What travels per client and round: the least, a typical round, the most, each the length of real messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ternfed.algorithms.algorithm import Algorithm, Network, Server
from ternfed.plan.extremes import Span, least, most, spans_of
from ternfed.plan.rehearsal import Answer, Rehearsal, calm, loud, still
from ternfed.plan.sample import MOST, Sample, sampled
from ternfed.quantize.grid import nearest_codes
from ternfed.round.exchange import Broadcast, layer_entropies
from ternfed.wire import Message, Reference, Schema, dense, encode, form_for, form_of
from ternfed.wire.held import MOST_KEPT
from ternfed.wire.schema import DTYPES

FLIPS = 0.2
"""Share of trits that flip from one broadcast to the next: a third in the first rounds of ResNet18* on CIFAR-10, a
fifth in the middle, none at the end."""
MOVE, HARDLY = 0.05, 2.0**-22
"""How far a client moves its numbers, of their size: in a typical round, and where broadcasts need their finest
steps."""
FEW, LOUD, FINER = 20_000, 3, 9
"""So many numbers show how large codes can get, in so many rounds in which everything moves and as many in which hardly
anything does: where a server keeps what rounding lost, each of these makes its steps finer by a few bits."""
MOST_MISSED = 10
"""Rounds since a client took part before; beyond this, a typical one is judged as if there had been so many."""


@dataclass(frozen=True)
class Bytes:
    """Of one message: an upload, or a broadcast to one client."""

    best: int
    typical: int
    worst: int


@dataclass(frozen=True)
class Costs:
    """What one algorithm costs per client and round."""

    up: Bytes
    down: Bytes
    first_down: int
    """The first broadcast, the model before training: nobody holds anything yet."""


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """What a rehearsal found out: costs, and the values that took part in them."""

    costs: Costs
    bits_up: dict[str, float]
    """Of each number of a slot of a typical upload, by the entropy of what is coded."""
    bits_down: dict[str, float]
    """And of a typical broadcast."""
    algorithm: Algorithm
    sample: Sample
    older: Sample
    """By which the typical download was judged: the more rounds a client misses, the fewer rows."""
    server: Server
    """After the first round."""
    broadcast: Broadcast
    """Of that server, with what its reference keeps once something was coded given it."""
    answer: Answer
    """Of one client to it."""
    meaning: Message
    """What the aggregation gets of that."""


Make = Callable[[Network], Algorithm]
"""The algorithm for a network, or for one that stands for it."""


def rehearse(
    network: Network, make: Make, clients: int, flips: float = FLIPS, missed: int = 1, most_numbers: int = MOST
) -> Rehearsed:
    """The costs of an algorithm, from its own functions over made training.

    `missed` is how many rounds lie between two in which a client takes part: its reference is as old. Of the model,
    at most so many numbers are encoded.
    """

    def staged(sample: Sample) -> tuple[Rehearsal, Server, Server]:
        stage = Rehearsal(sample.network, make(sample.network), clients)
        opened = stage.open()
        return stage, opened, stage.after(opened, calm(MOVE))

    sample, missed = sampled(network, most_numbers), min(missed, MOST_MISSED)
    stage, opened, settled = staged(sample)
    algorithm, first = stage.algorithm, stage.broadcast(opened)
    older, longer = sample, (stage, settled)
    if missed > 1:
        older = sampled(network, most_numbers // missed)
        longer = staged(older)[::2]
    broadcast = stage.received(settled, keep=sample.numbers <= MOST_KEPT)
    answer = stage.answer(broadcast, calm(MOVE), round=2)
    sent = stage.upload(broadcast, answer, flips)
    ups, downs = _extremes(network, make, clients)
    ups, downs = [sent.message, *ups], [first.message, *downs]
    up, down = spans_of(ups), spans_of(downs)
    weights = sample.network.weights()
    trits = {name for name, lent in (broadcast.lent or {}).items() if not lent.is_floating_point()}
    came, down_typical = _typical_down(longer[0], older, longer[1], flips, missed)

    def dearest(schemas: Iterable[Schema], spans: Mapping[str, Span], free: Iterable[str]) -> int:
        return max(_size(sample, most(schema, spans, free), schema) for schema in schemas)

    def cheapest(schemas: Iterable[Schema]) -> int:
        return min(_size(sample, least(schema, weights), schema) for schema in schemas)

    costs = Costs(
        up=Bytes(
            best=cheapest(algorithm.up),  # a client may send the smallest at any time, a notice for example
            typical=_size(sample, sent.message, _fitting(sent.message, algorithm.up), sent.data),
            worst=dearest(_reached(algorithm.up, ups), up, trits),
        ),
        down=Bytes(
            best=cheapest(_reached(algorithm.down, downs)),
            typical=down_typical,
            worst=dearest(_reached(algorithm.down, downs), down, down),
        ),
        first_down=_size(sample, first.message, _fitting(first.message, algorithm.down), first.data),
    )
    return Rehearsed(
        costs,
        _bits(sent.message, broadcast.lent or {}),
        _bits(came, longer[0].received(longer[1]).lent or {}),
        algorithm,
        sample,
        older,
        settled,
        broadcast,
        answer,
        algorithm.meaning(answer.message, stage.client(0)),
    )


def _typical_down(stage: Rehearsal, sample: Sample, server: Server, flips: float, missed: int) -> tuple[Message, int]:
    """A broadcast to a client that took part so many rounds ago, and its bytes."""
    held = stage.received(server)
    for round in range(missed):
        server = stage.after(server, calm(MOVE), round + 2)
    came = stage.broadcast(server, held.reference, 1 - (1 - flips) ** missed)
    return came.message, _size(sample, came.message, _fitting(came.message, stage.algorithm.down), came.data)


def _bits(message: Message, held: Mapping[str, Tensor]) -> dict[str, float]:
    """Bits per number of each slot, given what the receiver holds of it where that helps the slots of its form."""
    found = layer_entropies(message, Broadcast(message, Reference(held)))
    alone, given = {}, {}
    for name, value in message.tensors.items():
        form = form_of(value)
        parts, size = form.parts(value), max(dense(value).numel(), 1)
        entropy = form.entropy(value)
        if entropy is None:
            found[name] = 8.0 * dense(value).itemsize
        elif name not in found:
            alone[name] = given[name] = entropy / size
            if "exponents" in parts and name in held:
                nearest = nearest_codes(held[name].float(), parts["exponents"])
                nearer = form.join({**parts, "codes": parts["codes"] - nearest})
                given[name] = (form.entropy(nearer) or 0.0) / size
    sizes = {name: dense(message.tensors[name]).numel() for name in alone}
    return found | min(alone, given, key=lambda bits: sum(bits[name] * size for name, size in sizes.items()))


def _extremes(network: Network, make: Make, clients: int) -> tuple[list[Message], list[Message]]:
    """Uploads and broadcasts with the largest codes and the finest steps there are, of a few rows."""
    few = sampled(network, FEW).network
    stage = Rehearsal(few, make(few), clients)
    opened = stage.open()
    begun = stage.received(opened)
    uploads = [stage.answer(begun, move).message for move in (loud, still)]
    if all(slot.kind in DTYPES for schema in (*stage.algorithm.up, *stage.algorithm.down) for slot in schema.slots):
        return uploads, []  # floats, whose size does not depend on what was before
    servers = [opened]
    for round in range(1, LOUD + FINER + 1):
        move = loud if round <= LOUD else calm(HARDLY)
        servers.append(stage.after(servers[-1], move, round, collapses=round <= LOUD))
    return uploads, [stage.received(server).message for server in servers]


def _size(sample: Sample, message: Message, schema: Schema, data: bytes | None = None) -> int:
    return sample.bytes(message, schema, encode(message, schema) if data is None else data)


def _reached(schemas: Sequence[Schema], messages: Iterable[Message]) -> list[Schema]:
    """The schemas that some message has: an algorithm's settings may rule others out."""
    found = [_fitting(message, schemas) for message in messages]
    return [schema for schema in schemas if schema in found]


def _fitting(message: Message, schemas: Sequence[Schema]) -> Schema:
    """The schema of a message by the forms of its slots."""
    forms = {name: form_of(value) for name, value in message.tensors.items()}
    return next(schema for schema in schemas if forms == {slot.name: form_for(slot.kind) for slot in schema.slots})

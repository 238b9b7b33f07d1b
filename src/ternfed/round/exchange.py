"""The four hand-overs of a round, bytes on one side and values on the other.

The simulator and the deployment walk the same path through these functions; they differ only in who carries the bytes.
Trits of a broadcast are coded given the last one for receivers that hold it; trits of an upload given this broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ternfed.algorithms.algorithm import Algorithm, Server
from ternfed.quantize.ternary import Ternary
from ternfed.wire import Message, Reference, Schema, WrongSchema, decode, encode, read_header, reference_of
from ternfed.wire.message import locate


@dataclass(frozen=True)
class Broadcast:
    """A broadcast as its receivers have it, and what it lets both sides assume from then on."""

    message: Message
    codes: Mapping[str, Tensor] | None
    reference: Reference | None
    """The same codes, ready to code messages with."""


def send(algorithm: Algorithm, server: Server, round: int, held: bool, last: Reference | None) -> bytes:
    """Server: the bytes of a broadcast, for a receiver that holds the last one or does not."""
    message = algorithm.broadcast(server, held)
    return _encode(Message(message.tensors, {"round": round}), algorithm.down, last if held else None)


def receive(algorithm: Algorithm, data: bytes, last: Reference | None) -> Broadcast:
    """Client: what the bytes say. The server receives its own broadcast too, to know what the clients know."""
    return broadcast_of(algorithm, _decode(data, algorithm.down, last))


def broadcast_of(algorithm: Algorithm, message: Message) -> Broadcast:
    """A decoded broadcast with what follows from it."""
    codes = algorithm.reference(message)
    return Broadcast(message, codes, None if codes is None else reference_from(algorithm, codes))


def reference_from(algorithm: Algorithm, codes: Mapping[str, Tensor]) -> Reference:
    """The trits of a broadcast, ready to code messages with."""
    return reference_of(codes, _ternary_schema(algorithm.up))


def reply(algorithm: Algorithm, message: Message, numbers: Mapping[str, float], broadcast: Broadcast) -> bytes:
    """Client: the bytes of an upload."""
    schema = _fitting(message, algorithm.up)
    return _encode(Message(message.tensors, {n: numbers[n] for n in schema.numbers}), algorithm.up, broadcast.reference)


def collect(algorithm: Algorithm, data: bytes, broadcast: Broadcast) -> Message:
    """Server: what a client sent."""
    return _decode(data, algorithm.up, broadcast.reference)


def layer_entropies(message: Message, broadcast: Broadcast) -> dict[str, float]:
    """Bits a weight of each ternary layer of an upload: H(its trits | those of the broadcast).

    All layers are coded as one stream; this says what each of them contributes to its length.
    """
    if broadcast.codes is None:
        return {}
    return {
        name: _entropy(value.codes, broadcast.codes[name])
        for name, value in message.tensors.items()
        if isinstance(value, Ternary)
    }


def _entropy(codes: Tensor, given: Tensor) -> float:
    """H(X | Y) of two tensors of trits, in bits an element."""
    pairs = torch.bincount((3 * given.flatten().long() + codes.flatten().long()) + 4, minlength=9).double().view(3, 3)
    total = pairs.sum(1, keepdim=True)
    return float(torch.special.xlogy(pairs, total / pairs.clamp(min=1)).sum() / (math.log(2) * codes.numel()))


def trits_in(algorithm: Algorithm, data: bytes) -> tuple[int, int]:
    """(bytes, trits) of an upload's trit section."""
    header = read_header(data)
    schema = next(schema for schema in algorithm.up if schema.digest == header.schema)
    return locate(memoryview(data), header, schema).trits.nbytes, schema.trits


def _encode(message: Message, schemas: Sequence[Schema], reference: Reference | None) -> bytes:
    schema = _fitting(message, schemas)
    return encode(message, schema, reference=reference if schema.ternary else None)


def _decode(data: bytes, schemas: Sequence[Schema], reference: Reference | None) -> Message:
    digest = read_header(data).schema
    for schema in schemas:
        if schema.digest == digest:
            return decode(data, schema, reference=reference if schema.ternary else None)
    raise WrongSchema(f"the message has schema {digest.hex()}, none of the {len(schemas)} that this side knows")


def _fitting(message: Message, schemas: Sequence[Schema]) -> Schema:
    """The schema of a message by which of its tensors are ternary."""
    if len(schemas) == 1:
        return schemas[0]
    ternary = {name for name, value in message.tensors.items() if isinstance(value, Ternary)}
    for schema in schemas:
        names = {slot.name for slot in schema.slots}
        if names == set(message.tensors) and ternary == {slot.name for slot in schema.ternary}:
            return schema
    raise WrongSchema("the message fits none of the algorithm's schemas")


def _ternary_schema(schemas: Sequence[Schema]) -> Schema:
    return next(schema for schema in schemas if schema.ternary)

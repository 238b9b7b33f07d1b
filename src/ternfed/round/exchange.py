"""The four hand-overs of a round, bytes on one side and values on the other, and which broadcast a client gets.

The simulator and the deployment walk the same path through these functions; they differ only in who carries the bytes.
A broadcast is coded given the newest older one that its receiver holds, an upload given this broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ternfed.algorithms.algorithm import Algorithm, Server, Weights
from ternfed.quantize.pieces import pieces
from ternfed.wire import (
    Message,
    Reference,
    Schema,
    WrongSchema,
    decode,
    decode_each,
    encode,
    encode_each,
    form_for,
    form_of,
    read_header,
    same,
    sections_in,
    trits_of,
)


@dataclass(frozen=True, eq=False)
class Broadcast:
    """A broadcast as its receivers have it, and what it lets both sides assume from then on."""

    message: Message
    reference: Reference | None
    """What messages can be coded given, once both sides have it."""

    @property
    def lent(self) -> Mapping[str, Tensor] | None:
        """The named tensors of that reference."""
        return None if self.reference is None else self.reference.tensors


class Sent(NamedTuple):
    """A broadcast that is on its way."""

    data: bytes
    broadcast: Broadcast
    """What the bytes say, as the receivers will have it."""


@dataclass(frozen=True, eq=False)
class Broadcasts:
    """The broadcast of one round as each client gets it, made when it is first asked for.

    `held` always says which older broadcast the bytes are coded given, by its round; None: none. They are encoded once
    for each, however many clients hold it; what says the same is decoded once.
    """

    algorithm: Algorithm
    server: Server
    round: int
    past: Mapping[int, bytes] = field(default_factory=dict)
    """The older broadcasts that are kept, by round, each as `packed` gave it."""
    holders: Mapping[int, int] = field(default_factory=dict)
    """The round of the newest broadcast that each client holds."""
    _made: dict[int | None, Sent] = field(default_factory=dict, init=False, repr=False)
    _said: list[Broadcast] = field(default_factory=list, init=False, repr=False)
    """What all of them say, once one has been made."""

    def held_by(self, client: int) -> int | None:
        """The newest broadcast that a client holds, as far as the server knows; None where it has been forgotten."""
        held = self.holders.get(client)
        return held if held in self.past else None

    def given(self, held: int | None) -> Sent:
        """The broadcast for clients that hold an older one, or none."""
        if held not in self._made:
            reference, message = self._reference(held), self.algorithm.broadcast(self.server)
            data = send(self.algorithm, message, self.round, reference)
            if not self._said:  # the bytes differ, what they say does not
                said = _decode(data, self.algorithm.down, reference)
                self._said.append(_lending(self.algorithm, _held_once(said, message, self.server.weights)))
            self._made[held] = Sent(data, self._said[0])
        return self._made[held]

    def forget_bytes(self) -> None:
        """Let go of bytes that nobody will ask for again, as far as the server knows: of a model in floats, a model."""
        if self.any().reference is None:
            self._made.clear()

    def packed(self) -> bytes | None:
        """What must be kept for later broadcasts to be coded given this one; None where it lends them nothing."""
        if self.any().reference is None:
            return None
        alone = self._made.get(None)
        if alone is not None:
            return alone.data
        return send(self.algorithm, self.algorithm.broadcast(self.server), self.round, None)

    def for_client(self, client: int) -> Sent:
        """What a client gets."""
        return self.given(self.held_by(client))

    def groups(self, clients: Iterable[int]) -> dict[int | None, list[int]]:
        """Clients that get the same bytes, by what they hold: the newest first, none last."""
        groups: dict[int | None, list[int]] = {}
        for client in clients:
            groups.setdefault(self.held_by(client), []).append(client)
        return dict(sorted(groups.items(), key=lambda group: -1 if group[0] is None else group[0], reverse=True))

    def any(self) -> Broadcast:
        """The first that was made. Whatever they were coded given, all let both sides assume the same."""
        return self._said[0] if self._said else self.given(None).broadcast

    def _reference(self, held: int | None) -> Reference | None:
        """What an older broadcast lends. Nobody keeps it: the bytes that need it are made once."""
        if held is None or held not in self.past:
            return None
        lent = receive(self.algorithm, self.past[held], None).lent
        return None if lent is None else Reference(lent, keep=False)


def send(algorithm: Algorithm, message: Message, round: int, given: Reference | None) -> bytes:
    """Server: the bytes of a broadcast given an older one that its receiver holds."""
    return _encode(Message(message.tensors, {"round": round}), algorithm.down, given)


def receive(algorithm: Algorithm, data: bytes, given: Reference | None) -> Broadcast:
    """Client: what the bytes say. The server reads its own broadcast too, to know what the clients know."""
    return _lending(algorithm, _decode(data, algorithm.down, given))


def _held_once(said: Message, sent: Message, weights: Weights) -> Message:
    """What the bytes said, in the tensors that the server has, where these are the same bit for bit."""
    again = Message({name: sent.tensors[name] for name in said.tensors}, said.numbers)
    message = again if same(again, said) else said
    message.know(weights)
    return message


def _lending(algorithm: Algorithm, message: Message) -> Broadcast:
    lent = algorithm.reference(message)
    return Broadcast(message, None if lent is None else Reference(lent))


def packed(algorithm: Algorithm, broadcast: Broadcast) -> bytes:
    """Client: the bytes of a broadcast that it received, to be kept; nobody needs to hold anything to read them."""
    return _encode(broadcast.message, algorithm.down, None)


def reply(algorithm: Algorithm, message: Message, numbers: Mapping[str, float], broadcast: Broadcast) -> bytes:
    """Client: the bytes of an upload."""
    return _encode(numbered(algorithm, message, numbers), algorithm.up, broadcast.reference)


def reply_each(algorithm: Algorithm, messages: Sequence[Message], broadcast: Broadcast) -> list[bytes]:
    """Clients that share a machine: the bytes of their uploads, numbers in place; those of `reply`."""
    schemas = {id(schema): schema for schema in (_fitting(message, algorithm.up) for message in messages)}
    if len(schemas) != 1:
        return [_encode(message, algorithm.up, broadcast.reference) for message in messages]
    (schema,) = schemas.values()
    return encode_each(messages, schema, reference=broadcast.reference)


def numbered(algorithm: Algorithm, message: Message, numbers: Mapping[str, float]) -> Message:
    """An upload with those numbers that belong to it."""
    schema = _fitting(message, algorithm.up)
    return Message(message.tensors, {name: numbers[name] for name in schema.numbers})


def collect_each(algorithm: Algorithm, many: Sequence[bytes], broadcast: Broadcast) -> list[Message]:
    """Server: what each of many clients sent."""
    digests = {read_header(data).schema for data in many}
    schemas = [schema for schema in algorithm.up if schema.digest in digests]
    if len(digests) != 1 or len(schemas) != 1:
        return [collect(algorithm, data, broadcast) for data in many]
    return decode_each(many, schemas[0], reference=broadcast.reference)


def collect(algorithm: Algorithm, data: bytes, broadcast: Broadcast) -> Message:
    """Server: what a client sent."""
    return _decode(data, algorithm.up, broadcast.reference)


def layer_entropies(message: Message, broadcast: Broadcast) -> dict[str, float]:
    """Bits per weight of each ternary layer of an upload: H(its trits | those of the broadcast).

    All layers are coded as one stream; this says what each of them contributes to its length.
    """
    given = broadcast.lent or {}
    trits = {name for name, tensor in given.items() if tensor.dtype == torch.int8}
    layers = {name: trits_of(value) for name, value in message.tensors.items() if name in trits}
    return {name: _entropy(codes, given[name]) for name, codes in layers.items() if codes is not None}


def _entropy(codes: Tensor, given: Tensor) -> float:
    """H(X | Y) of two tensors of trits, in bits an element."""
    counts = torch.zeros(9, dtype=torch.int64)
    for before, after in pieces(given.flatten(), codes.flatten()):  # counted as numbers of eight bytes
        counts += torch.bincount((3 * before + after + 4).int(), minlength=9)
    pairs = counts.double().view(3, 3)
    total = pairs.sum(1, keepdim=True)
    return float(torch.special.xlogy(pairs, total / pairs.clamp(min=1)).sum() / (math.log(2) * codes.numel()))


def trits_in(algorithm: Algorithm, data: bytes) -> tuple[int, int]:
    """(bytes, trits) of an upload's trit section."""
    digest = read_header(data).schema
    schema = next(schema for schema in algorithm.up if schema.digest == digest)
    if not schema.trits:
        return 0, 0
    return sections_in(data, schema).get("ternary", 0), schema.trits


def _encode(message: Message, schemas: Sequence[Schema], reference: Reference | None) -> bytes:
    return encode(message, _fitting(message, schemas), reference=reference)


def _decode(data: bytes, schemas: Sequence[Schema], reference: Reference | None) -> Message:
    digest = read_header(data).schema
    for schema in schemas:
        if schema.digest == digest:
            return decode(data, schema, reference=reference)
    raise WrongSchema(f"the message has schema {digest.hex()}, none of the {len(schemas)} that this side knows")


def _fitting(message: Message, schemas: Sequence[Schema]) -> Schema:
    """The schema of a message by the forms of its slots."""
    if len(schemas) == 1:
        return schemas[0]
    forms = {name: form_of(value) for name, value in message.tensors.items()}
    for schema in schemas:
        if forms == {slot.name: form_for(slot.kind) for slot in schema.slots}:
            return schema
    raise WrongSchema("the message fits none of the algorithm's schemas")

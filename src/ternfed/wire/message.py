"""A message as bytes and back, as docs/wire.md lays it out: format 1.

What the forms make of their slots is put into one layout here. Format 1 has two sections; its codec, its flags and the
digest of its reference are those of the trits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ternfed.wire import base3, varint
from ternfed.wire.errors import (
    MessageError,
    MissingReference,
    TrailingBytes,
    Truncated,
    WrongChecksum,
    WrongCodec,
    WrongMagic,
    WrongReference,
    WrongSchema,
    WrongVersion,
)
from ternfed.wire.form import Buffer, Coded, Form, Options
from ternfed.wire.forms import Message, Value, form_for, lent
from ternfed.wire.planes import DENSE
from ternfed.wire.reference import Reference
from ternfed.wire.schema import Schema
from ternfed.wire.ternary import CODEC_NAMES, CODECS, ONE_FACTOR, TERNARY

MAGIC = b"\xf3TF"
VERSION = 1
HAS_REFERENCE = 1
_FIXED = 18
_CHECKSUM = slice(14, 18)

References = Reference | Message | Mapping[str, Value]


@dataclass(frozen=True)
class Header:
    """What a message says of itself before any schema is known."""

    version: int
    codec: str
    schema: bytes
    reference: bytes | None
    one_factor: bool
    checksum: int
    size: int
    """Bytes of the header up to the two lengths."""

    @property
    def flags(self) -> int:
        """Those of the trits."""
        return ONE_FACTOR if self.one_factor else 0


def encode(message: Message, schema: Schema, *, reference: References | None = None, codec: str = "auto") -> bytes:
    """The bytes of a message. Given a reference, slots are coded with it where that is smaller."""
    return assemble(message, schema, reference=reference, codec=codec)


def assemble(
    message: Message, schema: Schema, *, reference: References | None, codec: str, compress: bool = True
) -> bytes:
    """`encode` with the dense section left raw on request, for files whose content must account for their size."""
    if codec != "auto" and codec not in CODECS:
        raise MessageError(f"codec {codec!r} is unknown; there are auto, {', '.join(CODECS)}")
    check(message, schema)
    given, options = None if reference is None else _as_reference(reference), Options(codec, compress)
    trits, floats = (_encode(form, message, schema, given, options) for form in (TERNARY, DENSE))
    flags = trits.flags | (0 if trits.given is None else HAS_REFERENCE)
    front = MAGIC + bytes([VERSION, trits.codec, flags]) + schema.digest
    numbers = np.array([message.numbers[name] for name in schema.numbers], "<f8").tobytes()
    lengths = varint.write(len(trits.stream)) + varint.write(len(floats.stream))
    back = b"".join([trits.given or b"", lengths, trits.front, numbers, trits.stream, floats.stream])
    return b"".join([front, crc32(back, crc32(front)).to_bytes(4, "little"), back])


def read_header(data: Buffer) -> Header:
    """The header of a message, without a schema; for a receiver that has to pick one."""
    view = memoryview(data).cast("B")
    if bytes(view[:3]) != MAGIC[: len(view)]:
        raise WrongMagic("these bytes are no ternfed message")
    if len(view) > 3 and view[3] != VERSION:
        raise WrongVersion(f"the message has version {view[3]}, this program reads {VERSION}")
    if len(view) < _FIXED:
        raise Truncated(f"a header has at least {_FIXED} bytes, {len(view)} came")
    tag, flags = view[4], view[5]
    if tag not in CODEC_NAMES:
        raise WrongCodec(f"codec tag {tag} is unknown")
    if flags & ~(HAS_REFERENCE | ONE_FACTOR) or (flags & HAS_REFERENCE and tag == base3.TAG):
        raise WrongCodec(f"flags {flags:#04x} mean nothing for {CODEC_NAMES[tag]}")
    size = _FIXED + (8 if flags & HAS_REFERENCE else 0)
    if len(view) < size:
        raise Truncated("the bytes end within the digest of the reference")
    return Header(
        version=view[3],
        codec=CODEC_NAMES[tag],
        schema=bytes(view[6:14]),
        reference=bytes(view[_FIXED:size]) if flags & HAS_REFERENCE else None,
        one_factor=bool(flags & ONE_FACTOR),
        checksum=int.from_bytes(view[_CHECKSUM], "little"),
        size=size,
    )


def decode(data: Buffer, schema: Schema, *, reference: References | None = None) -> Message:
    """The message in the bytes, bit for bit, or the `WireError` that says which check failed."""
    view = memoryview(data).cast("B")
    header = read_header(view)
    if header.schema != schema.digest:
        raise WrongSchema(f"written for schema {header.schema.hex()}, this one is {schema.digest.hex()}")
    parts = locate(view, header, schema)
    if crc32(view[_FIXED:], crc32(view[:14])) != header.checksum:
        raise WrongChecksum("the checksum does not match: the bytes changed on their way")
    trits = Coded(parts.trits, parts.scales, CODECS[header.codec].tag, header.flags, header.reference)
    values: dict[str, Value] = {}
    for form, coded in ((TERNARY, trits), (DENSE, Coded(parts.dense))):
        values |= _decode(form, coded, schema, reference)
    return Message(
        {slot.name: values[slot.name] for slot in schema.slots},
        dict(zip(schema.numbers, np.frombuffer(parts.numbers, "<f8").tolist(), strict=True)),
    )


class Parts(NamedTuple):
    """The sections of a message."""

    scales: memoryview
    numbers: memoryview
    trits: memoryview
    dense: memoryview


def locate(view: memoryview, header: Header, schema: Schema) -> Parts:
    """Where the sections lie; the bytes must be exactly as many as they need."""
    stream, at = varint.read(view, header.size)
    floats, at = varint.read(view, at)
    numbers = at + TERNARY.front(schema.ternary, header.flags)
    trits = numbers + 8 * len(schema.numbers)
    end = trits + stream + floats
    if len(view) != end:
        raise (Truncated if len(view) < end else TrailingBytes)(f"the message has {end} bytes, {len(view)} came")
    return Parts(view[at:numbers], view[numbers:trits], view[trits : trits + stream], view[trits + stream :])


def check(message: Message, schema: Schema) -> None:
    """Refuse a message that does not fit its schema, naming the tensor."""
    names = {slot.name for slot in schema.slots}
    for kind, have, want in (
        ("tensor", message.tensors.keys(), names),
        ("number", message.numbers.keys(), set(schema.numbers)),
    ):
        if have != want:
            raise MessageError(f"{kind}s missing: {sorted(want - have)}; not in the schema: {sorted(have - want)}")
    for name, number in message.numbers.items():
        if not isinstance(number, int | float):
            raise MessageError(f"{name}: a number is wanted, not {type(number).__name__}")
    for slot in schema.slots:
        value, form = message.tensors[slot.name], form_for(slot.kind)
        if not isinstance(value, form.value_type):
            raise MessageError(f"{slot.name}: the schema says {slot.kind}, this is a {type(value).__name__}")
        form.check(slot, value)


def _encode(
    form: Form[Any, Any], message: Message, schema: Schema, reference: Reference | None, options: Options
) -> Coded:
    slots = schema.of(form.kinds)
    held = None if reference is None else reference.held(form, slots)
    return form.encode(slots, [message.tensors[slot.name] for slot in slots], held, options)


def _decode(form: Form[Any, Any], coded: Coded, schema: Schema, reference: References | None) -> dict[str, Value]:
    slots = schema.of(form.kinds)
    held = None
    if coded.given is not None:
        if reference is None:
            raise MissingReference(f"coded given reference {coded.given.hex()}; none is held")
        held = _as_reference(reference).held(form, slots)
        if held is None or held.digest != coded.given:
            raise WrongReference(f"coded given reference {coded.given.hex()}, another one is held")
    return {slot.name: value for slot, value in zip(slots, form.decode(slots, coded, held), strict=True)}


def _as_reference(reference: References) -> Reference:
    if isinstance(reference, Reference):
        return reference
    return Reference(lent(reference.tensors if isinstance(reference, Message) else reference), keep=False)

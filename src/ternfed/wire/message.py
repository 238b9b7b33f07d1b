"""A message as bytes and back, as docs/wire.md lays it out: format 2, a section for each form.

What the forms make of their slots is put into one layout here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from struct import pack
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from ternfed.wire import varint
from ternfed.wire.errors import (
    ImpossibleCount,
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
from ternfed.wire.form import Buffer, Coded, Form, Options, Slots
from ternfed.wire.forms import FORMS, Message, Value, form_for, lent
from ternfed.wire.reference import Reference
from ternfed.wire.schema import Schema
from ternfed.wire.ternary import CODECS

MAGIC = b"\xf3TF"
VERSION = 2
GIVEN = 0x10
"""The bit of a section's tag that says that it was coded given what the receiver holds."""
_FIXED = 16
MOST_BYTES = (1 << 31) - 1
"""Of a message: protobuf, which carries it over a network, counts with 31 bits."""
SPARE_BYTES, SPARE_SLOT = 1 << 16, 64
"""What a section may be longer than twice its numbers: for models of how they are spread."""
_CHECKSUM = slice(12, 16)

References = Reference | Message | Mapping[str, Value]


@dataclass(frozen=True)
class Header:
    """What a message says of itself before any schema is known."""

    version: int
    schema: bytes
    checksum: int


class Parts(NamedTuple):
    """The numbers of a message and its sections, by the names of their forms."""

    numbers: memoryview
    sections: dict[str, Coded]


def encode(message: Message, schema: Schema, *, reference: References | None = None, codec: str = "auto") -> bytes:
    """The bytes of a message. Given a reference, slots are coded with it where that is smaller."""
    return assemble(message, schema, reference=reference, codec=codec)


def encode_each(messages: Sequence[Message], schema: Schema, *, reference: References | None = None) -> list[bytes]:
    """The bytes of each of many messages, those of `encode`; a thousand small ones take less time together."""
    if not messages:
        return []
    given, options = None if reference is None else _as_reference(reference), Options()
    for message in messages:
        check(message, schema)
    sections = []
    for form in forms_in(schema):
        slots = schema.of(form.kinds)
        held = None if given is None else given.held(form, slots)
        many = [[message.tensors[slot.name] for slot in slots] for message in messages]
        if form.encode_each is None:
            sections.append([form.encode(slots, values, held, options) for values in many])
        else:
            sections.append(form.encode_each(slots, many, held, options))
    return [
        joined(schema.digest, _numbers(message, schema), [section[place] for section in sections])
        for place, message in enumerate(messages)
    ]


def assemble(
    message: Message, schema: Schema, *, reference: References | None, codec: str, compress: bool = True
) -> bytes:
    """`encode` with all but trits left in raw planes on request: the content of a file must account for its size."""
    if codec != "auto" and codec not in CODECS:
        raise MessageError(f"codec {codec!r} is unknown; there are auto, {', '.join(CODECS)}")
    check(message, schema)
    given, options = None if reference is None else _as_reference(reference), Options(codec, compress)
    coded = (_encode(form, message, schema, given, options) for form in forms_in(schema))
    return joined(schema.digest, _numbers(message, schema), coded)


def _numbers(message: Message, schema: Schema) -> bytes:
    return pack(f"<{len(schema.numbers)}d", *(message.numbers[name] for name in schema.numbers))


def joined(schema: bytes, numbers: Buffer, sections: Iterable[Coded]) -> bytes:
    """The bytes of a message from its parts."""
    front = MAGIC + bytes([VERSION]) + schema
    out, checksum = BytesIO(), crc32(front)
    out.write(front + bytes(4))
    checksum = crc32(numbers, checksum)
    out.write(numbers)
    for coded in sections:
        tag, taken = coded.codec | coded.flags | (0 if coded.given is None else GIVEN), coded.pieces
        length = sum(len(piece) for piece in taken)
        head = b"".join([bytes([tag]), coded.given or b"", varint.write(length), coded.front])
        refuse_too_long(out.tell() + len(head) + length)
        checksum = crc32(head, checksum)
        out.write(head)
        taken.reverse()
        while taken:
            piece = taken.pop()  # and it is let go: all pieces and the message are two messages
            checksum = crc32(piece, checksum)
            out.write(piece)
    out.seek(_CHECKSUM.start)
    out.write(checksum.to_bytes(4, "little"))
    return out.getvalue()  # what was written, not a copy


def refuse_too_long(length: int) -> None:
    """Refuse a message that no transport carries in one piece."""
    if length > MOST_BYTES:
        raise MessageError(
            f"a message of {length:,} bytes is longer than {MOST_BYTES:,}, which is what one call of gRPC carries; "
            "send fewer weights (model.trainable), or coarser ones (algorithm.dense, algorithm.rest_bits_up)"
        )


def forms_in(schema: Schema) -> tuple[Form[Any, Any], ...]:
    """The forms of which a schema has a slot, in the order of their sections."""
    return tuple(form for form in FORMS if schema.of(form.kinds))


def read_header(data: Buffer) -> Header:
    """The header of a message, without a schema; for a receiver that has to pick one."""
    view = memoryview(data).cast("B")
    if bytes(view[:3]) != MAGIC[: len(view)]:
        raise WrongMagic("these bytes are no ternfed message")
    if len(view) > 3 and view[3] != VERSION:
        raise WrongVersion(f"the message has version {view[3]}, this program reads {VERSION}")
    if len(view) < _FIXED:
        raise Truncated(f"a header has {_FIXED} bytes, {len(view)} came")
    return Header(view[3], bytes(view[4:12]), int.from_bytes(view[_CHECKSUM], "little"))


def decode(data: Buffer, schema: Schema, *, reference: References | None = None) -> Message:
    """The message in the bytes, bit for bit, or the `WireError` that says which check failed."""
    parts = _checked(data, schema)
    values: dict[str, Value] = {}
    for form in forms_in(schema):
        values |= _decode(form, parts.sections[form.name], schema, reference)
    return _message(values, parts, schema)


def decode_each(many: Sequence[Buffer], schema: Schema, *, reference: References | None = None) -> list[Message]:
    """The message in each of many buffers; of the first that fails a check, its `WireError`."""
    if not many:
        return []
    parts = [_checked(data, schema) for data in many]
    values: list[dict[str, Value]] = [{} for _ in many]
    for form in forms_in(schema):
        sections = [part.sections[form.name] for part in parts]
        slots = schema.of(form.kinds)
        if form.decode_each is None or len({section.given for section in sections}) > 1:
            found = [_decode(form, section, schema, reference) for section in sections]
        else:
            rows = form.decode_each(slots, sections, _held(form, sections[0], schema, reference))
            found = [{slot.name: value for slot, value in zip(slots, row, strict=True)} for row in rows]
        for own, new in zip(values, found, strict=True):
            own |= new
    return [_message(own, part, schema) for own, part in zip(values, parts, strict=True)]


def _checked(data: Buffer, schema: Schema) -> Parts:
    """Where the parts lie in bytes that arrived as they left."""
    view = memoryview(data).cast("B")
    parts = locate(view, schema)
    if crc32(view[_FIXED:], crc32(view[: _CHECKSUM.start])) != read_header(view).checksum:
        raise WrongChecksum("the checksum does not match: the bytes changed on their way")
    return parts


def _message(values: Mapping[str, Value], parts: Parts, schema: Schema) -> Message:
    return Message(
        {slot.name: values[slot.name] for slot in schema.slots},
        dict(zip(schema.numbers, np.frombuffer(parts.numbers, "<f8").tolist(), strict=True)),
    )


def locate(data: Buffer, schema: Schema) -> Parts:
    """Where the parts of a message lie; the bytes must be exactly as many as they need. Nothing in them is read yet."""
    view = memoryview(data).cast("B")
    header = read_header(view)
    if len(view) > MOST_BYTES:
        raise ImpossibleCount(f"a message of {len(view):,} bytes; none is longer than {MOST_BYTES:,}")
    if header.schema != schema.digest:
        raise WrongSchema(f"written for schema {header.schema.hex()}, this one is {schema.digest.hex()}")
    at = _FIXED + 8 * len(schema.numbers)
    if len(view) < at:
        raise Truncated("the bytes end within the numbers")
    numbers, sections = view[_FIXED:at], {}
    for form in forms_in(schema):
        sections[form.name], at = _section(view, at, form, schema.of(form.kinds))
    if at != len(view):
        raise TrailingBytes(f"the message has {at} bytes, {len(view)} came")
    return Parts(numbers, sections)


def sections_in(data: Buffer, schema: Schema) -> dict[str, int]:
    """Bytes of the stream of each form that the schema has a slot of, by its name: `ternary`, `grid`, `dense`."""
    return {name: len(coded.stream) for name, coded in locate(data, schema).sections.items()}


def _section(view: memoryview, at: int, form: Form[Any, Any], slots: Slots) -> tuple[Coded, int]:
    if at >= len(view):
        raise Truncated(f"the bytes end before the section of {form.name} tensors")
    codec, flags, given = view[at] & 0x0F, view[at] & 0xF0 & ~GIVEN, None
    if codec not in form.codecs:
        raise WrongCodec(f"{form.name} tensors have no codec {codec}")
    if flags & ~form.own_flags or (view[at] & GIVEN and form.codecs[codec] not in form.referring):
        raise WrongCodec(f"tag {view[at]:#04x} means nothing for {form.codecs[codec]} of {form.name} tensors")
    if view[at] & GIVEN:
        given, at = bytes(view[at + 1 : at + 9]), at + 8
    length, at = varint.read(view, at + 1)
    stream = at + form.front(slots, flags)
    end = stream + length
    if end > len(view):
        raise Truncated(f"the section of {form.name} tensors ends at byte {end}, {len(view)} came")
    if length > SPARE_BYTES and length > (most := longest_section(form, slots)):
        raise ImpossibleCount(f"a section of {length} bytes for {form.name} tensors that need {most} at most")
    return Coded(view[stream:end], view[at:stream], codec, flags, given), end


def longest(schema: Schema) -> int:
    """More bytes than any message of this schema has."""
    sections = (longest_section(form, schema.of(form.kinds)) for form in forms_in(schema))
    scales = 8 * len(schema.slots)
    return _FIXED + 8 * len(schema.numbers) + scales + sum(32 + most for most in sections)


def longest_section(form: Form[Any, Any], slots: Slots) -> int:
    """More bytes than any sender needs: codecs that would make a section longer than raw numbers are not chosen."""
    return SPARE_BYTES + SPARE_SLOT * len(slots) + 2 * form.unpacked(slots)


def check(message: Message, schema: Schema) -> None:
    """Refuse a message that does not fit its schema, naming the tensor."""
    names = schema.names
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
    values = form.decode(slots, coded, _held(form, coded, schema, reference))
    return {slot.name: value for slot, value in zip(slots, values, strict=True)}


def _held(form: Form[Any, Any], coded: Coded, schema: Schema, reference: References | None) -> Any:
    """What a section was coded given, by what is held here; None where it needs nothing."""
    if coded.given is None:
        return None
    if reference is None:
        raise MissingReference(f"coded given reference {coded.given.hex()}; none is held")
    held = _as_reference(reference).held(form, schema.of(form.kinds))
    if held is None or held.digest != coded.given:
        raise WrongReference(f"coded given reference {coded.given.hex()}, another one is held")
    return held


def _as_reference(reference: References) -> Reference:
    if isinstance(reference, Reference):
        return reference
    return Reference(lent(reference.tensors if isinstance(reference, Message) else reference), keep=False)

"""A message as bytes and back, as docs/wire.md lays it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from ternfed.quantize.ternary import Ternary
from ternfed.wire import ans, base3, dense, varint, zstd
from ternfed.wire.choose import choose
from ternfed.wire.errors import (
    MessageError,
    MissingReference,
    TrailingBytes,
    Truncated,
    WrongChecksum,
    WrongCodec,
    WrongMagic,
    WrongReference,
    WrongScale,
    WrongSchema,
    WrongVersion,
)
from ternfed.wire.reference import Reference, Trits, reference_of
from ternfed.wire.schema import DTYPES, Kind, Message, Schema
from ternfed.wire.trits import Codes, flat_codes, symbols

MAGIC = b"\xf3TF"
VERSION = 1
HAS_REFERENCE, ONE_FACTOR = 1, 2
_FIXED = 18
_CHECKSUM = slice(14, 18)


class Codec(NamedTuple):
    """A codec: its tag on the wire and its two functions."""

    tag: int
    encode: Callable[[Trits], bytes]
    decode: Callable[[memoryview, tuple[int, ...], Reference | None], Codes]


CODECS: Mapping[str, Codec] = {
    "base3": Codec(base3.TAG, base3.encode, base3.decode),
    "zstd": Codec(zstd.TAG, zstd.encode, zstd.decode),
    "ans": Codec(ans.TAG, ans.encode, ans.decode),
}
_NAMES = {codec.tag: name for name, codec in CODECS.items()}

Buffer = bytes | bytearray | memoryview
References = Reference | Message | Mapping[str, Tensor | Ternary]


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


def encode(message: Message, schema: Schema, *, reference: References | None = None, codec: str = "auto") -> bytes:
    """The bytes of a message. With a reference, trits are coded given its trits where that is smaller."""
    return assemble(message, schema, reference=reference, codec=codec)


def assemble(
    message: Message, schema: Schema, *, reference: References | None, codec: str, compress: bool = True
) -> bytes:
    """`encode` with the dense section left raw on request, for files whose content must account for their size."""
    if codec != "auto" and codec not in CODECS:
        raise MessageError(f"codec {codec!r} is unknown; there are auto, {', '.join(CODECS)}")
    check(message, schema)
    trits = Trits(_flatten(message, schema), schema.sizes, _as_reference(reference, schema))
    name, trits = choose(trits) if codec == "auto" else (codec, trits)
    stream = CODECS[name].encode(trits)
    if codec == "auto" and len(stream) > symbols(schema.trits):
        name, stream = "base3", base3.encode(trits)
    used = trits.reference if name != "base3" else None
    one_factor, scales = _scales_to_bytes(message, schema)
    floats = dense.encode(_dense_tensors(message), schema, compress=compress)
    flags = (HAS_REFERENCE if used else 0) | (ONE_FACTOR if one_factor else 0)
    front = MAGIC + bytes([VERSION, CODECS[name].tag, flags]) + schema.digest
    numbers = np.array([message.numbers[name] for name in schema.numbers], "<f8").tobytes()
    lengths = varint.write(len(stream)) + varint.write(len(floats))
    back = b"".join([used.digest if used else b"", lengths, scales, numbers, stream, floats])
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
    if tag not in _NAMES:
        raise WrongCodec(f"codec tag {tag} is unknown")
    if flags & ~(HAS_REFERENCE | ONE_FACTOR) or (flags & HAS_REFERENCE and tag == base3.TAG):
        raise WrongCodec(f"flags {flags:#04x} mean nothing for {_NAMES[tag]}")
    size = _FIXED + (8 if flags & HAS_REFERENCE else 0)
    if len(view) < size:
        raise Truncated("the bytes end within the digest of the reference")
    return Header(
        version=view[3],
        codec=_NAMES[tag],
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
    held = _held(header, schema, reference)
    scales = _scales_from_bytes(parts.scales, schema, header.one_factor)
    ternaries = _split(CODECS[header.codec].decode(parts.trits, schema.sizes, held), schema, scales)
    others = dense.decode(parts.dense, schema)
    return Message(
        {slot.name: ternaries[slot.name] if slot.kind is Kind.TERNARY else others[slot.name] for slot in schema.slots},
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
    factors = len(schema.ternary) * (1 if header.one_factor else 2)
    numbers = at + 4 * factors
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
        value = message.tensors[slot.name]
        if isinstance(value, Ternary) != (slot.kind is Kind.TERNARY):
            raise MessageError(f"{slot.name}: the schema says {slot.kind}, this is a {type(value).__name__}")
        tensor = value.codes if isinstance(value, Ternary) else value
        if not isinstance(tensor, Tensor):
            raise MessageError(f"{slot.name}: a torch tensor is wanted, not {type(tensor).__name__}")
        if tuple(tensor.shape) != slot.shape:
            raise MessageError(f"{slot.name}: shape {tuple(tensor.shape)}, the schema says {slot.shape}")
        if tensor.layout is not torch.strided:
            raise MessageError(f"{slot.name}: {tensor.layout} tensors do not travel; make it dense first")
        if isinstance(value, Ternary):
            _check_scales(slot.name, value)
        elif tensor.dtype is not DTYPES[slot.kind]:
            raise MessageError(f"{slot.name}: {tensor.dtype}, the schema says {slot.kind}")


def _check_scales(name: str, value: Ternary) -> None:
    for side, scale in (("positive", value.positive), ("negative", value.negative)):
        if scale.dtype is not torch.float32 or scale.ndim:
            raise MessageError(f"{name}: the {side} scale is one float32, not {tuple(scale.shape)} of {scale.dtype}")
        if not 0 <= float(scale) < float("inf"):
            raise MessageError(f"{name}: the {side} scale is {float(scale)}; it must be finite and not negative")


def _flatten(message: Message, schema: Schema) -> Codes:
    parts = [flat_codes(slot.name, _ternary(message, slot.name).codes) for slot in schema.ternary]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int8)


def _split(codes: Codes, schema: Schema, scales: list[tuple[Tensor, Tensor]]) -> dict[str, Ternary]:
    flat, stop = torch.from_numpy(codes), 0
    out = {}
    for slot, (positive, negative) in zip(schema.ternary, scales, strict=True):
        start, stop = stop, stop + slot.size
        part = flat[start:stop]
        out[slot.name] = Ternary(
            (part if slot.size == len(flat) else part.clone()).reshape(slot.shape), positive, negative
        )
    return out


def _ternary(message: Message, name: str) -> Ternary:
    value = message.tensors[name]
    assert isinstance(value, Ternary)
    return value


def _dense_tensors(message: Message) -> dict[str, Tensor]:
    return {name: value for name, value in message.tensors.items() if not isinstance(value, Ternary)}


def _scales_to_bytes(message: Message, schema: Schema) -> tuple[bool, bytes]:
    """All positive scales, then all negative ones unless they are the same bits."""
    values = [_ternary(message, slot.name) for slot in schema.ternary]
    positive = np.array([float(value.positive) for value in values], "<f4").tobytes()
    negative = np.array([float(value.negative) for value in values], "<f4").tobytes()
    return (True, positive) if positive == negative else (False, positive + negative)


def _scales_from_bytes(data: memoryview, schema: Schema, one_factor: bool) -> list[tuple[Tensor, Tensor]]:
    values = np.frombuffer(data, "<f4").astype(np.float32).reshape(1 if one_factor else 2, -1)
    good = np.isfinite(values) & (values >= 0)
    if not good.all():
        name = schema.ternary[int(np.argmin(good.all(axis=0)))].name
        raise WrongScale(f"{name}: a scale is negative, infinite or not a number")
    if not one_factor and values[0].tobytes() == values[1].tobytes():
        raise WrongScale("equal scales are sent once")
    return [(torch.tensor(a), torch.tensor(b)) for a, b in zip(values[0].tolist(), values[-1].tolist(), strict=True)]


def _as_reference(reference: References | None, schema: Schema) -> Reference | None:
    if reference is None:
        return None
    if not isinstance(reference, Reference):
        return reference_of(reference, schema, keep=False)
    if reference.sizes != schema.sizes:
        raise MessageError("the reference was made for another schema")
    return reference


def _held(header: Header, schema: Schema, reference: References | None) -> Reference | None:
    """The receiver's reference if the message needs it and it is the right one."""
    if header.reference is None:
        return None
    if reference is None:
        raise MissingReference(f"coded given reference {header.reference.hex()}; none is held")
    held = _as_reference(reference, schema)
    if held is None or held.digest != header.reference:
        raise WrongReference(f"coded given reference {header.reference.hex()}, another one is held")
    return held

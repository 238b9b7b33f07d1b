"""`model.tern`: a ternary model in one file that says itself what its tensors are called and how they are shaped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any
from zlib import crc32

from ternfed.files import shown_name
from ternfed.wire import varint
from ternfed.wire.errors import (
    ImpossibleCount,
    MessageError,
    TrailingBytes,
    Truncated,
    WrongChecksum,
    WrongFile,
    WrongMagic,
    WrongVersion,
)
from ternfed.wire.forms import Message, Value, schema_of
from ternfed.wire.message import assemble, decode, forms_in, locate, longest
from ternfed.wire.schema import Kind, Schema, Slot

MAGIC = b"\xf3TM"
VERSION = 2
_FIXED = 8
MOST_DIMENSIONS, MOST_ELEMENTS = 16, 1 << 48
USUAL_HEADER, MOST_HEADER, MOST_TENSORS = 1 << 16, 1 << 24, 1 << 16
FREE_BYTES, RATIO = 1 << 20, 1024
"""A file of L bytes may hold FREE_BYTES + RATIO · L trits, and as many bytes of each other form: small stays small."""


@dataclass(frozen=True)
class TensorSummary:
    """One tensor of a file, as `ternfed inspect` shows it."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    zeros: float
    """Share of elements that are zero."""
    bits: float
    """Bits an element in this file: its share of the section it lies in."""
    entropy: float | None
    """Order-0 entropy of its trits or codes in bits; None for a dense tensor."""


@dataclass(frozen=True)
class Summary:
    """A file: its tensors, how they are coded, and its size against float32."""

    rows: tuple[TensorSummary, ...]
    metadata: dict[str, str]
    codec: str
    """Of the trits; of the grids or the dense tensors where there are none; empty for an empty model."""
    bytes: int
    float32_bytes: int

    @property
    def ratio(self) -> float:
        """How many times smaller than the same elements as float32."""
        return self.float32_bytes / self.bytes


def save_tern(
    path: str | PathLike[str],
    model: Message | Mapping[str, Value],
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Write tensors to a file and return its size. A message's numbers belong into the metadata."""
    data = tern_bytes(model, metadata)
    Path(path).write_bytes(data)
    return len(data)


def load_tern(path: str | PathLike[str]) -> tuple[dict[str, Value], dict[str, str]]:
    """The tensors and the metadata of a file."""
    return parse_tern(_read(path))


def tern_bytes(model: Message | Mapping[str, Value], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a .tern file: magic, version, checksum and length of a JSON header, the header, a message."""
    message = model if isinstance(model, Message) else Message(dict(model))
    if message.numbers:
        raise MessageError(f"a model file holds tensors; put {sorted(message.numbers)} into its metadata")
    notes = dict(metadata or {})
    if not all(isinstance(text, str) for pair in notes.items() for text in pair):
        raise MessageError("metadata maps strings to strings")
    schema = schema_of(message)
    tensors = [[slot.name, slot.kind.value, list(slot.shape)] for slot in schema.slots]
    text = json.dumps({"metadata": notes, "tensors": tensors}, separators=(",", ":"), sort_keys=True).encode("ascii")
    front = MAGIC + bytes([VERSION]) + crc32(text).to_bytes(4, "little") + varint.write(len(text)) + text
    for codec, compress in (("auto", True), ("auto", False), ("base3", False)):
        data = front + assemble(message, schema, reference=None, codec=codec, compress=compress)
        if _plausible(schema, len(data)):
            break
    return data


def parse_tern(data: bytes) -> tuple[dict[str, Value], dict[str, str]]:
    """The tensors and the metadata in the bytes of a .tern file; hostile bytes raise a `WireError`."""
    schema, metadata, start = read_front(data)
    return dict(decode(memoryview(data)[start:], schema).tensors), metadata


def describe(path: str | PathLike[str]) -> Summary:
    """What `ternfed inspect` prints: each tensor's shape, zeros, bits and entropy, and the total against float32."""
    data = _read(path)
    schema, metadata, start = read_front(data)
    body = memoryview(data)[start:]
    tensors, sections = decode(body, schema).tensors, locate(body, schema).sections
    rows: dict[str, TensorSummary] = {}
    for form in forms_in(schema):
        slots, coded = schema.of(form.kinds), sections[form.name]
        costs = form.costs([tensors[slot.name] for slot in slots], coded)
        for slot, cost in zip(slots, costs, strict=True):
            value, size = tensors[slot.name], max(slot.size, 1)
            zeros = (slot.size - int(form.dense(value).count_nonzero())) / size
            bits = 8 * len(coded.stream) * cost / max(sum(costs), 1)
            entropy = form.entropy(value)
            rows[slot.name] = TensorSummary(
                slot.name, slot.shape, slot.kind, zeros, bits / size, None if entropy is None else entropy / size
            )
    codec = next((form.codecs[sections[form.name].codec] for form in forms_in(schema)), "")
    elements = sum(slot.size for slot in schema.slots)
    return Summary(tuple(rows[slot.name] for slot in schema.slots), metadata, codec, len(data), 4 * elements)


def _read(path: str | PathLike[str]) -> bytes:
    """All of a file, once its header has said that its tensors may need so much."""
    with Path(path).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        front = stream.read(min(size, USUAL_HEADER))
        if len(front) > _FIXED:
            length, start = varint.read(memoryview(front), _FIXED)
            front += stream.read(max(0, min(size, start + min(length, MOST_HEADER)) - len(front)))
        schema, _, start = read_front(front, size)
        if size > start + (most := longest(schema)):
            raise TrailingBytes(f"{size - start} bytes follow the header, and its tensors need {most} at most")
        return front + stream.read()


def _rooms(schema: Schema) -> dict[str, int]:
    """What a reader makes room for, form by form: trits, and bytes of the others."""
    return {form.name: form.unpacked(schema.of(form.kinds)) for form in forms_in(schema)}


def _plausible(schema: Schema, length: int) -> bool:
    return all(room <= FREE_BYTES + RATIO * length for room in _rooms(schema).values())


def read_front(data: bytes, size: int | None = None) -> tuple[Schema, dict[str, str], int]:
    """Schema, metadata, and where the message starts. Nothing is allocated by what the header claims.

    `size` is that of the whole file, where the data are only its first bytes.
    """
    view = memoryview(data)
    size = len(view) if size is None else size
    if bytes(view[:3]) != MAGIC[: len(view)]:
        raise WrongMagic("this is no .tern file")
    if len(view) > 3 and view[3] != VERSION:
        raise WrongVersion(f"the file has version {view[3]}, this program reads {VERSION}")
    if len(view) < _FIXED:
        raise Truncated("the file ends within its first eight bytes")
    length, start = varint.read(view, _FIXED)
    if start + length > size:
        raise Truncated(f"a header of {length} bytes, {size - start} are left")
    if length > MOST_HEADER:
        raise ImpossibleCount(f"a header of {length} bytes, {MOST_HEADER} is the most")
    text = bytes(view[start : start + length])
    if crc32(text) != int.from_bytes(view[4:_FIXED], "little"):
        raise WrongChecksum("the header changed since it was written")
    try:
        schema, metadata = _parse_header(json.loads(text))
    except (ValueError, RecursionError) as problem:
        raise WrongFile(f"the header cannot be read: {problem}") from None
    if not _plausible(schema, size):
        raise WrongFile(f"{_rooms(schema)} in a file of {size} bytes")
    return schema, metadata, start + length


def _parse_header(header: Any) -> tuple[Schema, dict[str, str]]:
    match header:
        case {"metadata": dict(metadata), "tensors": list(tensors), **others} if not others:
            if not all(isinstance(text, str) for text in metadata.values()):
                raise WrongFile("metadata maps strings to strings")
            if len(tensors) > MOST_TENSORS:
                raise WrongFile(f"{len(tensors)} tensors, {MOST_TENSORS} is the most")
            return Schema(tuple(_parse_slot(entry) for entry in tensors)), metadata
    raise WrongFile("the header is an object with metadata and tensors")


def _parse_slot(entry: Any) -> Slot:
    match entry:
        case [str(name), str(kind), list(shape)] if kind in set(Kind) and all(type(length) is int for length in shape):
            # Lengths beside a zero count as well: torch computes strides from them.
            if len(shape) <= MOST_DIMENSIONS and min(shape, default=0) >= 0:
                span = prod(max(length, 1) for length in shape)
                if span < MOST_ELEMENTS:
                    return Slot(name, tuple(shape), Kind(kind))
            raise WrongFile(f"{shown_name(name)}: a tensor cannot have shape {shape}"[:300])
    raise WrongFile("a tensor is [name, kind, shape]")

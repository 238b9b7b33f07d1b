"""`model.tern`: a ternary model in one file that says itself what its tensors are called and how they are shaped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2, prod
from os import PathLike
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ternfed.wire import varint
from ternfed.wire.ans import MODEL_A_TENSOR, Spread, entropy_bits
from ternfed.wire.errors import MessageError, Truncated, WrongChecksum, WrongFile, WrongMagic, WrongVersion
from ternfed.wire.forms import Message, Value, dense, schema_of
from ternfed.wire.message import assemble, decode, locate, read_header
from ternfed.wire.schema import DTYPES, Kind, Schema, Slot
from ternfed.wire.ternary import trits_of
from ternfed.wire.trits import flat_codes, spread_of

MAGIC = b"\xf3TM"
VERSION = 1
_FIXED = 8
MOST_DIMENSIONS, MOST_ELEMENTS = 16, 1 << 48
FREE_BYTES, RATIO = 1 << 20, 1024
"""A file of L bytes may hold FREE_BYTES + RATIO · L trits and as many dense bytes: a small file stays a small model."""


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
    """Order-0 entropy of its trits in bits; None for a dense tensor."""


@dataclass(frozen=True)
class Summary:
    """A file: its tensors, how its trits are coded, and its size against float32."""

    rows: tuple[TensorSummary, ...]
    metadata: dict[str, str]
    codec: str
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
    return parse_tern(Path(path).read_bytes())


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
    data = Path(path).read_bytes()
    schema, metadata, start = read_front(data)
    body = memoryview(data)[start:]
    tensors = decode(body, schema).tensors
    header = read_header(body)
    parts = locate(body, header, schema)
    codes = {name: trits_of(value) for name, value in tensors.items()}
    spreads = {name: spread_of(flat_codes(name, trits)) for name, trits in codes.items() if trits is not None}
    pooled = np.sum([*spreads.values(), (0, 0, 0)], axis=0)
    costs = {name: _cost(spread, pooled, header.codec, parts.trits) for name, spread in spreads.items()}
    dense_bytes = schema.size - 4 * schema.trits
    rows = []
    for slot in schema.slots:
        entropy = None
        if slot.name in spreads:
            spread = spreads[slot.name]
            zeros, entropy = spread[1], entropy_bits(np.array(spread)) / max(slot.size, 1)
            bits = 8 * len(parts.trits) * costs[slot.name] / max(sum(costs.values()), 1)
        else:
            zeros = slot.size - int(dense(tensors[slot.name]).count_nonzero())
            bits = 8 * len(parts.dense) * DTYPES[slot.kind].itemsize * slot.size / max(dense_bytes, 1)
        rows.append(
            TensorSummary(
                slot.name, slot.shape, slot.kind, zeros / max(slot.size, 1), bits / max(slot.size, 1), entropy
            )
        )
    elements = sum(slot.size for slot in schema.slots)
    return Summary(tuple(rows), metadata, header.codec, len(data), 4 * elements)


def _cost(spread: Spread, pooled: NDArray[np.int64], codec: str, stream: memoryview) -> float:
    """Bits that a tensor's trits cost, up to a factor: all alike in base-3, else by the model they were coded with."""
    if codec == "base3":
        return float(sum(spread))
    model = np.array(spread) if codec == "ans" and stream[0] == MODEL_A_TENSOR else pooled
    return sum(n * log2(model.sum() / m) for n, m in zip(spread, model.tolist(), strict=True) if n)


def _plausible(schema: Schema, length: int) -> bool:
    most = FREE_BYTES + RATIO * length
    return schema.trits <= most and schema.size - 4 * schema.trits <= most


def read_front(data: bytes) -> tuple[Schema, dict[str, str], int]:
    """Schema, metadata, and where the message starts. Nothing is allocated by what the header claims."""
    view = memoryview(data)
    if bytes(view[:3]) != MAGIC[: len(view)]:
        raise WrongMagic("this is no .tern file")
    if len(view) > 3 and view[3] != VERSION:
        raise WrongVersion(f"the file has version {view[3]}, this program reads {VERSION}")
    if len(view) < _FIXED:
        raise Truncated("the file ends within its first eight bytes")
    length, start = varint.read(view, _FIXED)
    if start + length > len(view):
        raise Truncated(f"a header of {length} bytes, {len(view) - start} are left")
    text = bytes(view[start : start + length])
    if crc32(text) != int.from_bytes(view[4:_FIXED], "little"):
        raise WrongChecksum("the header changed since it was written")
    try:
        schema, metadata = _parse_header(json.loads(text))
    except (ValueError, RecursionError) as problem:
        raise WrongFile(f"the header cannot be read: {problem}") from None
    if not _plausible(schema, len(view)):
        raise WrongFile(f"{schema.trits} trits and {schema.size - 4 * schema.trits} bytes in a file of {len(view)}")
    return schema, metadata, start + length


def _parse_header(header: Any) -> tuple[Schema, dict[str, str]]:
    match header:
        case {"metadata": dict(metadata), "tensors": list(tensors), **others} if not others:
            if not all(isinstance(text, str) for text in metadata.values()):
                raise WrongFile("metadata maps strings to strings")
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
            raise WrongFile(f"{name}: a tensor cannot have shape {shape}"[:200])
    raise WrongFile("a tensor is [name, kind, shape]")

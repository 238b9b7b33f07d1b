"""Everything that is not ternary, exactly: byte planes, each as it is or through zstd, whichever is smaller.

The bytes of equal significance of all tensors of a kind form a plane. Signs and exponents share the top one and repeat
themselves; mantissas are noise and stay raw. zstd is kept from matches under seven bytes, which in such planes are
chance and cost more than the letters they replace.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ternfed.wire import varint
from ternfed.wire.errors import TrailingBytes, Truncated, WrongValue
from ternfed.wire.schema import DTYPES, Kind, Schema, Slot, flat_bytes
from ternfed.wire.trits import Bytes
from ternfed.wire.zstd import frame, unframe

MIN_MATCH = 7


def encode(tensors: dict[str, Tensor], schema: Schema, *, compress: bool = True) -> bytes:
    """Kind by kind, plane by plane, least significant first: the length of its frame (0: raw), then the bytes."""
    out = []
    for kind, slots in schema.dense:
        flat = torch.cat([flat_bytes(tensors[slot.name]) for slot in slots]).numpy()
        for plane in flat.reshape(-1, DTYPES[kind].itemsize).T:
            raw = np.ascontiguousarray(plane)
            packed = frame(raw, min_match=MIN_MATCH) if compress and len(raw) else b""
            out += [varint.write(len(packed)), packed] if 0 < len(packed) < len(raw) else [b"\0", raw.tobytes()]
    return b"".join(out)


def decode(data: memoryview, schema: Schema) -> dict[str, Tensor]:
    """The tensors by name; each owns its memory."""
    tensors: dict[str, Tensor] = {}
    at = 0
    for kind, slots in schema.dense:
        width, count = DTYPES[kind].itemsize, sum(slot.size for slot in slots)
        flat = np.empty((count, width), np.uint8)
        for plane in flat.T:
            at = _read_plane(data, at, plane)
        if kind is Kind.BOOL and flat.size and flat.max() > 1:
            raise WrongValue(f"a bool is {flat.max()}")
        start = 0
        for slot in slots:
            tensors[slot.name] = _tensor(flat[start : start + slot.size], slot)
            start += slot.size
    if at != len(data):
        raise TrailingBytes(f"{len(data) - at} bytes after the last plane")
    return tensors


def _tensor(rows: Bytes, slot: Slot) -> Tensor:
    if not slot.size:  # torch cannot view no bytes as another dtype
        return torch.empty(slot.shape, dtype=DTYPES[slot.kind])
    return torch.from_numpy(rows.reshape(-1).copy()).view(DTYPES[slot.kind]).reshape(slot.shape)


def _read_plane(data: memoryview, at: int, plane: Bytes) -> int:
    length, at = varint.read(data, at)
    stop = at + (length or len(plane))
    if stop > len(data):
        raise Truncated(f"a plane of {stop - at} bytes, {len(data) - at} are left")
    plane[:] = np.frombuffer(unframe(data[at:stop], len(plane)) if length else data[at:stop], np.uint8)
    return stop

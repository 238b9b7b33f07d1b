"""The form `dense`: plain tensors, exactly. Byte planes, each as it is or through zstd, whichever is smaller.

The bytes of equal significance of all tensors of a kind form a plane. Signs and exponents share the top one and repeat
themselves; mantissas are noise and stay raw. zstd is kept from matches under seven bytes, which in such planes are
chance and cost more than the letters they replace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ternfed.wire import varint
from ternfed.wire.errors import MessageError, TrailingBytes, Truncated, WrongValue
from ternfed.wire.form import Buffer, Coded, Form, Held, Options, Slots, check_tensor
from ternfed.wire.schema import DTYPES, Kind, Slot, flat_bytes
from ternfed.wire.trits import Bytes
from ternfed.wire.zstd import frame, unframe

TAG = 1
MIN_MATCH = 7


_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}


def _slot(name: str, value: Tensor) -> Slot:
    if value.dtype not in _KINDS:
        raise MessageError(f"{name}: the wire has no kind for {value.dtype}; it has {', '.join(DTYPES)}")
    return Slot(name, tuple(value.shape), _KINDS[value.dtype])


def _check(slot: Slot, value: Tensor) -> None:
    check_tensor(slot, value)
    if value.dtype is not DTYPES[slot.kind]:
        raise MessageError(f"{slot.name}: {value.dtype}, the schema says {slot.kind}")


def _largest(value: Tensor) -> float:
    if not value.is_floating_point() or not value.numel():
        return 0.0
    low, high = torch.aminmax(value)
    return max(-float(low), float(high))


def _hold(slots: Slots, tensors: Mapping[str, Tensor], keep: bool) -> None:
    """Nothing: mantissas are noise, whatever the receiver holds."""


def _encode(slots: Slots, values: Sequence[Tensor], held: Held | None, options: Options) -> Coded:
    """Kind by kind, plane by plane, least significant first."""
    tensors = {slot.name: value for slot, value in zip(slots, values, strict=True)}
    out: list[Buffer] = []
    for kind, group in _by_kind(slots):
        width = DTYPES[kind].itemsize
        parts = [flat_bytes(tensors[slot.name]).numpy().reshape(-1, width) for slot in group]
        for place in range(width):
            plane = np.concatenate([part[:, place] for part in parts])
            out += plane_pieces(plane, options.compress)
    return Coded(out, codec=TAG)


def _decode(slots: Slots, coded: Coded, held: Held | None) -> list[Tensor]:
    """The tensors; each owns its memory."""
    tensors: dict[str, Tensor] = {}
    data, at = memoryview(coded.stream), 0
    for kind, group in _by_kind(slots):
        width, total = DTYPES[kind].itemsize, sum(slot.size for slot in group)
        parts = [np.empty((slot.size, width), np.uint8) for slot in group]
        for place in range(width):
            plane, at = _read_plane(data, at, total)
            if kind is Kind.BOOL and plane.size and plane.max() > 1:
                raise WrongValue(f"a bool is {plane.max()}")
            start = 0
            for part in parts:
                part[:, place] = plane[start : start + len(part)]
                start += len(part)
        tensors |= {slot.name: _tensor(part, slot) for slot, part in zip(group, parts, strict=True)}
    if at != len(data):
        raise TrailingBytes(f"{len(data) - at} bytes after the last plane")
    return [tensors[slot.name] for slot in slots]


DENSE: Form[Tensor, Held] = Form(
    name="dense",
    value_type=Tensor,
    kinds=tuple(DTYPES),
    codecs={TAG: "planes"},
    referring=frozenset(),
    own_flags=0,
    fields=("tensor",),
    parts=lambda value: {"tensor": value},
    join=lambda parts: parts["tensor"],
    slot=_slot,
    check=_check,
    dense=lambda value: value,
    rows=lambda value, own: value[own],
    largest=_largest,
    lends=lambda value: value,
    hold=_hold,
    encode=_encode,
    front=lambda slots, flags: 0,
    decode=_decode,
    unpacked=lambda slots: sum(DTYPES[slot.kind].itemsize * slot.size for slot in slots),
    costs=lambda values, coded: [float(value.nbytes) for value in values],
    entropy=lambda value: None,
)


def plane_pieces(raw: Bytes, compress: bool) -> list[Buffer]:
    """A plane: the length of its frame (0: raw), then the bytes."""
    packed = b""
    if compress and len(raw):
        packed = frame(raw, min_match=MIN_MATCH) if raw.any() else _zeros(len(raw))
    return [varint.write(len(packed)), packed] if 0 < len(packed) < len(raw) else [b"\0", raw.data]


def plane_length(raw: Bytes) -> int:
    """Bytes that one plane takes, compressed where that is smaller."""
    packed = len(frame(raw, min_match=MIN_MATCH) if raw.any() else _zeros(len(raw)))
    return len(varint.write(packed)) + packed if 0 < packed < len(raw) else 1 + len(raw)


@lru_cache(64)
def _zeros(length: int) -> bytes:
    """The frame of a plane that is all zeros, as the upper ones of small numbers are."""
    return frame(np.zeros(length, np.uint8), min_match=MIN_MATCH)


def read_planes(data: memoryview, at: int, count: int, width: int) -> tuple[Bytes, int]:
    """The elements, and where the next thing starts."""
    flat = np.empty((count, width), np.uint8)
    for place in range(width):
        flat[:, place], at = _read_plane(data, at, count)
    return flat, at


def _by_kind(slots: Slots) -> Iterator[tuple[Kind, Slots]]:
    """Slots of one kind together, kinds in the order of `Kind`, slots in the order of the schema."""
    for kind in DTYPES:
        group = tuple(slot for slot in slots if slot.kind is kind)
        if group:
            yield kind, group


def _tensor(rows: Bytes, slot: Slot) -> Tensor:
    if not slot.size:  # torch cannot view no bytes as another dtype
        return torch.empty(slot.shape, dtype=DTYPES[slot.kind])
    return torch.from_numpy(rows.reshape(-1)).view(DTYPES[slot.kind]).reshape(slot.shape)


def _read_plane(data: memoryview, at: int, count: int) -> tuple[Bytes, int]:
    length, at = varint.read(data, at)
    stop = at + (length or count)
    if stop > len(data):
        raise Truncated(f"a plane of {stop - at} bytes, {len(data) - at} are left")
    return np.frombuffer(unframe(data[at:stop], count) if length else data[at:stop], np.uint8), stop

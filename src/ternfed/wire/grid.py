"""The form `grid`: whole numbers times powers of two, all slots as one stream, given what the receiver holds of them.

A held tensor says which codes to expect on any grid: the nearest ones. What is coded is the difference, so the message
is lossless whatever is held and small where that is near.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import constriction
import numpy as np
import torch
from torch import Tensor

from ternfed.quantize.grid import HIGHEST, LARGEST, LOWEST, Grid, nearest_codes
from ternfed.wire import varint
from ternfed.wire.ans import coder_from_bytes, coder_to_bytes, entropy_bits
from ternfed.wire.errors import ImpossibleCount, MessageError, TrailingBytes, Truncated, WrongValue
from ternfed.wire.form import Coded, Form, Options, Slots, check_tensor
from ternfed.wire.groups import FINE, groups_of
from ternfed.wire.numbers import Histogram, Model, Numbers, histogram, pop, push, read_model
from ternfed.wire.planes import read_planes, write_planes
from ternfed.wire.schema import Kind, Slot

PLANES, ANS = 1, 2


@dataclass(frozen=True, eq=False)
class HeldGrids:
    """What a reference has for each grid slot: float32 numbers, all finite; None where it has nothing."""

    tensors: tuple[Tensor | None, ...]

    @cached_property
    def digest(self) -> bytes:
        """8 bytes of BLAKE2b over a byte per slot and the numbers of those that are held."""
        state = blake2b(digest_size=8)
        for tensor in self.tensors:
            state.update(b"\0" if tensor is None else b"\1")
            if tensor is not None:
                state.update(np.ascontiguousarray(tensor.numpy(), "<f4").data)
        return state.digest()

    def nearest(self, place: int, exponents: Tensor) -> Tensor | int:
        """The codes to expect of one slot."""
        tensor = self.tensors[place]
        return 0 if tensor is None else nearest_codes(tensor, exponents)


def _slot(name: str, value: Grid) -> Slot:
    return Slot(name, tuple(value.codes.shape), Kind.GRID_ROWS if value.exponents.dim() else Kind.GRID)


def _check(slot: Slot, value: Grid) -> None:
    check_tensor(slot, value.codes)
    if value.codes.dtype is not torch.int32:
        raise MessageError(f"{slot.name}: codes are int32, not {value.codes.dtype}")
    shape = _steps(slot)
    if value.exponents.dtype is not torch.int16 or tuple(value.exponents.shape) != shape:
        raise MessageError(
            f"{slot.name}: exponents are int16 of shape {shape}, not {tuple(value.exponents.shape)} of "
            f"{value.exponents.dtype}"
        )
    for what, tensor, low, high in (
        ("codes", value.codes, -LARGEST, LARGEST),
        ("exponents", value.exponents, LOWEST, HIGHEST),
    ):
        if tensor.numel():
            least, most = (int(end) for end in torch.aminmax(tensor))
            if least < low or most > high:
                raise MessageError(f"{slot.name}: {what} must be {low} to {high}, found {least} to {most}")


def _steps(slot: Slot) -> tuple[int, ...]:
    """The shape of a slot's exponents."""
    return slot.shape[:1] if slot.kind is Kind.GRID_ROWS else ()


def _hold(slots: Slots, tensors: Mapping[str, Tensor], keep: bool) -> HeldGrids | None:
    """The floats that the reference has for grid slots; a copy, so that they stay when a model trains on."""
    held: list[Tensor | None] = []
    for slot in slots:
        tensor = tensors.get(slot.name)
        if tensor is None or not tensor.is_floating_point():
            held.append(None)
            continue
        if tuple(tensor.shape) != slot.shape:
            raise MessageError(f"reference of {slot.name}: {tuple(tensor.shape)}, the schema says {slot.shape}")
        plain = tensor.detach().cpu().float()
        # Adding 0 makes -0 a 0.
        held.append(torch.where(plain.isfinite(), plain, 0.0).add(0.0).contiguous())
    return HeldGrids(tuple(held)) if any(tensor is not None for tensor in held) else None


def _encode(slots: Slots, values: Sequence[Grid], held: HeldGrids | None, options: Options) -> Coded:
    codes = [_flat(value.codes) for value in values]
    steps = [_flat(value.exponents) for value in values]
    exponents = np.concatenate(steps) if steps else np.empty(0, np.int32)
    planes = _write_planes(codes, exponents, options.compress)
    if not options.compress:
        return Coded(planes, codec=PLANES)
    if held is not None:
        differences = [
            _flat(value.codes.cpu() - held.nearest(place, value.exponents.cpu())) for place, value in enumerate(values)
        ]
        # What a reference saves has to pay for the eight bytes of its digest.
        if _roughly(differences) + 64 < _roughly(codes):
            codes = differences
        else:
            held = None
    stream = _write(codes, exponents, _plan(codes))
    if len(planes) < len(stream) + (0 if held is None else 8):
        return Coded(planes, codec=PLANES)
    return Coded(stream, codec=ANS, given=None if held is None else held.digest)


@dataclass(frozen=True, eq=False)
class _Plan:
    """The groups of some slots and their models."""

    groups: list[int]
    models: list[Model]


def _roughly(numbers: Sequence[Numbers]) -> float:
    """Bits of some slots with one model for all of them: enough to tell which of two lists is the smaller one."""
    return histogram(numbers).model(FINE).bits


def _plan(numbers: Sequence[Numbers]) -> _Plan:
    groups = groups_of([histogram([each]) for each in numbers])
    lists = _lists(numbers, groups, max(groups, default=0) + 1)
    return _Plan(groups, [histogram(each).best() for each in lists])


def _lists(numbers: Sequence[Numbers], groups: Sequence[int], count: int) -> list[list[Numbers]]:
    """The numbers of each group, slot by slot."""
    out: list[list[Numbers]] = [[] for _ in range(count)]
    for group, each in zip(groups, numbers, strict=True):
        out[group].append(each)
    return [each or [np.empty(0, np.int32)] for each in out]


def _write(numbers: Sequence[Numbers], exponents: Numbers, plan: _Plan) -> bytes:
    """Base of the exponents, groups, models, then the words of one stream for all lists."""
    lists = [np.concatenate(each) for each in _lists(numbers, plan.groups, len(plan.models))]
    models, base = plan.models, b""
    if len(exponents):
        found = histogram([exponents])
        middle = int(found.values[found.counts.argmax()])
        around = exponents - np.int32(middle)
        lists, models, base = [around, *lists], [histogram([around]).best(), *models], bytes([middle - LOWEST])
    coder = constriction.stream.stack.AnsCoder()
    # The coder is a stack: what is to come out first goes in last.
    for each, model in zip(reversed(lists), reversed(models), strict=True):
        push(coder, each, model)
    head = base + _write_groups(plan.groups, len(plan.models)) + b"".join(model.write() for model in models)
    return head + coder_to_bytes(coder)


def _write_groups(groups: Sequence[int], count: int) -> bytes:
    """How many there are; with more than one also that of each slot, in as few bits as the last needs."""
    if count == 1:
        return varint.write(1)
    places = np.arange((count - 1).bit_length())
    bits = (np.array(groups)[:, None] >> places & 1).astype(np.uint8)
    return varint.write(count) + np.packbits(bits, bitorder="little").tobytes()


def _read_groups(data: memoryview, at: int, slots: int) -> tuple[list[int], int, int]:
    """The group of each slot, how many groups there are, and where the next thing starts."""
    count, at = varint.read(data, at)
    if not 1 <= count <= max(slots, 1):
        raise ImpossibleCount(f"{count} groups of {slots} tensors")
    if count == 1:
        return [0] * slots, 1, at
    width = (count - 1).bit_length()
    stop = at + -(-width * slots // 8)
    if stop > len(data):
        raise Truncated("the bytes end within the groups")
    bits = np.unpackbits(np.frombuffer(data[at:stop], np.uint8), bitorder="little")
    groups = bits[: width * slots].reshape(slots, width) @ (1 << np.arange(width))
    if groups.max() >= count or bits[width * slots :].any():
        raise WrongValue(f"a group that is not one of {count}")
    return groups.tolist(), count, stop


def _decode(slots: Slots, coded: Coded, held: HeldGrids | None) -> list[Grid]:
    read = _read_planes if coded.codec == PLANES else _read
    exponents, numbers = read(memoryview(coded.stream), slots)
    if exponents.size and (exponents.min() < LOWEST or exponents.max() > HIGHEST):
        raise WrongValue(f"exponents are {LOWEST} to {HIGHEST}, found {exponents.min()} to {exponents.max()}")
    out, stop = [], 0
    for place, slot in enumerate(slots):
        shape = _steps(slot)
        start, stop = stop, stop + (shape[0] if shape else 1)
        steps = torch.from_numpy(exponents[start:stop].astype(np.int16)).reshape(shape)
        codes = torch.from_numpy(numbers[place]).reshape(slot.shape)
        if held is not None:
            codes += held.nearest(place, steps)
        if codes.numel() and max(-int(codes.min()), int(codes.max())) > LARGEST:
            raise WrongValue(
                f"{slot.name}: codes are within ±{LARGEST}, found {int(codes.min())} to {int(codes.max())}"
            )
        out.append(Grid(codes, steps))
    return out


def _read(data: memoryview, slots: Slots) -> tuple[Numbers, list[Numbers]]:
    """Exponents, and the numbers of each slot in memory of their own."""
    total, at, base = _exponents(slots), 0, 0
    if total:
        if not len(data):
            raise Truncated("no base of the exponents")
        base, at = data[0] + LOWEST, 1
    groups, count, at = _read_groups(data, at, len(slots))
    members: list[list[int]] = [[] for _ in range(count)]
    for place, group in enumerate(groups):
        members[group].append(place)
    sizes = [sum(slots[place].size for place in places) for places in members]
    lengths = [total, *sizes] if total else sizes
    models = []
    for length in lengths:
        model, at = read_model(data, at, length)
        models.append(model)
    coder = coder_from_bytes(data[at:])
    exponents = pop(coder, total, models.pop(0)) + np.int32(base) if total else np.empty(0, np.int32)
    numbers: list[Numbers] = [np.empty(0, np.int32)] * len(slots)
    for places, size, model in zip(members, sizes, models, strict=True):
        flat, stop = pop(coder, size, model), 0
        for place in places:
            start, stop = stop, stop + slots[place].size
            numbers[place] = flat if slots[place].size == size else flat[start:stop].copy()
    if not coder.is_empty():
        raise TrailingBytes("the stream goes on after the last number")
    return exponents, numbers


def _write_planes(codes: Sequence[Numbers], exponents: Numbers, compress: bool) -> bytes:
    """A byte per exponent, then the planes of the codes; small ones of either sign have zeros above."""
    flat = np.concatenate(codes) if codes else np.empty(0, np.int32)
    unsigned = ((flat << 1) ^ (flat >> 31)).astype("<i4")
    steps = (exponents - LOWEST).astype(np.uint8).tobytes()
    return steps + write_planes(unsigned.view(np.uint8).reshape(-1, 4), compress)


def _read_planes(data: memoryview, slots: Slots) -> tuple[Numbers, list[Numbers]]:
    at = _exponents(slots)
    if len(data) < at:
        raise Truncated("the bytes end within the exponents")
    exponents = np.frombuffer(data[:at], np.uint8).astype(np.int32) + LOWEST
    elements, at = read_planes(data, at, sum(slot.size for slot in slots), 4)
    if at != len(data):
        raise TrailingBytes(f"{len(data) - at} bytes after the last plane")
    unsigned = elements.reshape(-1).view("<u4")
    # A number that fits no code stays one that fits none: all have 32 bits.
    flat = ((unsigned >> 1) ^ -(unsigned & 1)).astype(np.uint32).view(np.int32)
    numbers, stop = [], 0
    for slot in slots:
        start, stop = stop, stop + slot.size
        numbers.append(flat[start:stop].copy())
    return exponents, numbers


def _exponents(slots: Slots) -> int:
    return sum(slot.shape[0] if slot.kind is Kind.GRID_ROWS else 1 for slot in slots)


def _flat(tensor: Tensor) -> Numbers:
    flat: Numbers = tensor.detach().cpu().reshape(-1).numpy().astype(np.int32, copy=False)
    return flat


def _found(value: Grid) -> Histogram:
    return histogram([_flat(value.codes)])


def _costs(values: Sequence[Grid], coded: Coded) -> list[float]:
    """Bits of the numbers by a model of their own, and their exponents; all alike in planes."""
    if coded.codec == PLANES:
        return [float(value.codes.numel()) for value in values]
    return [_found(value).best().bits + value.exponents.numel() for value in values]


def _largest(value: Grid) -> float:
    return float(value.dense().abs().max()) if value.codes.numel() else 0.0


GRID: Form[Grid, HeldGrids] = Form(
    name="grid",
    value_type=Grid,
    kinds=(Kind.GRID, Kind.GRID_ROWS),
    codecs={PLANES: "planes", ANS: "ans"},
    referring=frozenset({"ans"}),
    own_flags=0,
    fields=Grid._fields,
    parts=Grid._asdict,
    join=lambda parts: Grid(**parts),
    slot=_slot,
    check=_check,
    dense=Grid.dense,
    largest=_largest,
    lends=Grid.dense,
    hold=_hold,
    encode=_encode,
    front=lambda slots, flags: 0,
    decode=_decode,
    unpacked=lambda slots: 4 * sum(slot.size for slot in slots) + 2 * _exponents(slots),
    costs=_costs,
    entropy=lambda value: entropy_bits(_found(value).counts),
)

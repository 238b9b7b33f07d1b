"""The form `grid`: whole numbers times powers of two, all slots as one stream, given what the receiver holds of them.

A held tensor says which codes to expect on any grid: the nearest ones. What is coded is the difference, so the message
is lossless whatever is held and small where that is near.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ternfed.quantize.grid import HIGHEST, LARGEST, LOWEST, Grid
from ternfed.wire.ans import entropy_bits
from ternfed.wire.errors import MessageError, TrailingBytes, Truncated, WrongValue
from ternfed.wire.form import Coded, Form, Options, Slots, check_tensor
from ternfed.wire.grid_many import fit_together, read_each, streams
from ternfed.wire.grid_stream import needs_more, plan, read, roughly, write
from ternfed.wire.held_grids import HeldGrids, Layout, exponents_of, exponents_shape, layout_of
from ternfed.wire.numbers import BLOCK, Histogram, Numbers, histogram, histograms
from ternfed.wire.planes import plane_length, plane_pieces, read_planes
from ternfed.wire.schema import Kind, Slot
from ternfed.wire.trits import Bytes

PLANES, ANS = 1, 2
LARGE = 1 << 20
"""Numbers of a slot from which on its codes are single bytes where they fit: they are a quarter of a model."""
WIDTHS = (torch.int32, torch.int8)
"""That codes have."""


def _slot(name: str, value: Grid) -> Slot:
    return Slot(name, tuple(value.codes.shape), Kind.GRID_ROWS if value.exponents.dim() else Kind.GRID)


def _check(slot: Slot, value: Grid) -> None:
    """Shapes and dtypes; how large numbers may be is asked of all slots at once, when they are coded."""
    codes, exponents = value
    if type(codes) is type(exponents) is Tensor and codes.layout is torch.strided:
        is_codes = codes.dtype in WIDTHS and codes.shape == slot.shape
        if is_codes and exponents.dtype is torch.int16 and exponents.shape == exponents_shape(slot):
            return  # as thousands of small messages are; the rest finds the words
    check_tensor(slot, value.codes)
    if value.codes.dtype not in WIDTHS:
        raise MessageError(f"{slot.name}: codes are int32 or int8, not {value.codes.dtype}")
    shape = exponents_shape(slot)
    if value.exponents.dtype is not torch.int16 or tuple(value.exponents.shape) != shape:
        raise MessageError(
            f"{slot.name}: exponents are int16 of shape {shape}, not {tuple(value.exponents.shape)} of "
            f"{value.exponents.dtype}"
        )


def _check_sizes(slots: Slots, codes: Numbers, exponents: Numbers) -> None:
    """Refuse codes and exponents that no grid has, naming the first slot that has one."""
    layout = layout_of(slots)
    for what, flat, counts, low, high in (
        ("codes", codes, layout.sizes, -LARGEST, LARGEST),
        ("exponents", exponents, layout.steps, LOWEST, HIGHEST),
    ):
        if not flat.size or (flat.min() >= low and flat.max() <= high):
            continue
        stop = 0
        for slot, count in zip(slots, counts, strict=True):
            start, stop = stop, stop + count
            part = flat[start:stop]
            if part.size and (part.min() < low or part.max() > high):
                found = f"found {part.min()} to {part.max()}"
                raise MessageError(f"{slot.name}: {what} must be {low} to {high}, {found}")


def _hold(slots: Slots, tensors: Mapping[str, Tensor], keep: bool) -> HeldGrids | None:
    """The floats that the reference has for grid slots; a copy, so that they stay when a model trains on."""
    flat, has, stop = np.zeros(layout_of(slots).total, np.float32), [], 0
    for slot in slots:
        start, stop = stop, stop + slot.size
        tensor = tensors.get(slot.name)
        has.append(tensor is not None and tensor.is_floating_point())
        if tensor is None or not has[-1]:
            continue
        if tuple(tensor.shape) != slot.shape:
            raise MessageError(f"reference of {slot.name}: {tuple(tensor.shape)}, the schema says {slot.shape}")
        own = flat[start:stop]
        own[:] = tensor.detach().cpu().float().reshape(-1).numpy()
        own[~np.isfinite(own)] = 0
        own += 0.0  # which makes -0 a 0
    return HeldGrids(slots, flat, tuple(has)) if any(has) else None


def _encode(slots: Slots, values: Sequence[Grid], held: HeldGrids | None, options: Options) -> Coded:
    layout = layout_of(slots)
    codes = _flat([value.codes for value in values], narrow=True)
    exponents = _flat([value.exponents for value in values])
    _check_sizes(slots, codes, exponents)
    planes = _write_planes(codes, exponents, options.compress)
    if not options.compress:
        return Coded(planes, codec=PLANES)
    found = histograms(codes, layout.sizes)
    if held is not None:
        given = (_left_of_large if len(codes) > LARGE else _left)(codes, exponents, held, found)
        if given is None:
            held = None
        else:
            codes, found = given
        del given
    stream = write(codes, exponents, plan(found), layout)
    if len(planes) < len(stream) + (0 if held is None else 8):
        return Coded(planes, codec=PLANES)
    return Coded(stream, codec=ANS, given=None if held is None else held.digest)


Left = tuple[Numbers, list[Histogram]]
"""What a reference leaves to be said of all slots, and the histogram of each; None where it does not pay: it has to
save more than the eight bytes of its digest."""


def _left(codes: Numbers, exponents: Numbers, held: HeldGrids, found: list[Histogram]) -> Left | None:
    differences, alone = held.nearest(exponents), roughly(found)
    np.subtract(codes, differences, out=differences)
    if needs_more((differences,), alone - 64):
        return None
    changed = histograms(differences, layout_of(held.slots).sizes)
    return (differences, changed) if roughly(changed) + 64 < alone else None


def _left_of_large(codes: Numbers, exponents: Numbers, held: HeldGrids, found: list[Histogram]) -> Left | None:
    """`_left`, which makes the differences of all slots, a whole model, only where they are of use."""
    alone, changed, stop = roughly(found), list(found), 0
    if needs_more((codes[own] - expected for own, expected in held.blocks(exponents)), alone - 64):
        return None
    for place, (size, has) in enumerate(zip(layout_of(held.slots).sizes, held.has, strict=True)):
        start, stop = stop, stop + size
        if has and size:  # of the others nothing is expected
            blocks = held.blocks(exponents, start, stop)
            changed[place] = histogram([codes[own] - expected for own, expected in blocks])
    if roughly(changed) + 64 >= alone:
        return None
    differences = held.nearest(exponents)
    np.subtract(codes, differences, out=differences)
    return differences, changed


def _decode(slots: Slots, coded: Coded, held: HeldGrids | None) -> list[Grid]:
    layout = layout_of(slots)
    exponents, codes = (_read_planes if coded.codec == PLANES else read)(memoryview(coded.stream), layout)
    _check_read(exponents, codes[:0])
    if held is not None:
        expected = held.nearest(exponents)
        codes = np.add(codes, expected, out=expected)
    _check_read(exponents, codes)
    steps, out = exponents.astype(np.int16), []
    at = step = 0
    for slot, size, count in zip(slots, layout.sizes, layout.steps, strict=True):
        # Every tensor in memory of its own.
        own = codes if size == len(codes) else codes[at : at + size].copy()
        own = own.astype(np.int8 if size > LARGE and _fits(own) else np.int32, copy=False)
        powers = torch.from_numpy(steps[step : step + count].copy()).reshape(exponents_shape(slot))
        out.append(Grid(torch.from_numpy(own).reshape(slot.shape), powers))
        at, step = at + size, step + count
    return out


def _encode_each(slots: Slots, many: Sequence[Sequence[Grid]], held: HeldGrids | None, options: Options) -> list[Coded]:
    if layout_of(slots).total > BLOCK:  # these do not fit together, and a copy of all would be some more models
        return [_encode(slots, values, held, options) for values in many]
    codes = _flat([value.codes for values in many for value in values]).reshape(len(many), -1)
    exponents = _flat([value.exponents for values in many for value in values]).reshape(len(many), -1)
    if not options.compress or not fit_together(slots, codes, exponents):
        return [_encode(slots, values, held, options) for values in many]
    low = ((codes << 1) ^ (codes >> 31)).astype(np.uint8)  # the other planes of such small codes are zeros
    other = exponents.shape[1] + 3 * plane_length(np.zeros(codes.shape[1], np.uint8))
    out = []
    for row, stream in enumerate(streams(slots, codes, exponents, held)):
        if stream is None or other + plane_length(low[row]) < len(stream):
            out.append(_encode(slots, many[row], held, options))
        else:
            out.append(Coded(stream, codec=ANS))
    return out


def _decode_each(slots: Slots, many: Sequence[Coded], held: HeldGrids | None) -> list[list[Grid]]:
    """A slot of all messages shares its memory: what was sent together is used together."""
    layout = layout_of(slots)
    if layout.total > BLOCK or any(coded.codec != ANS or coded.given is not None for coded in many):
        return [_decode(slots, coded, held if coded.given is not None else None) for coded in many]
    exponents, codes = read_each([coded.stream for coded in many], layout)
    _check_read(exponents, codes)
    steps, columns = torch.from_numpy(exponents.astype(np.int16)), []
    at = step = 0
    for slot, size, count in zip(slots, layout.sizes, layout.steps, strict=True):
        own = torch.from_numpy(codes[:, at : at + size].copy()).view(len(many), *slot.shape)
        powers = steps[:, step : step + count].reshape(len(many), *exponents_shape(slot))
        columns.append(_Column(own, powers).grids())
        at, step = at + size, step + count
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in many]


class _Column:
    """One slot of many messages: what is asked of one of its grids is computed for all of them at once."""

    def __init__(self, codes: Tensor, exponents: Tensor) -> None:
        self._codes, self._exponents = codes, exponents

    def grids(self) -> list[Grid]:
        pairs = zip(self._codes.unbind(), self._exponents.unbind(), strict=True)
        return [_OfMany.at(self, row, *pair) for row, pair in enumerate(pairs)]

    @cached_property
    def dense(self) -> tuple[Tensor, ...]:
        codes = self._codes.flatten(0, 1) if self._exponents.dim() > 1 else self._codes
        return Grid(codes, self._exponents.reshape(-1)).dense().view(self._codes.shape).unbind()

    @cached_property
    def largest(self) -> list[float]:
        if not self._codes.numel():
            return [0.0] * len(self._codes)
        rows = torch.aminmax(self._codes.reshape(self._exponents.numel(), -1), dim=1)
        sizes = torch.ldexp(torch.maximum(-rows.min, rows.max).double(), self._exponents.reshape(-1).int())
        largest: list[float] = sizes.view(len(self._codes), -1).amax(1).tolist()
        return largest


class _OfMany(Grid):
    """A grid that arrived with others; nobody may change what it is made dense to."""

    column: _Column | None = None
    row = 0

    @staticmethod
    def at(column: _Column, row: int, codes: Tensor, exponents: Tensor) -> _OfMany:
        own = _OfMany(codes, exponents)
        own.column, own.row = column, row
        return own

    def dense(self) -> Tensor:
        return super().dense() if self.column is None else self.column.dense[self.row]


def _check_read(exponents: Numbers, codes: Numbers) -> None:
    if exponents.size and (exponents.min() < LOWEST or exponents.max() > HIGHEST):
        raise WrongValue(f"exponents are {LOWEST} to {HIGHEST}, found {exponents.min()} to {exponents.max()}")
    if codes.size and max(-int(codes.min()), int(codes.max())) > LARGEST:
        raise WrongValue(f"codes are within ±{LARGEST}, found {int(codes.min())} to {int(codes.max())}")


def _write_planes(codes: Numbers, exponents: Numbers, compress: bool) -> bytes:
    """A byte per exponent, then the planes of the codes; small ones of either sign have zeros above."""
    steps = (exponents - LOWEST).astype(np.uint8).tobytes()
    planes = (_plane(codes, place) for place in range(4))
    return b"".join([steps, *(piece for plane in planes for piece in plane_pieces(plane, compress))])


def _plane(codes: Numbers, place: int) -> Bytes:
    """One byte of each code, the signs in the lowest bits; made in pieces, since all four are a whole model."""
    plane = np.empty(len(codes), np.uint8)
    for at in range(0, len(codes), BLOCK):
        part = codes[at : at + BLOCK].astype(np.int32, copy=False)
        plane[at : at + BLOCK] = (((part << 1) ^ (part >> 31)) >> (8 * place)) & 0xFF
    return plane


def _read_planes(data: memoryview, layout: Layout) -> tuple[Numbers, Numbers]:
    at = sum(layout.steps)
    if len(data) < at:
        raise Truncated("the bytes end within the exponents")
    exponents = np.frombuffer(data[:at], np.uint8).astype(np.int32) + LOWEST
    elements, at = read_planes(data, at, layout.total, 4)
    if at != len(data):
        raise TrailingBytes(f"{len(data) - at} bytes after the last plane")
    unsigned = elements.reshape(-1).view("<u4")
    # A number that fits no code stays one that fits none: all have 32 bits.
    return exponents, ((unsigned >> 1) ^ -(unsigned & 1)).astype(np.uint32).view(np.int32)


def _flat(tensors: Sequence[Tensor], narrow: bool = False) -> Numbers:
    """All elements end to end, row by row; of a large message as single bytes if told and if they fit."""
    if not tensors:
        return np.empty(0, np.int32)
    parts = [tensor.cpu().numpy().reshape(-1) for tensor in tensors]
    is_small = narrow and sum(map(len, parts)) > BLOCK and all(not len(part) or _fits(part) for part in parts)
    dtype = np.int8 if is_small else np.int32
    if len(parts) == 1:
        return parts[0].astype(dtype, copy=False)
    return np.concatenate(parts, dtype=dtype, casting="unsafe")


def _fits(part: Numbers) -> bool:
    """Whether all are within ±127, so that their sizes fit a signed byte too."""
    return bool(part.min() >= -127 and part.max() <= 127)


def _found(value: Grid) -> Histogram:
    return histogram([_flat([value.codes])])


def _costs(values: Sequence[Grid], coded: Coded) -> list[float]:
    """Bits of the numbers by a model of their own, and their exponents; all alike in planes."""
    if coded.codec == PLANES:
        return [float(value.codes.numel()) for value in values]
    return [_found(value).best().bits + value.exponents.numel() for value in values]


def _largest(value: Grid) -> float:
    if isinstance(value, _OfMany) and value.column is not None:
        return value.column.largest[value.row]
    if not value.codes.numel():
        return 0.0
    codes, exponents = value.codes, value.exponents
    if not exponents.dim():
        least, most = (int(end) for end in torch.aminmax(codes))
        return float(max(-least, most)) * 2.0 ** int(exponents)
    rows = torch.aminmax(codes.flatten(1) if codes.dim() > 1 else codes[:, None], dim=1)
    sizes = torch.maximum(-rows.min.int(), rows.max.int())  # of bytes, -(-128) is none
    return float(torch.ldexp(sizes.double(), exponents.int()).max())


GRID: Form[Grid, HeldGrids] = Form(
    name="grid",
    value_type=Grid,
    kinds=(Kind.GRID, Kind.GRID_ROWS),
    codecs={PLANES: "planes", ANS: "ans"},
    referring=frozenset({"ans"}),
    own_flags=0,
    fields=Grid._fields,
    parts=lambda grid: {"codes": grid.codes.int(), "exponents": grid.exponents},
    join=lambda parts: Grid(**parts),
    slot=_slot,
    check=_check,
    dense=lambda grid: grid.dense(),
    rows=lambda grid, own: Grid(grid.codes[own], grid.exponents[own] if grid.exponents.dim() else grid.exponents),
    largest=_largest,
    lends=lambda grid: grid.dense(),
    hold=_hold,
    encode=_encode,
    front=lambda slots, flags: 0,
    decode=_decode,
    unpacked=lambda slots: sum(4 * slot.size + 2 * exponents_of(slot) for slot in slots),
    costs=_costs,
    entropy=lambda value: entropy_bits(_found(value).counts),
    encode_each=_encode_each,
    decode_each=_decode_each,
)

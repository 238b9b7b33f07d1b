"""The form `ternary`: two scales a tensor, and the trits of all tensors as one stream by one of the codecs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ternfed.quantize.ternary import Ternary
from ternfed.wire import ans, base3, zstd
from ternfed.wire.choose import choose
from ternfed.wire.errors import MessageError, WrongScale
from ternfed.wire.form import Buffer, Coded, Form, Options, Slots, check_tensor
from ternfed.wire.held import HeldTrits, Trits
from ternfed.wire.schema import Kind, Slot
from ternfed.wire.trits import Codes, flat_codes, spread_of, symbols

ONE_FACTOR = 0x20
"""The flag that says that the negative scales are the positive ones."""


class Codec(NamedTuple):
    """A codec: its tag on the wire and its two functions."""

    tag: int
    encode: Callable[[Trits], bytes]
    decode: Callable[[memoryview, tuple[int, ...], HeldTrits | None], Codes]


CODECS: Mapping[str, Codec] = {
    "base3": Codec(base3.TAG, base3.encode, base3.decode),
    "zstd": Codec(zstd.TAG, zstd.encode, zstd.decode),
    "ans": Codec(ans.TAG, ans.encode, ans.decode),
}
CODEC_NAMES: Mapping[int, str] = {codec.tag: name for name, codec in CODECS.items()}


def trits_of(value: object) -> Tensor | None:
    """The trits of a slot, int8 in its shape; None where it holds a value of another form."""
    return value.codes if isinstance(value, Ternary) else None


def _parts(value: Ternary) -> dict[str, Tensor]:
    return value._asdict()


def _join(parts: Mapping[str, Tensor]) -> Ternary:
    return Ternary(**parts)


def _slot(name: str, value: Ternary) -> Slot:
    return Slot(name, tuple(value.codes.shape), Kind.TERNARY)


def _check(slot: Slot, value: Ternary) -> None:
    check_tensor(slot, value.codes)
    for side, scale in (("positive", value.positive), ("negative", value.negative)):
        if scale.dtype is not torch.float32 or scale.ndim:
            raise MessageError(
                f"{slot.name}: the {side} scale is one float32, not {tuple(scale.shape)} of {scale.dtype}"
            )
        if not 0 <= float(scale) < float("inf"):
            raise MessageError(f"{slot.name}: the {side} scale is {float(scale)}; it must be finite and not negative")


def _hold(slots: Slots, tensors: Mapping[str, Tensor], keep: bool) -> HeldTrits | None:
    """The int8 codes that the reference has for every ternary slot; one that has none of them is no reference here."""
    if not any(slot.name in tensors and not tensors[slot.name].is_floating_point() for slot in slots):
        return None
    parts = []
    for slot in slots:
        if slot.name not in tensors:
            raise MessageError(f"{slot.name}: the reference has no such tensor")
        parts.append(flat_codes(f"reference of {slot.name}", tensors[slot.name]))
        if len(parts[-1]) != slot.size:
            raise MessageError(f"reference of {slot.name}: {len(parts[-1])} codes, the schema says {slot.size}")
    # A copy in every case: the reference must not change when the model it was taken from trains on.
    codes = np.concatenate(parts) if parts else np.empty(0, np.int8)
    codes.flags.writeable = False
    return HeldTrits(codes, _sizes(slots), keep)


def _encode(slots: Slots, values: Sequence[Ternary], held: HeldTrits | None, options: Options) -> Coded:
    trits = Trits(_flatten(slots, values), _sizes(slots), held)
    name, trits = choose(trits) if options.codec == "auto" else (options.codec, trits)
    stream = CODECS[name].encode(trits)
    if options.codec == "auto" and len(stream) > symbols(len(trits.codes)):
        name, stream = "base3", base3.encode(trits)
    used = trits.reference if name != "base3" else None
    one_factor, scales = _scales_to_bytes(values)
    flags = ONE_FACTOR if one_factor else 0
    return Coded(stream, scales, CODECS[name].tag, flags, None if used is None else used.digest)


def _front(slots: Slots, flags: int) -> int:
    """Four bytes per scale."""
    return 4 * len(slots) * (1 if flags & ONE_FACTOR else 2)


def _decode(slots: Slots, coded: Coded, held: HeldTrits | None) -> list[Ternary]:
    scales = _scales_from_bytes(coded.front, slots, bool(coded.flags & ONE_FACTOR))
    codes = CODECS[CODEC_NAMES[coded.codec]].decode(memoryview(coded.stream), _sizes(slots), held)
    flat, stop = torch.from_numpy(codes), 0
    out = []
    for slot, (positive, negative) in zip(slots, scales, strict=True):
        start, stop = stop, stop + slot.size
        part = flat[start:stop]
        out.append(Ternary((part if slot.size == len(flat) else part.clone()).reshape(slot.shape), positive, negative))
    return out


def _costs(values: Sequence[Ternary], coded: Coded) -> list[float]:
    """All trits cost alike in base-3, else what the model says they were coded with."""
    spreads = np.array([_spread(value) for value in values], np.int64).reshape(-1, 3)
    if coded.codec == base3.TAG:
        return [float(size) for size in spreads.sum(axis=1)]
    each = coded.codec == ans.TAG and coded.stream[0] == ans.MODEL_A_TENSOR
    models = spreads if each else np.broadcast_to(spreads.sum(axis=0), spreads.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.where(spreads > 0, spreads * np.log2(models.sum(axis=1, keepdims=True) / models), 0.0)
    return [float(total) for total in bits.sum(axis=1)]


def _spread(value: Ternary) -> ans.Spread:
    return spread_of(flat_codes("", value.codes))


TERNARY: Form[Ternary, HeldTrits] = Form(
    name="ternary",
    value_type=Ternary,
    kinds=(Kind.TERNARY,),
    codecs=CODEC_NAMES,
    referring=frozenset(CODECS) - {"base3"},
    own_flags=ONE_FACTOR,
    fields=Ternary._fields,
    parts=_parts,
    join=_join,
    slot=_slot,
    check=_check,
    dense=Ternary.dense,
    rows=lambda value, own: value._replace(codes=value.codes[own]),
    largest=lambda value: max(float(value.positive), float(value.negative)),
    lends=lambda value: value.codes,
    hold=_hold,
    encode=_encode,
    front=_front,
    decode=_decode,
    unpacked=lambda slots: sum(_sizes(slots)),
    costs=_costs,
    entropy=lambda value: ans.entropy_bits(np.array(_spread(value))),
)


def _sizes(slots: Slots) -> tuple[int, ...]:
    return tuple(slot.size for slot in slots)


def _flatten(slots: Slots, values: Sequence[Ternary]) -> Codes:
    parts = [flat_codes(slot.name, value.codes) for slot, value in zip(slots, values, strict=True)]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int8)


def _scales_to_bytes(values: Sequence[Ternary]) -> tuple[bool, bytes]:
    """All positive scales, then all negative ones unless they are the same bits."""
    positive = np.array([float(value.positive) for value in values], "<f4").tobytes()
    negative = np.array([float(value.negative) for value in values], "<f4").tobytes()
    return (True, positive) if positive == negative else (False, positive + negative)


def _scales_from_bytes(data: Buffer, slots: Slots, one_factor: bool) -> list[tuple[Tensor, Tensor]]:
    values = np.frombuffer(data, "<f4").astype(np.float32).reshape(1 if one_factor else 2, -1)
    good = np.isfinite(values) & (values >= 0)
    if not good.all():
        name = slots[int(np.argmin(good.all(axis=0)))].name
        raise WrongScale(f"{name}: a scale is negative, infinite or not a number")
    if not one_factor and values[0].tobytes() == values[1].tobytes():
        raise WrongScale("equal scales are sent once")
    return [(torch.tensor(a), torch.tensor(b)) for a, b in zip(values[0].tolist(), values[-1].tolist(), strict=True)]

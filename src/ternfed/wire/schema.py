"""What both sides know beforehand (`Schema`) and what travels (`Message`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b
from math import prod

import torch
from torch import Tensor

from ternfed.quantize.ternary import Ternary
from ternfed.wire.errors import MessageError


class Kind(StrEnum):
    """How a tensor travels. The order is the order of the dense section."""

    TERNARY = "ternary"
    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT64 = "int64"
    INT32 = "int32"
    INT16 = "int16"
    INT8 = "int8"
    UINT8 = "uint8"
    BOOL = "bool"


DTYPES: Mapping[Kind, torch.dtype] = {kind: getattr(torch, kind) for kind in Kind if kind is not Kind.TERNARY}
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Slot:
    """One tensor of a message: its name, shape and kind. None of the three is ever sent."""

    name: str
    shape: tuple[int, ...]
    kind: Kind

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Schema:
    """The tensors of a message in order, and the names of the float64 numbers that travel with them."""

    slots: tuple[Slot, ...]
    numbers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [slot.name for slot in self.slots]
        for group in (names, self.numbers):
            if len(set(group)) != len(group):
                raise MessageError(f"a schema names something twice: {sorted(n for n in group if group.count(n) > 1)}")
        for slot in self.slots:
            if any(length < 0 for length in slot.shape):
                raise MessageError(f"{slot.name}: a shape cannot be {slot.shape}")

    @cached_property
    def digest(self) -> bytes:
        """8 bytes of BLAKE2b over the canonical JSON of names, kinds, shapes and numbers."""
        slots = [[slot.name, slot.kind.value, list(slot.shape)] for slot in self.slots]
        text = json.dumps([slots, list(self.numbers)], separators=(",", ":"), ensure_ascii=True)
        return blake2b(text.encode("ascii"), digest_size=8).digest()

    @cached_property
    def ternary(self) -> tuple[Slot, ...]:
        """The slots that are sent as trits, in order."""
        return tuple(slot for slot in self.slots if slot.kind is Kind.TERNARY)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of trits of each ternary slot."""
        return tuple(slot.size for slot in self.ternary)

    @cached_property
    def trits(self) -> int:
        """Number of trits of a message."""
        return sum(self.sizes)

    @cached_property
    def dense(self) -> tuple[tuple[Kind, tuple[Slot, ...]], ...]:
        """The other slots by kind, kinds in the order of `Kind`, slots in the order of the schema."""
        groups = ((kind, tuple(slot for slot in self.slots if slot.kind is kind)) for kind in DTYPES)
        return tuple((kind, slots) for kind, slots in groups if slots)

    @property
    def size(self) -> int:
        """Bytes of the same tensors unpacked: every trit as a float32, everything else as it is."""
        other = sum(DTYPES[kind].itemsize * slot.size for kind, slots in self.dense for slot in slots)
        return 4 * self.trits + other


@dataclass(frozen=True, eq=False)
class Message:
    """What travels: the tensors of one model and a few numbers. Compare two with `same`."""

    tensors: dict[str, Tensor | Ternary]
    numbers: dict[str, float] = field(default_factory=dict)


def schema_of(message: Message) -> Schema:
    """The schema that a message fits, in the order of its dictionaries."""
    return Schema(tuple(_slot(*item) for item in message.tensors.items()), tuple(message.numbers))


def _slot(name: str, value: Tensor | Ternary) -> Slot:
    if isinstance(value, Ternary):
        return Slot(name, tuple(value.codes.shape), Kind.TERNARY)
    if value.dtype not in _KINDS:
        raise MessageError(f"{name}: the wire has no kind for {value.dtype}; it has {', '.join(DTYPES)}")
    return Slot(name, tuple(value.shape), _KINDS[value.dtype])


def same(first: Message, second: Message) -> bool:
    """Whether two messages agree bit for bit: names, shapes, dtypes, every NaN's payload and every zero's sign."""
    if first.tensors.keys() != second.tensors.keys() or first.numbers.keys() != second.numbers.keys():
        return False
    if any(_bits(float(value)) != _bits(float(second.numbers[name])) for name, value in first.numbers.items()):
        return False
    return all(_same_tensor(value, second.tensors[name]) for name, value in first.tensors.items())


def _bits(number: float) -> int:
    return int(torch.tensor(number, dtype=torch.float64).view(torch.int64))


def _same_tensor(first: Tensor | Ternary, second: Tensor | Ternary) -> bool:
    if isinstance(first, Ternary) or isinstance(second, Ternary):
        if not (isinstance(first, Ternary) and isinstance(second, Ternary)):
            return False
        return all(_same_tensor(a, b) for a, b in zip(first, second, strict=True))
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(flat_bytes(first), flat_bytes(second))


def flat_bytes(tensor: Tensor) -> Tensor:
    """The elements of any tensor, row by row, as uint8 on the CPU; shares memory where it can."""
    return tensor.detach().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)

"""What both sides know beforehand: the tensors of a message in order, and how each of them travels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b
from math import prod

import torch
from torch import Tensor

from ternfed.wire.errors import MessageError


class Kind(StrEnum):
    """How a tensor travels. The order is the order of the dense section."""

    TERNARY = "ternary"
    GRID = "grid"
    """One step for the tensor."""
    GRID_ROWS = "grid_rows"
    """One step for each row of the first dimension."""
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


DTYPES: Mapping[Kind, torch.dtype] = {
    kind: dtype for kind in Kind if isinstance(dtype := getattr(torch, kind, None), torch.dtype)
}
"""Kinds that are plain tensors of a torch dtype, in the order of the dense section."""


@dataclass(frozen=True)
class Slot:
    """One tensor of a message: its name, shape and kind. None of the three is ever sent."""

    name: str
    shape: tuple[int, ...]
    kind: Kind

    @cached_property
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
                twice = [name for name, times in Counter(group).items() if times > 1]
                raise MessageError(f"a schema names something twice: {sorted(twice)[:3]}")
        for slot in self.slots:
            if any(length < 0 for length in slot.shape):
                raise MessageError(f"{slot.name}: a shape cannot be {slot.shape}")
            if slot.kind is Kind.GRID_ROWS and not slot.shape:
                raise MessageError(f"{slot.name}: a single number has no rows")

    @cached_property
    def digest(self) -> bytes:
        """8 bytes of BLAKE2b over the canonical JSON of names, kinds, shapes and numbers."""
        slots = [[slot.name, slot.kind.value, list(slot.shape)] for slot in self.slots]
        text = json.dumps([slots, list(self.numbers)], separators=(",", ":"), ensure_ascii=True)
        return blake2b(text.encode("ascii"), digest_size=8).digest()

    def of(self, kinds: tuple[Kind, ...]) -> tuple[Slot, ...]:
        """The slots of some kinds, in order."""
        if kinds not in self._found:  # thousands of messages ask the same
            self._found[kinds] = tuple(slot for slot in self.slots if slot.kind in kinds)
        return self._found[kinds]

    @cached_property
    def _found(self) -> dict[tuple[Kind, ...], tuple[Slot, ...]]:
        return {}

    @cached_property
    def names(self) -> set[str]:
        """Of all slots."""
        return {slot.name for slot in self.slots}

    @cached_property
    def ternary(self) -> tuple[Slot, ...]:
        """The slots that are sent as trits, in order."""
        return self.of((Kind.TERNARY,))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of trits of each ternary slot."""
        return tuple(slot.size for slot in self.ternary)

    @cached_property
    def trits(self) -> int:
        """Number of trits of a message."""
        return sum(self.sizes)

    @property
    def size(self) -> int:
        """Bytes of the same tensors unpacked: every trit and every code as a float32, everything else as it is."""
        return sum(DTYPES.get(slot.kind, torch.float32).itemsize * slot.size for slot in self.slots)


def flat_bytes(tensor: Tensor) -> Tensor:
    """The elements of any tensor, row by row, as uint8 on the CPU; shares memory where it can."""
    if not tensor.numel():  # torch cannot view every tensor of no elements as bytes
        return torch.empty(0, dtype=torch.uint8)
    return tensor.detach().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)

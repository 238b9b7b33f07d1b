"""What a form is: everything that is known about one kind of value that a slot of a message can hold.

A form is one file here that makes one such value, and one entry in `forms.FORMS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from ternfed.wire.errors import MessageError
from ternfed.wire.schema import Kind, Slot

Buffer = bytes | bytearray | memoryview
Slots = tuple[Slot, ...]


class Held(Protocol):
    """What a receiver holds, as a form codes with it."""

    @property
    def digest(self) -> bytes:
        """8 bytes, by which both sides know that they hold the same."""


class Options(NamedTuple):
    """What a sender may ask of the codecs; no value depends on it, only the number of bytes."""

    codec: str = "auto"
    """Of the trits."""
    compress: bool = True
    """False leaves everything but trits in raw planes, for files whose content must account for their size."""


class Coded(NamedTuple):
    """All slots of one form as bytes."""

    parts: Buffer | list[Buffer]
    """The section, whole or in pieces: its length is written before it."""
    front: Buffer = b""
    """What stands before it, in as many bytes as the receiver expects."""
    codec: int = 0
    flags: int = 0
    given: bytes | None = None
    """The digest of what the receiver must hold; None: nothing."""

    @property
    def stream(self) -> Buffer:
        """The section, joined."""
        return b"".join(self.parts) if isinstance(self.parts, list) else self.parts

    @property
    def pieces(self) -> list[Buffer]:
        """The section in pieces. Who joins them may take them out of the list: a large one is not there twice then."""
        return self.parts if isinstance(self.parts, list) else [self.parts]


V = TypeVar("V")
H = TypeVar("H", bound=Held)


@dataclass(frozen=True)
class Form(Generic[V, H]):
    """One kind of value, as a value made of functions."""

    name: str
    value_type: type[V]
    """By which a value is recognised."""
    kinds: tuple[Kind, ...]
    """What schemas call it."""
    codecs: Mapping[int, str]
    """How its slots can be coded: names by tag."""
    referring: frozenset[str]
    """The codecs that can be given what the receiver holds."""
    own_flags: int
    """The flags that mean something to it."""
    fields: tuple[str, ...]
    """The names of its parts."""
    parts: Callable[[V], dict[str, Tensor]]
    """The tensors that it is made of, to be saved or compared."""
    join: Callable[[Mapping[str, Tensor]], V]
    """The value from its parts."""
    slot: Callable[[str, V], Slot]
    """The slot of this name that it fits."""
    check: Callable[[Slot, V], None]
    """Refuse a value that does not fit its slot, by a `MessageError` that names it."""
    dense: Callable[[V], Tensor]
    """The weights themselves, in the shape of the slot."""
    rows: Callable[[V, slice], V]
    """Some rows of its first dimension, as a value of the same form."""
    largest: Callable[[V], float]
    """The largest size that an element can have; not finite where there is none. 0 for whole numbers."""
    lends: Callable[[V], Tensor]
    """What a later message can be coded given, once both sides have this value."""
    hold: Callable[[Slots, Mapping[str, Tensor], bool], H | None]
    """What the named tensors of a reference give to all slots of this form; None where it never uses one.

    True: it will serve for many messages, and may keep what it found.
    """
    encode: Callable[[Slots, Sequence[V], H | None, Options], Coded]
    """All slots of this form together, given what the receiver holds where that is smaller."""
    front: Callable[[Slots, int], int]
    """Bytes of `Coded.front` for these slots and flags."""
    decode: Callable[[Slots, Coded, H | None], list[V]]
    """The values, bit for bit, or the `WireError` that says which check failed."""
    unpacked: Callable[[Slots], int]
    """What a reader makes room for: trits, or bytes. A file is held to it."""
    costs: Callable[[Sequence[V], Coded], list[float]]
    """How much of the stream each value accounts for, up to a common factor."""
    entropy: Callable[[V], float | None]
    """Bits that an order-0 code of its codes cannot go below; None where it has no codes."""
    encode_each: Callable[[Slots, Sequence[Sequence[V]], H | None, Options], list[Coded]] | None = None
    """`encode` for each of many small messages, where that takes less time together."""
    decode_each: Callable[[Slots, Sequence[Coded], H | None], list[list[V]]] | None = None
    """`decode` for each of many messages, all of them coded with the same or nothing."""


def check_tensor(slot: Slot, tensor: object) -> None:
    """Refuse what is no strided tensor of the slot's shape."""
    if not isinstance(tensor, Tensor):
        raise MessageError(f"{slot.name}: a torch tensor is wanted, not {type(tensor).__name__}")
    if tuple(tensor.shape) != slot.shape:
        raise MessageError(f"{slot.name}: shape {tuple(tensor.shape)}, the schema says {slot.shape}")
    if tensor.layout is not torch.strided:
        raise MessageError(f"{slot.name}: {tensor.layout} tensors do not travel; make it dense first")

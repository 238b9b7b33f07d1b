"""What a slot of a message can hold, and what travels: named slots and a few numbers.

Who is handed a value asks its form here and never what class it has, so that one more form is one more entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ternfed.quantize.grid import Grid
from ternfed.quantize.ternary import Ternary
from ternfed.wire.errors import MessageError
from ternfed.wire.form import Form
from ternfed.wire.grid import GRID
from ternfed.wire.planes import DENSE
from ternfed.wire.schema import Kind, Schema, flat_bytes
from ternfed.wire.ternary import TERNARY

FORMS: tuple[Form[Any, Any], ...] = (TERNARY, GRID, DENSE)
"""In the order of their sections."""
Value = Tensor | Ternary | Grid
"""What the forms are forms of."""

PIECE = 1 << 20
"""Numbers of a large value that are looked at together."""

_OF_KIND = {kind: form for form in FORMS for kind in form.kinds}


@dataclass(frozen=True, eq=False)
class Message:
    """What travels: the slots of one model by name and a few numbers. Compare two with `same`."""

    tensors: Mapping[str, Value]
    numbers: Mapping[str, float] = field(default_factory=dict)
    known: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    """Weights that somebody has who keeps them anyway."""

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights themselves, made once for all who start from them; nobody may change one in place."""
        return {name: self.weight(name) for name in self.tensors}

    def weight(self, name: str) -> Tensor:
        """One of them; made for the caller alone where not all have been made."""
        made: Mapping[str, Tensor] | None = self.__dict__.get("weights")
        if made is not None:
            return made[name]
        return self.known[name] if name in self.known else dense(self.tensors[name])

    def know(self, weights: Mapping[str, Tensor]) -> None:
        """Share with these, from now on, what is large and has the same bits."""
        for name, value in self.tensors.items():
            tensor = weights.get(name)
            if tensor is None or not is_large(value) or tensor.shape != _numbers_of(value).shape:
                continue
            if all(_same_tensor(part, tensor[own]) for own, part in dense_rows(value)):
                self.known[name] = tensor

    def forget_weights(self) -> None:
        """Let go of what `weights` made, which of a large message is a whole model."""
        self.__dict__.pop("weights", None)

    @cached_property
    def largest(self) -> Mapping[str, float]:
        """`largest` of each tensor, looked for once."""
        return {name: largest(value) for name, value in self.tensors.items()}


def form_of(value: Value) -> Form[Any, Any]:
    """The form of a value."""
    for form in FORMS:
        if isinstance(value, form.value_type):
            return form
    raise MessageError(f"a message cannot hold a {type(value).__name__}")


def form_for(kind: Kind) -> Form[Any, Any]:
    """The form of the values that a schema calls by this kind."""
    return _OF_KIND[kind]


def dense(value: Value) -> Tensor:
    """The weights themselves: a ternary value as scale × code, a grid as code × step, a plain tensor as it is."""
    weights: Tensor = form_of(value).dense(value)
    return weights


def dense_rows(value: Value) -> Iterator[tuple[slice, Tensor]]:
    """The same of a value with rows, some of them at a time: whole, a large one is one more model."""
    form, rows = form_of(value), _numbers_of(value)
    for own in row_slices(rows):
        yield own, form.dense(form.rows(value, own))


def row_slices(tensor: Tensor, numbers: int | None = None) -> Iterator[slice]:
    """The rows of a tensor, about so many numbers at a time, or `PIECE`."""
    step = max(1, (numbers or PIECE) // max(1, tensor[:1].numel()))
    return (slice(at, at + step) for at in range(0, len(tensor), step))


def is_large(value: Value) -> bool:
    """Whether it has rows and so many numbers that they are better looked at some rows at a time."""
    numbers = _numbers_of(value)
    return numbers.numel() > PIECE and numbers.dim() > 0


def _numbers_of(value: Value) -> Tensor:
    return value if isinstance(value, Tensor) else value.codes


def largest(value: Value) -> float:
    """The largest size that an element can have; not finite where there is none. 0 for whole numbers."""
    return form_of(value).largest(value)


def lent(values: Mapping[str, Value]) -> dict[str, Tensor]:
    """What later messages can be coded given, once both sides have these values."""
    return {name: form_of(value).lends(value) for name, value in values.items()}


def take_apart(values: Mapping[str, Value]) -> dict[str, Tensor]:
    """Values as named tensors, to be saved: `ternary/codes/NAME`; a form of one part needs no name for it."""
    out: dict[str, Tensor] = {}
    for form in FORMS:
        for name, value in values.items():
            if form_of(value) is form:
                out |= {f"{_prefix(form, part)}{name}": tensor for part, tensor in form.parts(value).items()}
    return out


def put_together(tensors: Mapping[str, Tensor]) -> dict[str, Value]:
    """The values that `take_apart` took apart; tensors of other names are left out."""
    values: dict[str, Value] = {}
    for form in FORMS:
        parts: dict[str, dict[str, Tensor]] = {}
        for field_ in form.fields:
            prefix = _prefix(form, field_)
            for key, tensor in tensors.items():
                if key.startswith(prefix):
                    parts.setdefault(key.removeprefix(prefix), {})[field_] = tensor
        values |= {name: form.join(part) for name, part in parts.items()}
    return values


def schema_of(message: Message) -> Schema:
    """The schema that a message fits, in the order of its dictionaries."""
    slots = (form_of(value).slot(name, value) for name, value in message.tensors.items())
    return Schema(tuple(slots), tuple(message.numbers))


def same(first: Message, second: Message) -> bool:
    """Whether two messages agree bit for bit: names, shapes, dtypes, every NaN's payload and every zero's sign."""
    if first.tensors.keys() != second.tensors.keys() or first.numbers.keys() != second.numbers.keys():
        return False
    if any(_bits(float(value)) != _bits(float(second.numbers[name])) for name, value in first.numbers.items()):
        return False
    return all(_same_value(value, second.tensors[name]) for name, value in first.tensors.items())


def _prefix(form: Form[Any, Any], part: str) -> str:
    return f"{form.name}/{part}/" if len(form.fields) > 1 else f"{form.name}/"


def _bits(number: float) -> int:
    return int(torch.tensor(number, dtype=torch.float64).view(torch.int64))


def _same_value(first: Value, second: Value) -> bool:
    form = form_of(first)
    if form is not form_of(second):
        return False
    ours, theirs = form.parts(first), form.parts(second)
    return all(_same_tensor(ours[part], theirs[part]) for part in form.fields)


def _same_tensor(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(flat_bytes(first), flat_bytes(second))

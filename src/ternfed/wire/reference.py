"""What both sides already hold: any named tensors, of which each form takes what it can use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ternfed.wire.form import Form, Held, Slots
from ternfed.wire.forms import FORMS, Message, Value, lent
from ternfed.wire.schema import Schema


@dataclass(frozen=True, eq=False)
class Reference:
    """Named tensors that both sides hold, and what the forms have made of them so far.

    Make it once for the many messages that are coded with it.
    """

    tensors: Mapping[str, Tensor]
    keep: bool = True
    """False saves 8 bytes per trit where it serves for one message."""
    _made: dict[tuple[str, Slots], Held | None] = field(default_factory=dict, init=False, repr=False)

    def held(self, form: Form[Any, Any], slots: Slots) -> Any:
        """What it gives to all slots of one form; None where the form uses no reference."""
        key = form.name, slots
        if key not in self._made:
            self._made[key] = form.hold(slots, self.tensors, self.keep)
        return self._made[key]


def reference_of(source: Message | Mapping[str, Value], schema: Schema, *, keep: bool = True) -> Reference:
    """The reference that a message or named tensors give to a schema, taken at once: a later change does not matter."""
    reference = Reference(lent(source.tensors if isinstance(source, Message) else source), keep)
    for form in FORMS:
        reference.held(form, schema.of(form.kinds))
    return reference

"""A ternfed message and a few facts in one Flower array, and what a client keeps of them in its context.

A parcel is the length of the facts (a varint), the facts as JSON, compressed where they are long, and the message:

    down  run, at (the number of the broadcast), given (that of the one to hold; null: none), mode, bits (of an upload),
          feedback (false where uploads have none), length (true where they are kept as long as they were without it),
          layout (if none is held)
    up    run, at, seed; or run, at, lost: the client does not hold what the broadcast was coded given
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors.torch import load, save
from torch import Tensor

from ternfed.engines.flower.envelope import KEY, STYPE
from ternfed.engines.flower.layout import MOST_TEXT
from ternfed.wire import Truncated, WireError, WrongValue, varint

STATE = "ternfed"
"""The record of a client's context in which all of this lies."""
_LONG = 200
_FACTS = ("run", "at", "mode", "bits", "feedback", "length", "layout")


def pack(facts: dict[str, Any], message: bytes = b"") -> bytes:
    """The bytes of a parcel."""
    text = json.dumps(facts, separators=(",", ":")).encode()
    packed = zlib.compress(text, 9) if len(text) > _LONG else text
    return varint.write(len(packed)) + packed + message


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """(the facts, the message); WireError where the bytes are no parcel."""
    length, start = varint.read(memoryview(data), 0)
    if len(data) < start + length:
        raise Truncated("the bytes end within the facts of a parcel")
    text = data[start : start + length]
    try:
        if not text.startswith(b"{"):
            text = zlib.decompressobj().decompress(text, MOST_TEXT)
        facts = json.loads(text)
    except (ValueError, zlib.error, RecursionError) as error:
        raise WrongValue(f"the facts of a parcel cannot be read: {error}") from error
    if not isinstance(facts, dict):
        raise WrongValue("the facts of a parcel are no table")
    return facts, data[start + length :]


def fact(facts: dict[str, Any], name: str, kind: type) -> Any:
    """One fact; WrongValue where it is missing or of another kind."""
    value = facts.get(name)
    if type(value) is not kind:
        raise WrongValue(f"the fact {name} of a parcel is {value!r}; {kind.__name__} is needed")
    return value


def parcel_in(records: Any) -> tuple[str, bytes] | None:
    """The name of the record that holds a parcel, and its bytes; None where no record does."""
    for name, record in records.array_records.items():
        arrays = list(record.items())
        if len(arrays) == 1 and arrays[0][0] == KEY and arrays[0][1].stype == STYPE:
            return name, bytes(arrays[0][1].data)
    return None


@dataclass(frozen=True)
class Kept:
    """What a client keeps between messages."""

    run: str
    at: int
    """The number of the broadcast that it holds."""
    mode: str
    bits: float
    """Of each weight of an upload."""
    feedback: bool
    """Whether an upload has what earlier ones left out."""
    length: bool
    """Whether an upload is as long as the update also where it has not."""
    layout: str
    held: bytes
    """That broadcast."""
    memory: dict[str, Tensor]
    """What the algorithm remembers."""

    def store(self, context: Any) -> None:
        """Into the context's state, as one record."""
        from flwr.app import Array, ArrayRecord

        facts = {name: getattr(self, name) for name in _FACTS}
        # Half of the bits are enough for what is left over, and Flower copies all of it after each message.
        small = {n: t.bfloat16() if t.is_floating_point() else t for n, t in self.memory.items()}
        parts = {"facts": json.dumps(facts).encode(), "held": self.held, "memory": save(small)}
        arrays = {name: Array("uint8", (len(data),), STYPE, data) for name, data in parts.items()}
        context.state[STATE] = ArrayRecord(arrays)

    @staticmethod
    def found(context: Any) -> Kept | None:
        """What is kept in a context; None where there is nothing, or something that cannot be read."""
        record = context.state.array_records.get(STATE)
        try:
            facts = json.loads(record["facts"].data)
            memory = {n: t.float() if t.is_floating_point() else t for n, t in load(record["memory"].data).items()}
            return Kept(**{name: facts[name] for name in _FACTS}, held=record["held"].data, memory=memory)
        except Exception:  # lost or damaged: the server sends all of it again
            return None


def array_record(state: dict[str, Any]) -> Any:
    """Arrays by name as Flower's record."""
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(np.asarray(array)) for name, array in state.items()})


def arrays_of(record: Any) -> dict[str, Any]:
    """And back."""
    try:
        return {name: array.numpy() for name, array in record.items()}
    except (TypeError, ValueError) as error:
        raise WireError(f"arrays that cannot be read: {error}") from error

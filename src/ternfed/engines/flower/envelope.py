"""A ternfed message in a Flower message: one uint8 `Array` with a `stype` of its own, nothing per tensor or layer.

Every object of a Flower message is an HTTP call of about a kilobyte, so there is one. Its `stype` is opaque to Flower:
a stock strategy refuses to average it, as it should.
"""

from __future__ import annotations

from typing import Any

from ternfed.wire import WireError

STYPE = "ternfed.v2"
KEY = "ternfed"


class NoMessage(WireError):
    """A Flower message that carries no ternfed message."""


class WrongRound(WireError):
    """A message of another round than the one it came in."""


def wrap(data: bytes) -> Any:
    """An ArrayRecord that holds the bytes."""
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({KEY: Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)})


def content(data: bytes) -> Any:
    """The content of a broadcast."""
    from flwr.app import RecordDict

    return RecordDict({KEY: wrap(data)})


def unwrap(records: Any) -> bytes:
    """The bytes in a message's content, whatever its records are called."""
    arrays = [array for record in records.array_records.values() for array in record.values()]
    if len(arrays) != 1 or arrays[0].stype != STYPE:
        kinds = sorted({str(array.stype) for array in arrays})
        raise NoMessage(f"{len(arrays)} arrays of type {kinds} came; one of type {STYPE} is needed")
    return bytes(arrays[0].data)

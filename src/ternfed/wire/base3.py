"""Codec `base3`: five trits per byte, whatever they are. 1.6 bits per weight, at memory speed, never a reference."""

from __future__ import annotations

import numpy as np

from ternfed.wire.errors import TrailingBytes, Truncated
from ternfed.wire.held import HeldTrits, Trits
from ternfed.wire.trits import Codes, pack, symbols, unpack

TAG = 1


def encode(trits: Trits) -> bytes:
    """Planar base-3 bytes; a reference would gain nothing here and is not used."""
    return pack(trits.codes).tobytes()


def decode(data: memoryview, sizes: tuple[int, ...], reference: HeldTrits | None) -> Codes:
    """The codes of all tensors end to end."""
    need = symbols(sum(sizes))
    if len(data) != need:
        raise (Truncated if len(data) < need else TrailingBytes)(f"{len(data)} base-3 bytes, {need} hold the trits")
    return unpack(np.frombuffer(data, np.uint8), sum(sizes))

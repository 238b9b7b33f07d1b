"""Trits as numpy arrays: five to a byte in two orders, and counted.

A byte holds s = Σ 3^k (c_k + 1) = 121 + Σ 3^k c_k for codes c_0 … c_4. The sum of the codes stays within ±121, so it
is computed in int8. *Planar* bytes take their five trits from five runs of a block, which numpy does at memory speed;
*interleaved* bytes take five neighbours, so that zstd sees what lies side by side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ternfed.wire.errors import MessageError, WrongTrit
from ternfed.wire.schema import flat_bytes

Codes = NDArray[np.int8]
Bytes = NDArray[np.uint8]

BLOCK = 1 << 16
"""Symbols in a planar block: small enough for the cache, large enough that numpy's own cost is not felt."""
SPAN = 5 * BLOCK
"""Trits in a planar block."""
VALUES = (-1, 0, 1)


def flat_codes(name: str, codes: Tensor) -> Codes:
    """Codes as a flat int8 array on the CPU; anything outside -1, 0, +1 is the sender's mistake."""
    if str(codes.dtype) != "torch.int8":
        raise MessageError(f"{name}: codes are int8, not {codes.dtype}")
    flat: Codes = flat_bytes(codes).numpy().view(np.int8)
    if flat.size and (flat.max() > 1 or flat.min() < -1):
        raise MessageError(f"{name}: codes must be -1, 0 or +1, found {flat.min()} to {flat.max()}")
    return flat


def symbols(trits: int) -> int:
    """Bytes, or symbols, that hold so many trits."""
    return -(-trits // 5)


def digits() -> Bytes:
    """(243, 5): the digits 0, 1, 2 of each byte, each one more than its code."""
    table: Bytes = (np.arange(243)[:, None] // 3 ** np.arange(5) % 3).astype(np.uint8)
    return table


def pack(codes: Codes, pad: int = 0) -> Bytes:
    """Five trits per byte, planar in blocks; the last block is filled up with `pad`."""
    out = np.empty(symbols(len(codes)), np.int8)
    for at in range(0, len(codes), SPAN):
        part = codes[at : at + SPAN]
        size = symbols(len(part))
        if len(part) < 5 * size:
            part = np.concatenate([part, np.full(5 * size - len(part), pad, np.int8)])
        _add_up(part.reshape(5, size), out[at // 5 : at // 5 + size])
    return out.view(np.uint8)


def unpack(data: Bytes, trits: int, pad: int = 0) -> Codes:
    """The codes in planar bytes; a byte over 242 or another padding raises `WrongTrit`."""
    _check(data)
    out = np.empty(trits, np.int8)
    for at in range(0, trits, SPAN):
        part = out[at : at + SPAN]
        size = symbols(len(part))
        unpack_block(data[at // 5 : at // 5 + size], part, pad)
    return out


def unpack_block(data: Bytes, out: Codes, pad: int = 0) -> None:
    """One planar block of checked bytes into `out`."""
    size = len(data)
    if len(out) == 5 * size:
        _take_apart(data, out.reshape(5, size))
        return
    whole = np.empty(5 * size, np.int8)
    _take_apart(data, whole.reshape(5, size))
    out[:] = whole[: len(out)]
    if (whole[len(out) :] != pad).any():
        raise WrongTrit("the padding after the last trit is not padding")


def pack_neighbours(codes: Codes, reference: Codes | None = None) -> Bytes:
    """Five neighbouring trits per byte, of the codes or of their difference from a reference mod 3."""
    out = np.zeros(symbols(len(codes)), np.int8)
    for at in range(0, len(codes), SPAN):
        part = codes[at : at + SPAN]
        if reference is not None:
            part = _wrap(part - reference[at : at + SPAN])
        size = symbols(len(part))
        if len(part) < 5 * size:
            part = np.concatenate([part, np.zeros(5 * size - len(part), np.int8)])
        _add_up(part.reshape(size, 5).T, out[at // 5 : at // 5 + size])
    return out.view(np.uint8)


def unpack_neighbours(data: Bytes, trits: int, reference: Codes | None = None) -> Codes:
    """The inverse of `pack_neighbours`, with the checks of `unpack`."""
    _check(data)
    out = np.empty(trits, np.int8)
    for at in range(0, trits, SPAN):
        part = out[at : at + SPAN]
        size = symbols(len(part))
        whole = np.empty((size, 5), np.int8)
        _take_apart(data[at // 5 : at // 5 + size], whole.T)
        flat = whole.reshape(-1)
        if flat[len(part) :].any():
            raise WrongTrit("the padding after the last trit is not padding")
        if reference is None:
            part[:] = flat[: len(part)]
        else:
            part[:] = _wrap(flat[: len(part)] + reference[at : at + SPAN])
    return out


def count(codes: Codes, sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """How often -1, 0, +1 occur in consecutive runs of these sizes: shape (runs, 3)."""
    table = np.zeros((len(sizes), 3), np.int64)
    stop = 0
    for row, size in zip(table, sizes, strict=True):
        start, stop = stop, stop + size
        for at in range(start, stop, SPAN):
            row += spread_of(codes[at : min(at + SPAN, stop)])
    return table


def spread_of(codes: Codes) -> tuple[int, int, int]:
    """How often -1, 0, +1 occur."""
    other, high = int(np.count_nonzero(codes)), int(np.count_nonzero(codes == 1))
    return other - high, len(codes) - other, high


def _add_up(five: Codes, out: Codes) -> None:
    """Σ 3^k five[k] + 121, wrapping into the byte that unsigned eyes read."""
    np.multiply(five[4], 3, out=out)
    for k in (3, 2, 1):
        out += five[k]
        out *= 3
    out += five[0]
    out += 121


def _take_apart(data: Bytes, five: Codes) -> None:
    """The five codes of each byte; bytes are at most 242."""
    rest, left = data, np.empty_like(data)
    for k in range(4):
        np.floor_divide(rest, 3, out=left)
        row = five[k].view(np.uint8)
        np.multiply(left, 253, out=row)  # -3 · left, mod 256
        row += rest
        row -= 1
        rest, left = left, (np.empty_like(data) if k == 0 else rest)
    np.subtract(rest, 1, out=five[4].view(np.uint8))


def _wrap(sum_or_difference: Codes) -> Codes:
    """-2 … 2 to -1, 0, +1, mod 3; in place."""
    high, low = sum_or_difference > 1, sum_or_difference < -1
    sum_or_difference -= 3 * high.view(np.int8)
    sum_or_difference += 3 * low.view(np.int8)
    return sum_or_difference


def _check(data: Bytes) -> None:
    if data.size and data.max() > 242:
        raise WrongTrit(f"a base-3 byte is {data.max()}; five trits reach 242")

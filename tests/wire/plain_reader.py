"""A second reader of the wire format: plain Python, slow, written from docs/wire.md and sharing no code with the first.

It trusts its input. What it returns is what the fast reader must return as well.
"""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from zlib import crc32

import zstandard

WIDTHS = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
BLOCK = 327_680


def read(data: bytes, slots: list[tuple[str, str, tuple[int, ...]]], numbers: list[str], reference: list[int] | None):
    """name -> (codes, positive, negative) or raw bytes, and name -> number."""
    assert data[:4] == b"\xf3TF\x01"
    codec, flags = data[4], data[5]
    text = json.dumps([[list(slot) for slot in slots], numbers], separators=(",", ":"))
    assert data[6:14] == blake2b(text.encode(), digest_size=8).digest()
    assert struct.unpack("<I", data[14:18])[0] == crc32(data[:14] + data[18:])
    at = 18
    if flags & 1:
        assert data[at : at + 8] == blake2b(bytes(planar(reference, 0)), digest_size=8).digest()
        at += 8
    else:
        reference = None
    trit_length, at = varint(data, at)
    dense_length, at = varint(data, at)
    ternary = [slot for slot in slots if slot[1] == "ternary"]
    scales = []
    for _ in range(1 if flags & 2 else 2):
        scales.append(struct.unpack_from(f"<{len(ternary)}f", data, at))
        at += 4 * len(ternary)
    values = dict(zip(numbers, struct.unpack_from(f"<{len(numbers)}d", data, at), strict=True))
    at += 8 * len(numbers)
    sizes = [size(slot[2]) for slot in ternary]
    trits = {1: base3, 2: zstd, 3: ans}[codec](data[at : at + trit_length], sizes, reference)
    tensors = dense(data[at + trit_length :], slots)
    assert at + trit_length + dense_length == len(data)
    for i, slot in enumerate(ternary):
        tensors[slot[0]] = (trits[: sizes[i]], scales[0][i], scales[-1][i])
        trits = trits[sizes[i] :]
    return tensors, values


def size(shape):
    total = 1
    for length in shape:
        total *= length
    return total


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def planar(codes, pad):
    """The symbols of codes in planar order."""
    out = []
    for start in range(0, len(codes), BLOCK):
        block = list(codes[start : start + BLOCK])
        m = -(-len(block) // 5)
        block += [pad] * (5 * m - len(block))
        out += [sum(3**k * (block[j + k * m] + 1) for k in range(5)) for j in range(m)]
    return out


def unplanar(symbols, count):
    """The codes in planar symbols."""
    out = []
    while len(out) < count:
        m = -(-min(BLOCK, count - len(out)) // 5)
        block, symbols = symbols[:m], symbols[m:]
        out += [symbol // 3**k % 3 - 1 for k in range(5) for symbol in block]
    return out[:count]


def base3(section, sizes, reference):
    return unplanar(list(section), sum(sizes))


def zstd(section, sizes, reference):
    content = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS).decompress(section)
    trits = [symbol // 3**k % 3 - 1 for symbol in content for k in range(5)][: sum(sizes)]
    if reference is None:
        return trits
    return [(d + r + 1) % 3 - 1 for d, r in zip(trits, reference, strict=True)]


def ans(section, sizes, reference):
    tensor_of = [t for t, n in enumerate(sizes) for _ in range(n)]
    contexts = [0] * len(tensor_of) if reference is None else reference
    places = {}
    for context in [0] if reference is None else [-1, 0, 1]:
        for tensor in range(len(sizes)) if section[0] else [None]:
            places[context, tensor] = [
                i for i, t in enumerate(tensor_of) if contexts[i] == context and tensor in (None, t)
            ]
    at, groups = 1, []
    for where in places.values():
        if where:
            low, at = varint(section, at)
            high, at = varint(section, at)
            groups.append((where, (low, len(where) - low - high, high)))
    section = section[at:]
    section += bytes(-len(section) % 4)
    words = [word for (word,) in struct.iter_unpack("<I", section)]
    state, out = 0, [0] * len(tensor_of)
    while state < 2**32 and words:
        state = state << 32 | words.pop()
    for where, counts in groups:
        frequencies = model(counts)
        symbols = []
        for _ in range(-(-len(where) // 5)):
            slot, symbol, start = state % 2**24, 0, 0
            while slot >= start + frequencies[symbol]:
                start += frequencies[symbol]
                symbol += 1
            symbols.append(symbol)
            state = frequencies[symbol] * (state >> 24) + slot - start
            if state < 2**32 and words:
                state = state << 32 | words.pop()
        for place, code in zip(where, unplanar(symbols, len(where)), strict=True):
            out[place] = code
    assert state == 0
    assert not words
    return out


def model(counts):
    free = 2**24 - 243
    weights = []
    for symbol in range(243):
        weight = free
        for k in range(5):
            weight *= counts[symbol // 3**k % 3]
        weights.append(weight // sum(counts) ** 5)
    commonest = counts.index(max(counts))
    weights[sum(3**k * commonest for k in range(5))] += free - sum(weights)
    return [weight + 1 for weight in weights]


def dense(section, slots):
    tensors, at = {}, 0
    for kind, width in WIDTHS.items():
        mine = [slot for slot in slots if slot[1] == kind]
        if not mine:
            continue
        count, planes = sum(size(slot[2]) for slot in mine), []
        for _ in range(width):
            length, at = varint(section, at)
            piece = section[at : at + (length or count)]
            at += length or count
            if length:
                piece = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS).decompress(piece)
            planes.append(piece)
        raw = bytes(planes[byte][element] for element in range(count) for byte in range(width))
        for name, _, shape in mine:
            tensors[name], raw = raw[: size(shape) * width], raw[size(shape) * width :]
    return tensors

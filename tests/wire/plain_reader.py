"""A second reader of the wire format: plain Python, slow, written from docs/wire.md and sharing no code with the first.

It trusts its input. What it returns is what the fast reader must return as well.
"""

from __future__ import annotations

import json
import math
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


def read(data: bytes, slots: list[tuple[str, str, tuple[int, ...]]], numbers: list[str], reference: dict | None):
    """name -> (codes, positive, negative), (codes, exponents) or raw bytes, and name -> number.

    A reference has a list for a name: trits, or float32 numbers.
    """
    assert data[:4] == b"\xf3TF\x02"
    text = json.dumps([[list(slot) for slot in slots], numbers], separators=(",", ":"))
    assert data[4:12] == blake2b(text.encode(), digest_size=8).digest()
    assert struct.unpack("<I", data[12:16])[0] == crc32(data[:12] + data[16:])
    values = dict(zip(numbers, struct.unpack_from(f"<{len(numbers)}d", data, 16), strict=True))
    at = 16 + 8 * len(numbers)
    tensors = {}
    for mine, read_form in (
        ([slot for slot in slots if slot[1] == "ternary"], read_ternary),
        ([slot for slot in slots if slot[1].startswith("grid")], read_grid),
        ([slot for slot in slots if slot[1] in WIDTHS], read_dense),
    ):
        if mine:
            tag, digest, at = data[at], None, at + 1
            if tag & 16:
                digest, at = data[at : at + 8], at + 8
            length, at = varint(data, at)
            front = 0
            if read_form is read_ternary:
                front = 4 * len(mine) if tag & 32 else 8 * len(mine)
            section = data[at : at + front], data[at + front : at + front + length]
            tensors |= read_form(mine, tag & 15, *section, reference if tag & 16 else None, digest)
            at += front + length
    assert at == len(data)
    return tensors, values


def read_ternary(slots, codec, front, stream, reference, digest):
    held = None
    if digest is not None:
        held = [code for slot in slots for code in reference[slot[0]]]
        assert digest == blake2b(bytes(planar(held, 0)), digest_size=8).digest()
    scales = struct.unpack(f"<{len(front) // 4}f", front)
    sizes = [size(slot[2]) for slot in slots]
    trits = {1: base3, 2: zstd, 3: ans}[codec](stream, sizes, held)
    out = {}
    for i, slot in enumerate(slots):
        out[slot[0]] = (trits[: sizes[i]], scales[i], scales[i - len(slots)])
        trits = trits[sizes[i] :]
    return out


def read_grid(slots, codec, front, stream, reference, digest):
    rows = [slot[2][0] if slot[1] == "grid_rows" else 1 for slot in slots]
    sizes = [size(slot[2]) for slot in slots]
    held = {slot[0]: (reference or {}).get(slot[0]) for slot in slots}
    if digest is not None:
        text = b""
        for numbers in held.values():
            text += b"\0" if numbers is None else b"\1" + struct.pack(f"<{len(numbers)}f", *map(clean, numbers))
        assert digest == blake2b(text, digest_size=8).digest()
    exponents, lists = (grid_planes if codec == 1 else grid_ans)(stream, sizes, sum(rows))
    out = {}
    for slot, count, codes in zip(slots, rows, lists, strict=True):
        mine, exponents = exponents[:count], exponents[count:]
        if held[slot[0]] is not None:
            row = len(codes) // count if count else 0
            for i, number in enumerate(held[slot[0]]):
                nearest = round(clean(number) * 2.0 ** -mine[i // row])
                codes[i] += max(-(2**24), min(2**24, nearest))
        out[slot[0]] = (codes, mine)
    return out


def clean(number):
    return number + 0.0 if math.isfinite(number) else 0.0


def grid_planes(stream, sizes, exponents):
    planes, at = read_planes(stream, exponents, sum(sizes), 4)
    assert at == len(stream)
    codes = [-(u + 1) // 2 if u % 2 else u // 2 for u in struct.unpack(f"<{sum(sizes)}I", planes)]
    return [byte - 126 for byte in stream[:exponents]], cut(codes, sizes)


def grid_ans(stream, sizes, exponents):
    at = 0
    if exponents:
        base, at = stream[0] - 126, 1
    count, at = varint(stream, at)
    groups = [0] * len(sizes)
    if count > 1:
        width = len(bin(count - 1)) - 2
        need = -(-width * len(sizes) // 8)
        bits = "".join(f"{byte:08b}"[::-1] for byte in stream[at : at + need])
        groups = [int(bits[i * width : (i + 1) * width][::-1], 2) for i in range(len(sizes))]
        at += need
    lengths = [exponents] if exponents else []
    lengths += [sum(n for n, g in zip(sizes, groups, strict=True) if g == group) for group in range(count)]
    models = []
    for n in lengths:
        head, at = varint(stream, at)
        high, at = varint(stream, at)
        low, fine, counts = head // 8, head % 8 + 1, []
        for _ in range(low + high):
            number, at = varint(stream, at)
            counts.append(number)
        models.append((n, fine, low, [*counts[:low], n - sum(counts), *counts[low:]]))
    coder = Coder(stream[at:])
    lists = [whole_numbers(coder, *model) for model in models]
    coder.end()
    steps = [base + number for number in lists.pop(0)] if exponents else []
    out = []
    for n, group in zip(sizes, groups, strict=True):
        out.append(lists[group][:n])
        lists[group] = lists[group][n:]
    return steps, out


def whole_numbers(coder, n, fine, low, counts):
    if len(counts) == 1:
        return [0] * n
    free = 2**24 - len(counts)
    weights = [free * count // n for count in counts] if n else [0] * len(counts)
    weights[counts.index(max(counts))] += free - sum(weights)
    out = []
    while len(out) < n:
        block = [coder.symbol([w + 1 for w in weights]) - low for _ in range(min(65_536, n - len(out)))]
        widths = [max(0, abs(bucket) // 2**fine - 1) for bucket in block]
        sizes = [abs(bucket) - 2**fine * w << w for bucket, w in zip(block, widths, strict=True)]
        for width in range(1, 25):
            for i in range(len(block)):
                if widths[i] == width:
                    sizes[i] += coder.even(width)
        out += [-size if bucket < 0 else size for bucket, size in zip(block, sizes, strict=True)]
    return out


def cut(numbers, sizes):
    out = []
    for n in sizes:
        out.append(numbers[:n])
        numbers = numbers[n:]
    return out


class Coder:
    """The words of a stream and the state."""

    def __init__(self, stream):
        stream += bytes(-len(stream) % 4)
        self.words = [word for (word,) in struct.iter_unpack("<I", stream)]
        self.state = 0
        while self.state < 2**32 and self.words:
            self.fill()

    def fill(self):
        if self.state < 2**32 and self.words:
            self.state = self.state << 32 | self.words.pop()

    def symbol(self, frequencies):
        place, symbol, start = self.state % 2**24, 0, 0
        while place >= start + frequencies[symbol]:
            start += frequencies[symbol]
            symbol += 1
        self.take(frequencies[symbol], start)
        return symbol

    def even(self, width):
        symbol = self.state % 2**24 >> 24 - width
        self.take(2 ** (24 - width), symbol << 24 - width)
        return symbol

    def take(self, frequency, start):
        self.state = frequency * (self.state >> 24) + self.state % 2**24 - start
        self.fill()

    def end(self):
        assert self.state == 0
        assert not self.words


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
    coder, out = Coder(section[at:]), [0] * len(tensor_of)
    for where, counts in groups:
        frequencies = model(counts)
        symbols = [coder.symbol(frequencies) for _ in range(-(-len(where) // 5))]
        for place, code in zip(where, unplanar(symbols, len(where)), strict=True):
            out[place] = code
    coder.end()
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


def read_planes(section, at, count, width):
    planes = []
    for _ in range(width):
        length, at = varint(section, at)
        piece = section[at : at + (length or count)]
        at += length or count
        if length:
            piece = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS).decompress(piece)
        planes.append(piece)
    return bytes(planes[byte][element] for element in range(count) for byte in range(width)), at


def read_dense(slots, codec, front, stream, reference, digest):
    assert codec == 1
    tensors, at = {}, 0
    for kind, width in WIDTHS.items():
        mine = [slot for slot in slots if slot[1] == kind]
        if not mine:
            continue
        raw, at = read_planes(stream, at, sum(size(slot[2]) for slot in mine), width)
        for name, _, shape in mine:
            tensors[name], raw = raw[: size(shape) * width], raw[size(shape) * width :]
    assert at == len(stream)
    return tensors

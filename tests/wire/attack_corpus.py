"""The crafted attacks in tests/attacks/: how each was made, and the check it must fail.

`python tests/wire/attack_corpus.py` writes them again. They are kept as files so that a change of the writer cannot
quietly make them harmless. Every one but the first few has a correct checksum: an attacker can compute it too.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import constriction
import numpy as np
import zstandard
from wire_samples import small

from ternfed.wire import Message, ans, encode, reference_of, schema_of, varint
from ternfed.wire.message import locate, read_header
from ternfed.wire.tern import tern_bytes

FOLDER = Path(__file__).parent.parent / "attacks"
MESSAGE, CODES = small()
SCHEMA = schema_of(MESSAGE)
REFERENCE = reference_of(CODES, SCHEMA)
TRITS = SCHEMA.trits
ORDERED = np.concatenate([MESSAGE.tensors[slot.name].codes.numpy().reshape(-1) for slot in SCHEMA.ternary])
SPREAD = ans.spread_of(ORDERED)


def seal(data: bytes) -> bytes:
    """The bytes with the checksum they need."""
    return data[:14] + struct.pack("<I", crc32(data[18:], crc32(data[:14]))) + data[18:]


def rebuilt(codec: str, *, trits=None, dense=None, scales=None, flags=None, reference=None) -> bytes:
    """The sample with some sections replaced, and lengths and checksum put right."""
    data = encode(MESSAGE, SCHEMA, codec=codec, reference=reference)
    header = read_header(data)
    parts = locate(memoryview(data), header, SCHEMA)
    trits = bytes(parts.trits) if trits is None else trits
    dense = bytes(parts.dense) if dense is None else dense
    scales = bytes(parts.scales) if scales is None else scales
    front = bytearray(data[: header.size])
    front[5] = front[5] if flags is None else flags
    lengths = varint.write(len(trits)) + varint.write(len(dense))
    return seal(bytes(front) + lengths + scales + bytes(parts.numbers) + trits + dense)


def section(codec: str, name: str, reference=None) -> bytes:
    data = encode(MESSAGE, SCHEMA, codec=codec, reference=reference)
    return bytes(getattr(locate(memoryview(data), read_header(data), SCHEMA), name))


def frame(content: bytes, **options) -> bytes:
    options = {"write_content_size": 1, "write_checksum": 0, **options}
    parameters = zstandard.ZstdCompressionParameters.from_level(1, format=zstandard.FORMAT_ZSTD1_MAGICLESS, **options)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


def claims(size: int) -> bytes:
    """A frame header that claims `size` bytes, then one empty last block."""
    return bytes([0xE0]) + struct.pack("<Q", size) + b"\x01\x00\x00"


def lengths_at(data: bytes) -> int:
    return read_header(data).size


def with_lengths(first: bytes, second: bytes) -> bytes:
    data = encode(MESSAGE, SCHEMA, codec="base3")
    at = lengths_at(data)
    rest = data[at + 2 :]
    return seal(data[:at] + first + second + rest)


def scale(value: float) -> bytes:
    return struct.pack("<4f", 0.5, 0.125, 0.25, value)


def counts(low: int, high: int, rest: bytes = b"") -> bytes:
    return b"\x00" + varint.write(low) + varint.write(high) + rest


def pushed(sign: int, spread: tuple[int, int, int], below: tuple[int, ...] | list[int] = ()) -> bytes:
    """A stream of the sample's trits times `sign`, under any model, on top of other words."""
    coder = constriction.stream.stack.AnsCoder(np.array(below, np.uint32))
    ans._push(coder, sign * ORDERED, spread)
    return counts(spread[0], spread[2], coder.get_compressed().astype("<u4").tobytes().rstrip(b"\0"))


def flip(data: bytes, at: int, bits: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


def big_schema_file(shape: list[int], kind: str = "ternary", count: int = 1) -> bytes:
    return tern_with(json.dumps({"metadata": {}, "tensors": [[f"w{i}", kind, shape] for i in range(count)]}))


def tern_with(text: str | bytes) -> bytes:
    header = text.encode() if isinstance(text, str) else text
    body = encode(Message({}), schema_of(Message({})))
    return b"\xf3TM\x01" + struct.pack("<I", crc32(header)) + varint.write(len(header)) + header + body


def good(codec: str = "base3", reference=None) -> bytes:
    return encode(MESSAGE, SCHEMA, codec=codec, reference=reference)


def bool_plane(value: int) -> bytes:
    dense = section("base3", "dense")
    return dense[:-21] + bytes([value]) * 21


ATTACKS: dict[str, Callable[[], bytes]] = {
    "Truncated/nothing": lambda: b"",
    "Truncated/magic-only": lambda: b"\xf3TF",
    "Truncated/header": lambda: good()[:17],
    "Truncated/no-lengths": lambda: good()[:18],
    "Truncated/half": lambda: good("ans")[:90],
    "Truncated/last-byte": lambda: good("zstd")[:-1],
    "Truncated/reference-digest": lambda: good("ans", REFERENCE)[:22],
    "Truncated/trits-said-to-be-huge": lambda: with_lengths(varint.write(2**55), b"\x01"),
    "Truncated/base3-short": lambda: rebuilt("base3", trits=section("base3", "trits")[:-1]),
    "Truncated/ans-empty": lambda: rebuilt("ans", trits=b""),
    "Truncated/ans-no-counts": lambda: rebuilt("ans", trits=b"\x00"),
    "Truncated/plane-said-to-be-long": lambda: rebuilt("base3", dense=varint.write(2**40) + b"xx"),
    "Truncated/no-planes": lambda: rebuilt("base3", dense=b""),
    "TrailingBytes/one": lambda: good() + b"\0",
    "TrailingBytes/twice": lambda: good("ans") * 2,
    "TrailingBytes/base3-long": lambda: rebuilt("base3", trits=section("base3", "trits") + b"\x79"),
    "TrailingBytes/dense": lambda: rebuilt("base3", dense=section("base3", "dense") + b"\0"),
    "TrailingBytes/ans-word": lambda: rebuilt("ans", trits=pushed(1, SPREAD, [7, 7])),
    "TrailingBytes/ans-zero-word": lambda: rebuilt("ans", trits=section("ans", "trits") + bytes(8)),
    "WrongMagic/text": lambda: b"PK\x03\x04" + good()[4:],
    "WrongMagic/pickle": lambda: b"\x80\x04\x95" + bytes(40),
    "WrongVersion/zero": lambda: flip(good(), 3, 1),
    "WrongVersion/future": lambda: flip(good(), 3, 2),
    "WrongCodec/zero": lambda: seal(flip(good(), 4, 1)),
    "WrongCodec/unknown": lambda: seal(flip(good(), 4, 0x80)),
    "WrongCodec/flag": lambda: seal(flip(good(), 5, 0x80)),
    "WrongCodec/base3-with-reference": lambda: seal(flip(good(), 5, 1)),
    "WrongCodec/grouping": lambda: rebuilt("ans", trits=b"\x07" + section("ans", "trits")[1:]),
    "WrongSchema/other": lambda: seal(flip(good(), 6)),
    "WrongReference/other": lambda: seal(flip(good("ans", REFERENCE), 18)),
    "WrongChecksum/number": lambda: flip(good(), 40),
    "WrongChecksum/itself": lambda: flip(good(), 14),
    "WrongChecksum/last": lambda: flip(good("zstd"), len(good("zstd")) - 1),
    "ImpossibleCount/varint-endless": lambda: with_lengths(b"\xff" * 9, b"\x01"),
    "ImpossibleCount/varint-not-shortest": lambda: with_lengths(b"\x96\x00", b"\x01"),
    "ImpossibleCount/too-many": lambda: rebuilt("ans", trits=counts(TRITS, 1)),
    "ImpossibleCount/far-too-many": lambda: rebuilt("ans", trits=counts(2**55, 2**55)),
    "ImpossibleCount/too-many-in-a-context": lambda: rebuilt("ans", trits=counts(TRITS, 0), reference=REFERENCE),
    "WrongScale/nan": lambda: rebuilt("base3", scales=scale(float("nan"))),
    "WrongScale/infinite": lambda: rebuilt("base3", scales=scale(float("inf"))),
    "WrongScale/negative": lambda: rebuilt("base3", scales=scale(-1.0)),
    "WrongScale/negative-infinite": lambda: rebuilt("base3", scales=scale(float("-inf"))),
    "WrongScale/twice-the-same": lambda: rebuilt("base3", scales=struct.pack("<4f", 1, 2, 1, 2)),
    "WrongTrit/243": lambda: rebuilt("base3", trits=b"\xf3" + section("base3", "trits")[1:]),
    "WrongTrit/255": lambda: rebuilt("base3", trits=b"\xff" * 22),
    "WrongTrit/padding": lambda: rebuilt("base3", trits=section("base3", "trits")[:-1] + b"\xf2"),
    "WrongTrit/243-in-zstd": lambda: rebuilt("zstd", trits=frame(b"\xf3" * 22)),
    "WrongTrit/padding-in-zstd": lambda: rebuilt("zstd", trits=frame(b"\xf2" * 22)),
    "WrongFrame/other-size": lambda: rebuilt("zstd", trits=frame(b"\x79" * 23)),
    "WrongFrame/bomb": lambda: rebuilt("zstd", trits=frame(bytes(50_000_000))),
    "WrongFrame/claims-an-exabyte": lambda: rebuilt("zstd", trits=claims(2**60)),
    "WrongFrame/claims-right-holds-less": lambda: rebuilt("zstd", trits=claims(22)),
    "WrongFrame/size-not-stated": lambda: rebuilt("zstd", trits=frame(b"\x79" * 22, write_content_size=0)),
    "WrongFrame/huge-window-cut": lambda: rebuilt("zstd", trits=bytes([0x80, 0xF8]) + struct.pack("<I", 22) + b"\x03"),
    "WrongFrame/large-window-cut": lambda: rebuilt("zstd", trits=bytes([0x80, 0x88]) + struct.pack("<I", 22) + b"\x03"),
    "WrongFrame/empty": lambda: rebuilt("zstd", trits=b""),
    "WrongFrame/two-frames": lambda: rebuilt("zstd", trits=section("zstd", "trits") * 2),
    "WrongFrame/cut": lambda: rebuilt("zstd", trits=section("zstd", "trits")[:-1]),
    "WrongFrame/with-magic": lambda: rebuilt("zstd", trits=zstandard.ZstdCompressor(level=1).compress(b"\x79" * 22)),
    "WrongFrame/noise": lambda: rebuilt("zstd", trits=b"\xff" * 30),
    "WrongFrame/in-a-plane": lambda: rebuilt("base3", dense=b"\x05\xff\xff\xff\xff\xff"),
    "WrongFrame/bomb-in-a-plane": lambda: rebuilt(
        "base3", dense=varint.write(len(frame(bytes(50_000_000)))) + frame(bytes(50_000_000))
    ),
    "WrongProbabilities/other-trits": lambda: rebuilt("ans", trits=pushed(0, SPREAD)),
    "WrongProbabilities/one-trit-off": lambda: rebuilt(
        "ans", trits=pushed(1, (SPREAD[0] - 1, SPREAD[1] + 1, SPREAD[2]))
    ),
    "WrongProbabilities/no-stream": lambda: rebuilt("ans", trits=counts(TRITS - 1, 1)),
    "WrongTrit/padding-in-ans": lambda: rebuilt("ans", trits=counts(1, TRITS - 1)),
    "WrongValue/bool": lambda: rebuilt("base3", dense=bool_plane(2)),
}

FILES: dict[str, Callable[[], bytes]] = {
    "Truncated/nothing": lambda: b"",
    "Truncated/header": lambda: b"\xf3TM\x01" + bytes(4) + varint.write(2**50),
    "Truncated/no-message": lambda: tern_bytes(MESSAGE.tensors)[:-40],
    "TrailingBytes/one": lambda: tern_bytes(MESSAGE.tensors) + b"\0",
    "WrongMagic/message": lambda: good(),
    "WrongVersion/two": lambda: flip(tern_bytes(MESSAGE.tensors), 3, 3),
    "WrongChecksum/header": lambda: flip(tern_bytes(MESSAGE.tensors), 30),
    "WrongSchema/another": lambda: tern_with('{"metadata":{},"tensors":[["w","ternary",[3]]]}'),
    "WrongFile/no-json": lambda: tern_with("hello"),
    "WrongFile/no-text": lambda: tern_with(b"\xff\xfe\x00"),
    "WrongFile/list": lambda: tern_with("[]"),
    "WrongFile/other-keys": lambda: tern_with('{"metadata":{},"tensors":[],"code":"x"}'),
    "WrongFile/nested": lambda: tern_with("[" * 100_000),
    "WrongFile/long-number": lambda: tern_with('{"metadata":{},"tensors":[["w","ternary",[' + "9" * 9999 + "]]]}"),
    "WrongFile/petabyte": lambda: big_schema_file([2**50]),
    "WrongFile/terabyte-of-floats": lambda: big_schema_file([2**20, 2**18], "float32"),
    "WrongFile/many-tensors": lambda: big_schema_file([2**20], "ternary", 100),
    "WrongFile/product-overflows": lambda: big_schema_file([2**33, 2**33]),
    "WrongFile/zero-beside-huge": lambda: big_schema_file([0, 2**62, 2**62]),
    "WrongFile/negative": lambda: big_schema_file([-1, -5]),
    "WrongFile/float-length": lambda: big_schema_file([1.5]),
    "WrongFile/true-length": lambda: big_schema_file([True]),
    "WrongFile/many-dimensions": lambda: big_schema_file([1] * 17),
    "WrongFile/unknown-kind": lambda: big_schema_file([2], "complex64"),
    "WrongFile/name-twice": lambda: tern_with('{"metadata":{},"tensors":[["w","bool",[1]],["w","bool",[1]]]}'),
    "WrongFile/metadata-number": lambda: tern_with('{"metadata":{"a":1},"tensors":[]}'),
}


def write() -> None:
    for suffix, attacks in ((".bin", ATTACKS), (".tern", FILES)):
        for name, make in attacks.items():
            path = FOLDER / (name.replace("/", "-") + suffix)
            path.write_bytes(make())


if __name__ == "__main__":
    write()

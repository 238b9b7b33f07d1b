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
from ternfed.wire import numbers as lists
from ternfed.wire.grid import GRID
from ternfed.wire.message import joined, locate
from ternfed.wire.tern import tern_bytes

FOLDER = Path(__file__).parent.parent / "attacks"
MESSAGE, CODES = small()
SCHEMA = schema_of(MESSAGE)
REFERENCE = reference_of(CODES, SCHEMA)
HELD = REFERENCE.held(GRID, SCHEMA.of(GRID.kinds))
TRITS = SCHEMA.trits
GRIDS = ["first.weight", "first.bias"]
ORDERED = np.concatenate([MESSAGE.tensors[slot.name].codes.numpy().reshape(-1) for slot in SCHEMA.ternary])
SPREAD = ans.spread_of(ORDERED)


def seal(data: bytes) -> bytes:
    """The bytes with the checksum they need."""
    return data[:12] + struct.pack("<I", crc32(data[16:], crc32(data[:12]))) + data[16:]


def rebuilt(codec: str, *, trits=None, grids=None, dense=None, scales=None, grid_codec=None, reference=None) -> bytes:
    """The sample with some sections replaced, and lengths and checksum put right."""
    numbers, sections = locate(encode(MESSAGE, SCHEMA, codec=codec, reference=reference), SCHEMA)
    changes = {
        "ternary": {"stream": trits, "front": scales},
        "grid": {"stream": grids, "codec": grid_codec},
        "dense": {"stream": dense},
    }
    for name, change in changes.items():
        wanted = {key: value for key, value in change.items() if value is not None}
        sections[name] = sections[name]._replace(**wanted)
    return joined(SCHEMA.digest, numbers, sections.values())


def section(codec: str, name: str, reference=None) -> bytes:
    data = encode(MESSAGE, SCHEMA, codec=codec, reference=reference)
    return bytes(locate(data, SCHEMA).sections[{"trits": "ternary"}.get(name, name)].stream)


def frame(content: bytes, **options) -> bytes:
    options = {"write_content_size": 1, "write_checksum": 0, **options}
    parameters = zstandard.ZstdCompressionParameters.from_level(1, format=zstandard.FORMAT_ZSTD1_MAGICLESS, **options)
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


def claims(size: int) -> bytes:
    """A frame header that claims `size` bytes, then one empty last block."""
    return bytes([0xE0]) + struct.pack("<Q", size) + b"\x01\x00\x00"


NUMBERS = 16
"""Where the numbers of the sample start."""
TAG = NUMBERS + 16
"""Where its first section starts: the trits, with their tag."""


def with_length(length: bytes) -> bytes:
    """The sample with another length of its trits, which take 22 bytes and so one byte of length."""
    data = good()
    return seal(data[: TAG + 1] + length + data[TAG + 2 :])


def tags() -> dict[str, int]:
    """Where the tag of each section of the sample stands."""
    out, at = {}, TAG
    for name, coded in locate(good(), SCHEMA).sections.items():
        out[name] = at
        at += 1 + len(varint.write(len(coded.stream))) + len(coded.front) + len(coded.stream)
    return out


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
    return b"\xf3TM\x02" + struct.pack("<I", crc32(header)) + varint.write(len(header)) + header + body


def good(codec: str = "base3", reference=None) -> bytes:
    return encode(MESSAGE, SCHEMA, codec=codec, reference=reference)


def bool_plane(value: int) -> bytes:
    dense = section("base3", "dense")
    return dense[:-21] + bytes([value]) * 21


EXPONENTS = np.concatenate([MESSAGE.tensors[name].exponents.numpy().reshape(-1) for name in GRIDS]).astype(np.int32)
CODED = np.concatenate([MESSAGE.tensors[name].codes.numpy().reshape(-1) for name in GRIDS])
OUTWARDS = int(np.sign(CODED[5])) * (2**24 - 1)
"""A difference that leads beyond the largest code."""


def gridded(
    exponents=EXPONENTS,
    codes=CODED,
    *,
    base: int = 0,
    groups: bytes = b"\x01",
    models=None,
    below=(),
    more: bytes = b"",
) -> bytes:
    """The stream of the sample's grids with anything wrong that one likes, without a reference."""
    parts = [np.asarray(part, np.int32) for part in (exponents - base, codes)]
    true = [lists.histogram([part]).best() for part in parts]
    coder = constriction.stream.stack.AnsCoder(np.array(below, np.uint32))
    for part, model in zip(reversed(parts), reversed(true), strict=True):
        lists.push(coder, part, model)
    said = [model.write() for model in true] if models is None else models
    stream = coder.get_compressed().astype("<u4").tobytes().rstrip(b"\0")
    return bytes([base + 126]) + groups + b"".join(said) + stream + more


def model(fine: int, low: int, high: int, counts: list[int]) -> bytes:
    return b"".join(varint.write(number) for number in [8 * low + fine - 1, high, *counts])


def planes(exponents: bytes = bytes([118]) * 13, code: int = 0) -> bytes:
    """The sample's grids as raw planes, all codes alike."""
    return exponents + b"".join(b"\0" + bytes([byte]) * 72 for byte in struct.pack("<I", code))


def changed(numbers: np.ndarray, value: int) -> np.ndarray:
    """The numbers with another one in the middle."""
    out = numbers.copy()
    out[5] = value
    return out


def grids(stream: bytes, codec: int = 2, reference=None) -> bytes:
    return rebuilt("base3", grids=stream, grid_codec=codec, reference=reference)


ATTACKS: dict[str, Callable[[], bytes]] = {
    "Truncated/nothing": lambda: b"",
    "Truncated/magic-only": lambda: b"\xf3TF",
    "Truncated/header": lambda: good()[:15],
    "Truncated/no-numbers": lambda: good()[:NUMBERS],
    "Truncated/no-sections": lambda: good()[:TAG],
    "Truncated/half": lambda: good("ans")[:90],
    "Truncated/last-byte": lambda: good("zstd")[:-1],
    "Truncated/reference-digest": lambda: good("ans", REFERENCE)[: TAG + 5],
    "Truncated/trits-said-to-be-huge": lambda: with_length(varint.write(2**55)),
    "Truncated/base3-short": lambda: rebuilt("base3", trits=section("base3", "trits")[:-1]),
    "Truncated/ans-empty": lambda: rebuilt("ans", trits=b""),
    "Truncated/ans-no-counts": lambda: rebuilt("ans", trits=b"\x00"),
    "Truncated/plane-said-to-be-long": lambda: rebuilt("base3", dense=varint.write(2**40) + b"xx"),
    "Truncated/no-planes": lambda: rebuilt("base3", dense=b""),
    "Truncated/grid-empty": lambda: grids(b""),
    "Truncated/grid-no-groups": lambda: grids(b"\x76"),
    "Truncated/grid-ends-in-groups": lambda: grids(b"\x76\x02"),
    "Truncated/grid-no-models": lambda: grids(b"\x76\x01"),
    "Truncated/grid-ends-in-counts": lambda: grids(b"\x76\x01" + model(1, 3, 3, [1, 1])),
    "Truncated/grid-planes-no-exponents": lambda: grids(bytes(12), 1),
    "Truncated/grid-planes-short": lambda: grids(planes()[:-1], 1),
    "TrailingBytes/one": lambda: good() + b"\0",
    "TrailingBytes/grid-word": lambda: grids(gridded(below=[7, 7])),
    "TrailingBytes/grid-zero-word": lambda: grids(gridded(more=bytes(8))),
    "TrailingBytes/grid-planes": lambda: grids(planes() + b"\0", 1),
    "TrailingBytes/twice": lambda: good("ans") * 2,
    "TrailingBytes/base3-long": lambda: rebuilt("base3", trits=section("base3", "trits") + b"\x79"),
    "TrailingBytes/dense": lambda: rebuilt("base3", dense=section("base3", "dense") + b"\0"),
    "TrailingBytes/ans-word": lambda: rebuilt("ans", trits=pushed(1, SPREAD, [7, 7])),
    "TrailingBytes/ans-zero-word": lambda: rebuilt("ans", trits=section("ans", "trits") + bytes(8)),
    "WrongMagic/text": lambda: b"PK\x03\x04" + good()[4:],
    "WrongMagic/pickle": lambda: b"\x80\x04\x95" + bytes(40),
    "WrongVersion/zero": lambda: flip(good(), 3, 2),
    "WrongVersion/one": lambda: flip(good(), 3, 3),
    "WrongVersion/future": lambda: flip(good(), 3, 1),
    "WrongCodec/zero": lambda: seal(flip(good(), TAG, 1)),
    "WrongCodec/unknown": lambda: seal(flip(good(), TAG, 0x08)),
    "WrongCodec/flag": lambda: seal(flip(good(), TAG, 0x80)),
    "WrongCodec/base3-with-reference": lambda: seal(flip(good(), TAG, 0x10)),
    "WrongCodec/grid-unknown": lambda: seal(flip(good(), tags()["grid"], 0x01)),
    "WrongCodec/grid-flag": lambda: seal(flip(good(), tags()["grid"], 0x20)),
    "WrongCodec/grid-planes-with-reference": lambda: seal(flip(grids(planes(), 1), tags()["grid"], 0x10)),
    "WrongCodec/dense-unknown": lambda: seal(flip(good(), tags()["dense"], 0x02)),
    "WrongCodec/dense-with-reference": lambda: seal(flip(good(), tags()["dense"], 0x10)),
    "WrongCodec/grouping": lambda: rebuilt("ans", trits=b"\x07" + section("ans", "trits")[1:]),
    "WrongSchema/other": lambda: seal(flip(good(), 4)),
    "WrongReference/other": lambda: seal(flip(good("ans", REFERENCE), TAG + 1)),
    "WrongReference/other-grids": lambda: seal(
        flip(good("base3", REFERENCE), good("base3", REFERENCE).index(HELD.digest))
    ),
    "WrongChecksum/number": lambda: flip(good(), NUMBERS + 3),
    "WrongChecksum/itself": lambda: flip(good(), 12),
    "WrongChecksum/last": lambda: flip(good("zstd"), len(good("zstd")) - 1),
    "ImpossibleCount/varint-endless": lambda: with_length(b"\xff" * 9),
    "ImpossibleCount/varint-not-shortest": lambda: with_length(b"\x96\x00"),
    "ImpossibleCount/too-many": lambda: rebuilt("ans", trits=counts(TRITS, 1)),
    "ImpossibleCount/far-too-many": lambda: rebuilt("ans", trits=counts(2**55, 2**55)),
    "ImpossibleCount/too-many-in-a-context": lambda: rebuilt("ans", trits=counts(TRITS, 0), reference=REFERENCE),
    "ImpossibleCount/no-groups": lambda: grids(gridded(groups=b"\x00")),
    "ImpossibleCount/too-many-groups": lambda: grids(gridded(groups=b"\x03\x04")),
    "ImpossibleCount/groups-without-end": lambda: grids(gridded(groups=varint.write(2**55))),
    "ImpossibleCount/too-many-buckets": lambda: grids(gridded(models=[model(1, 0, 2**40, [])])),
    "ImpossibleCount/too-many-below": lambda: grids(gridded(models=[model(8, 2**40, 0, [])])),
    "ImpossibleCount/too-many-numbers": lambda: grids(gridded(models=[model(1, 1, 1, [7, 7])])),
    "ImpossibleCount/far-too-many-numbers": lambda: grids(gridded(models=[model(1, 1, 1, [2**55, 2**55])])),
    "ImpossibleCount/empty-bucket-at-the-end": lambda: grids(gridded(models=[model(1, 1, 1, [1, 0])])),
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
    "WrongProbabilities/other-numbers": lambda: grids(
        gridded(models=[lists.histogram([EXPONENTS]).best().write(), model(2, 1, 1, [30, 30])])
    ),
    "WrongProbabilities/no-numbers": lambda: grids(b"\x76\x01" + model(1, 1, 1, [1, 11]) + model(1, 0, 1, [1])),
    "WrongValue/bool": lambda: rebuilt("base3", dense=bool_plane(2)),
    "WrongValue/code-too-large": lambda: grids(gridded(codes=changed(CODED, 2**24 + 1))),
    "WrongValue/code-too-small": lambda: grids(gridded(codes=changed(CODED, -(2**25)))),
    "WrongValue/code-too-large-in-planes": lambda: grids(planes(code=2**25 + 2), 1),
    "WrongValue/code-of-32-bits-in-planes": lambda: grids(planes(code=2**32 - 1), 1),
    "WrongValue/exponent-too-large": lambda: grids(gridded(changed(EXPONENTS, 101))),
    "WrongValue/exponent-too-small": lambda: grids(gridded(changed(EXPONENTS, -127))),
    "WrongValue/exponent-far-away": lambda: grids(gridded(changed(EXPONENTS, 2**25))),
    "WrongValue/base-too-large": lambda: grids(gridded(EXPONENTS * 0 + 129, base=129)),
    "WrongValue/exponent-in-planes": lambda: grids(planes(bytes([227]) * 13), 1),
    "WrongValue/sum-too-large": lambda: grids(gridded(codes=changed(CODED, OUTWARDS)), reference=REFERENCE),
    "WrongValue/group-bits-left": lambda: grids(gridded(groups=b"\x02\x06")),
}

FILES: dict[str, Callable[[], bytes]] = {
    "Truncated/nothing": lambda: b"",
    "Truncated/header": lambda: b"\xf3TM\x02" + bytes(4) + varint.write(2**50),
    "Truncated/no-message": lambda: tern_bytes(MESSAGE.tensors)[:-40],
    "TrailingBytes/one": lambda: tern_bytes(MESSAGE.tensors) + b"\0",
    "WrongMagic/message": lambda: good(),
    "WrongVersion/one": lambda: flip(tern_bytes(MESSAGE.tensors), 3, 3),
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
    "WrongFile/terabyte-of-codes": lambda: big_schema_file([2**20, 2**18], "grid"),
    "WrongFile/terabyte-of-exponents": lambda: big_schema_file([2**40, 0], "grid_rows"),
    "WrongFile/rows-of-a-number": lambda: big_schema_file([], "grid_rows"),
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

"""Fuzz `decode`: mutated messages and files must be refused by name or give a valid message. Nothing else, ever.

    ternfed bench fuzz-wire --count 1000000 --seed 0

Small messages of all codecs, with and without a reference, and .tern files, are damaged in one to six places: bits,
bytes, varints, pieces cut out, doubled or taken from another message. In half of the messages the damage is done within
a section and the lengths are put right again; nine in ten get a correct checksum, and a damaged .tern header the digest
that goes with it: otherwise nothing behind those checks would be reached. On every `--sample`-th input the memory that
Python and numpy allocate is measured as well, and the resident size of the process is compared at the end. A finding
names its seed and the bytes.
"""

from __future__ import annotations

import random
import resource
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch

from ternfed.bench.tables import markdown
from ternfed.quantize.ternary import Ternary
from ternfed.wire import (
    Message,
    Reference,
    Schema,
    Value,
    WireError,
    decode,
    encode,
    largest,
    read_header,
    reference_of,
    schema_of,
    trits_of,
    varint,
)
from ternfed.wire.message import locate
from ternfed.wire.tern import parse_tern, read_front, tern_bytes

Case = tuple[str, bytes, Schema | None, Reference | None]
EDGES = [0, 1, 2, 3, 0x7F, 0x80, 0xF2, 0xF3, 0xFE, 0xFF]
MOST_MEMORY = 200_000
"""Bytes for a message. The largest sample holds 2,000 trits and 2 kB of dense tensors; the rest is tracebacks."""


class Finding(RuntimeError):
    """An input that gave something else than a valid message or an error with a name."""


@dataclass(frozen=True)
class Fuzzed:
    """How often each outcome occurred, the longest that one input took, and the most memory that one needed."""

    seed: int
    outcomes: Counter[str]
    slowest: float
    memory: Counter[str]
    """Bytes by codec."""


def ternary(rng: np.random.Generator, shape: tuple[int, ...], zeros: float) -> Ternary:
    codes = np.where(rng.random(shape) < zeros, 0, rng.choice([-1, 1], shape)).astype(np.int8)
    scales = torch.from_numpy(rng.random(2).astype(np.float32))
    return Ternary(torch.from_numpy(codes), scales[0], scales[rng.integers(2)])


def samples() -> list[Case]:
    """Good messages of different sizes and makes, each with what its reader needs."""
    rng = np.random.default_rng(0)
    cases: list[Case] = []
    for shapes, zeros in (([(7, 9), (40,)], 0.3), ([(2000,)], 0.02), ([(30, 20), (0, 3), (1,)], 0.95), ([], 0.0)):
        trits = {f"w{i}": ternary(rng, s, zeros) for i, s in enumerate(shapes)}
        tensors: dict[str, Value] = {**trits}
        reference = {
            name: torch.where(torch.rand(value.codes.shape) < 0.1, -value.codes, value.codes)
            for name, value in trits.items()
        }
        tensors |= {
            "bias": torch.from_numpy(rng.normal(0, 0.1, 300).astype(np.float32)),
            "half": torch.from_numpy(rng.normal(0, 0.1, 50).astype(np.float16)),
            "seen": torch.tensor(12345),
            "mask": torch.from_numpy(rng.random(40) < 0.5),
        }
        message = Message(tensors, {"samples": 600.0})
        schema = schema_of(message)
        held = reference_of(reference, schema)
        cases += [
            (codec, encode(message, schema, codec=codec, reference=given), schema, held)
            for codec in ("base3", "zstd", "ans")
            for given in (None, held)
        ]
        cases.append(("tern", tern_bytes(tensors, {"note": "a model"}), None, None))
    return cases


def mutate(data: bytes, other: bytes, draw: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 3, 6])):
        at = draw.randrange(len(out) + 1)
        # Half of the edits go where the structure is.
        if draw.random() < 0.5:
            at = min(at, draw.randrange(80))
        span = draw.choice([1, 1, 2, 4, 8, 64])
        match draw.randrange(8):
            case 0 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(out):
                out[at] = draw.choice(EDGES)
            case 2:
                out[at : at + span] = draw.randbytes(span)
            case 3:
                out[at:at] = draw.randbytes(span)
            case 4:
                del out[at : at + span]
            case 5:
                out[at:at] = out[at : at + span]
            case 6:
                out[at : at + span] = other[at : at + span]
            case 7:
                out[at : at + 1] = varint.write(draw.getrandbits(draw.choice([7, 14, 31, 55])))
    return bytes(out)


def mutate_section(data: bytes, schema: Schema, other: bytes, draw: random.Random) -> bytes:
    """Damage one section and state the lengths that belong to it."""
    header = read_header(data)
    parts = [bytes(part) for part in locate(memoryview(data), header, schema)]
    chosen = draw.choice([0, 1, 2, 2, 2, 3, 3])
    parts[chosen] = mutate(parts[chosen], other[-len(parts[chosen]) :], draw)
    return data[: header.size] + varint.write(len(parts[2])) + varint.write(len(parts[3])) + b"".join(parts)


def seal(data: bytes, start: int = 0) -> bytes:
    """Put the checksum of the message that begins at `start` right."""
    if len(data) < start + 18:
        return data
    head, tail = data[start : start + 14], data[start + 18 :]
    return data[: start + 14] + struct.pack("<I", crc32(tail, crc32(head))) + tail


def seal_file(data: bytes) -> bytes:
    """Put the checksums of a .tern file's header and message right, and the digest of its schema."""
    try:
        length, start = varint.read(memoryview(data), 8)
        data = data[:4] + struct.pack("<I", crc32(data[start : start + length])) + data[8:]
        schema, _, body = read_front(data)
    except WireError:
        return data
    return seal(data[: body + 6] + schema.digest + data[body + 14 :], body)


def attempt(data: bytes, schema: Schema | None, reference: Reference | None) -> str:
    """The name of the error, or "valid"; anything else is a finding and is raised."""
    try:
        if schema is None:
            message = Message(parse_tern(data)[0])
            schema = schema_of(message)
        else:
            message = decode(data, schema, reference=reference)
    except WireError as problem:
        if type(problem) is WireError:
            raise AssertionError("an error without a name") from problem
        return type(problem).__name__
    if schema_of(message) != schema:
        raise AssertionError("a message that does not fit its schema")
    for value in message.tensors.values():
        codes = trits_of(value)
        if codes is not None:
            if codes.numel() and int(codes.abs().max()) > 1:
                raise AssertionError("a code outside -1, 0, +1")
            if not 0 <= largest(value) < float("inf"):
                raise AssertionError("an impossible scale")
    return "valid"


def run(count: int, seed: int = 0, sample: int = 50, tell: Callable[[str], None] | None = None) -> Fuzzed:
    """Try `count` damaged inputs; Finding where one is neither refused by name nor valid, or needs too much memory."""
    cases, draw = samples(), random.Random(seed)
    outcomes: Counter[str] = Counter()
    most: Counter[str] = Counter()
    slowest, began = 0.0, time.perf_counter()
    for number in range(count):
        kind, data, schema, reference = draw.choice(cases)
        other = draw.choice(cases)[1]
        if schema is not None and draw.random() < 0.5:
            data = mutate_section(data, schema, other, draw)
        else:
            data = mutate(data, other, draw)
        if draw.random() < 0.9:
            data = seal_file(data) if kind == "tern" else seal(data)
        measured = number % sample == 0
        if measured:
            tracemalloc.start()
        start = time.perf_counter()
        where = f"seed {seed}, input {number}, {kind}"
        try:
            outcomes[attempt(data, schema, reference)] += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic in a library written in Rust is no Exception
            raise Finding(f"{where}: {type(error).__name__}: {error}: {data.hex()}") from error
        slowest = max(slowest, time.perf_counter() - start)
        if measured:
            needed = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            # A .tern file of L bytes may hold 2^20 + 1024 L trits and dense bytes, each three times at most.
            allowed = MOST_MEMORY if kind != "tern" else 6 * (2**20 + 1024 * len(data))
            if needed > allowed:
                raise Finding(f"{where}: {needed} bytes allocated: {data.hex()}")
            most[kind] = max(most[kind], needed)
        if tell is not None and (number + 1) % 100_000 == 0:
            rate = (number + 1) / (time.perf_counter() - began)
            tell(f"{number + 1:,} inputs, {rate:,.0f} per second")
    return Fuzzed(seed, outcomes, slowest, most)


def run_long(count: int, seed: int, sample: int, tell: Callable[[str], None] | None = None) -> tuple[Fuzzed, int]:
    """The same, and by how many bytes the process grew meanwhile."""
    torch.manual_seed(0)
    run(2_000, seed + 1, 10)  # so that libraries have allocated what they keep
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fuzzed = run(count, seed, sample, tell)
    return fuzzed, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def table(fuzzed: Fuzzed, grown: int) -> str:
    """What was found, and how often each outcome occurred."""
    lines = [
        f"{fuzzed.outcomes.total():,} mutated inputs, seed {fuzzed.seed}: no crash, no other exception; "
        f"slowest {fuzzed.slowest * 1e3:.1f} ms; most memory in bytes {dict(fuzzed.memory)}; "
        f"resident size grew by {grown // 1024:,} kB",
        "",
        markdown(("outcome", "inputs"), [(name, f"{times:,}") for name, times in fuzzed.outcomes.most_common()]),
    ]
    return "\n".join(lines)

"""Fuzz `decode`: mutated messages and files must be refused by name or give a valid message. Nothing else, ever.

    ternfed bench fuzz-wire --count 1000000 --seed 0

Small messages of all forms and codecs, with and without a reference, and .tern files, are damaged in one to six places:
bits, bytes, varints, pieces cut out, doubled or taken from another message. In half of the messages the damage is done
within a section and the lengths are put right again; nine in ten get a correct checksum, and a damaged .tern header the
digest that goes with it: otherwise nothing behind those checks would be reached. On every `--sample`-th input the
memory that Python and numpy allocate is measured as well, and the resident size of the process is compared at the end.
A finding names its seed and the bytes.
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
from ternfed.quantize.grid import HIGHEST, LARGEST, LOWEST, Grid
from ternfed.quantize.ternary import Ternary
from ternfed.wire import (
    Message,
    Reference,
    Schema,
    Value,
    WireError,
    decode,
    encode,
    form_of,
    largest,
    reference_of,
    schema_of,
    trits_of,
    varint,
)
from ternfed.wire.message import assemble, joined, locate
from ternfed.wire.tern import parse_tern, read_front, tern_bytes

Case = tuple[str, bytes, Schema | None, Reference | None]
EDGES = [0, 1, 2, 3, 0x7F, 0x80, 0xF2, 0xF3, 0xFE, 0xFF]
MOST_MEMORY = 200_000
"""Bytes for a message. The largest sample holds 2,000 trits, 700 codes and 2 kB of floats; the rest is tracebacks."""


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


def grid(rng: np.random.Generator, shape: tuple[int, ...], size: float, rows: bool) -> Grid:
    """Codes of about this size, with one that is as large as can be."""
    codes = np.clip(rng.normal(0, size, shape).round(), -LARGEST, LARGEST).astype(np.int32)
    if codes.size > 50 and size > 1:
        codes.reshape(-1)[7] = LARGEST
    exponents = rng.integers(-9, -5, shape[:1] if rows else ()).astype(np.int16)
    return Grid(torch.from_numpy(codes), torch.from_numpy(np.asarray(exponents)))


def samples() -> list[Case]:
    """Good messages of different sizes and makes, each with what its reader needs."""
    rng = np.random.default_rng(0)
    cases: list[Case] = []
    for shapes, zeros in (([(7, 9), (40,)], 0.3), ([(2000,)], 0.02), ([(30, 20), (0, 3), (1,)], 0.95), ([], 0.0)):
        trits = {f"w{i}": ternary(rng, s, zeros) for i, s in enumerate(shapes)}
        grids = {
            "g0": grid(rng, (20, 30), 0.7, True),
            "g1": grid(rng, (64,), 40.0, False),
            "g2": grid(rng, (3,), 1e6, False),
            "g3": grid(rng, (5, 0), 1.0, True),
        }
        tensors: dict[str, Value] = {**trits, **grids}
        reference = {
            name: torch.where(torch.rand(value.codes.shape) < 0.1, -value.codes, value.codes)
            for name, value in trits.items()
        }
        reference |= {name: grids[name].dense() + 0.001 * torch.randn(grids[name].codes.shape) for name in ("g0", "g2")}
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
        cases.append(("raw", assemble(message, schema, reference=held, codec="ans", compress=False), schema, held))
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
    numbers, sections = locate(data, schema)
    name = draw.choice([*sections, *sections])
    coded = sections[name]
    front, stream = bytes(coded.front), bytes(coded.stream)
    if draw.random() < 0.25:
        sections[name] = coded._replace(front=mutate(front, other[-len(front) :], draw))
    else:
        sections[name] = coded._replace(parts=mutate(stream, other[-len(stream) :], draw))
    return joined(schema.digest, numbers, sections.values())


def seal(data: bytes, start: int = 0) -> bytes:
    """Put the checksum of the message that begins at `start` right."""
    if len(data) < start + 16:
        return data
    head, tail = data[start : start + 12], data[start + 16 :]
    return data[: start + 12] + struct.pack("<I", crc32(tail, crc32(head))) + tail


def seal_file(data: bytes) -> bytes:
    """Put the checksums of a .tern file's header and message right, and the digest of its schema."""
    try:
        length, start = varint.read(memoryview(data), 8)
        data = data[:4] + struct.pack("<I", crc32(data[start : start + length])) + data[8:]
        schema, _, body = read_front(data)
    except WireError:
        return data
    return seal(data[: body + 4] + schema.digest + data[body + 12 :], body)


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
        elif (parts := form_of(value).parts(value)).keys() == set(Grid._fields):
            codes, exponents = parts["codes"], parts["exponents"]
            if codes.numel() and int(codes.abs().max()) > LARGEST:
                raise AssertionError("a code that is too large")
            if exponents.numel() and not LOWEST <= int(exponents.min()) <= int(exponents.max()) <= HIGHEST:
                raise AssertionError("an impossible exponent")
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
            # A .tern file of L bytes may hold 2^20 + 1024 L trits and as many bytes of grids and of dense tensors.
            allowed = MOST_MEMORY if kind != "tern" else 12 * (2**20 + 1024 * len(data))
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

"""How small and how fast the wire is, against entropy, memcpy and what others do with the same trits.

Everything is measured in one run, on one thread, and speeds are megabytes of int8 trits per second: a megabyte is a
million weights. `ternfed bench wire` prints the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ternfed.bench.measure import best, peak
from ternfed.bench.rivals import codecs as every_codec
from ternfed.bench.rivals import golomb_bits
from ternfed.bench.tables import Promise, markdown
from ternfed.bench.wire_grid import GridRow, grid_promise, grid_rows, grid_table
from ternfed.models import resnet18
from ternfed.quantize.ternary import Ternary
from ternfed.sweep.trial import one_thread
from ternfed.wire import (
    Message,
    Reference,
    Schema,
    Value,
    ans,
    decode,
    encode,
    reference_of,
    schema_of,
    sections_in,
    trits_of,
    zstd,
)
from ternfed.wire import planes as planes_of
from ternfed.wire.held import HeldTrits, Trits
from ternfed.wire.message import locate
from ternfed.wire.ternary import TERNARY
from ternfed.wire.trits import Codes, flat_codes

SHARES = (0.002, 0.03, 0.33, 0.7, 0.99)
DRIFTS = (0.5, 0.1, 0.01, 0.001, 0.0001, 0.00001)
RESNET_TRITS = 602_112
EPOCH_STEPS = 157
"""Steps of 64 images in one of five equal parts of CIFAR-10."""


@dataclass(frozen=True)
class CodecRow:
    """One codec on i.i.d. trits with one share of zeros."""

    codec: str
    zeros: float
    entropy: float
    bits: float
    encode: float
    """MB/s"""
    decode: float
    """MB/s"""
    memcpy: float
    """MB/s, in the same run"""


@dataclass(frozen=True)
class ReferenceRow:
    """One message of ResNet18*'s size given trits that both sides hold: bits per weight in each way of coding it."""

    drift: float
    changed: float
    entropy: float
    conditional: float
    contexts: float
    difference: float
    zstd: float
    golomb: float
    encode: float
    decode: float


@dataclass(frozen=True)
class MessageRow:
    """A whole message: bytes, what of them is header and model, and what it takes to write and read it."""

    name: str
    trits: int
    dense: int
    bytes: int
    overhead: float
    """Bytes beyond the conditional entropy of the trits and the dense section, scales and numbers included."""
    ratio: float
    """How many times smaller than float32."""
    encode_ms: float
    decode_ms: float
    memory: float
    """Peak extra memory of the worse direction, beyond three times the dense bytes, in trits."""


@dataclass(frozen=True)
class DenseRow:
    """Gaussian weights as they are, and through zstd in three ways: bytes."""

    kind: str
    raw: int
    whole: int
    """One frame over all planes."""
    planes: int
    """A frame per plane, those that do not shrink left raw."""
    long_matches: int
    """The same without matches under seven bytes: the format's way."""


@dataclass(frozen=True)
class Report:
    """Everything that `table` prints."""

    size: int
    codecs: tuple[CodecRow, ...]
    references: tuple[ReferenceRow, ...]
    messages: tuple[MessageRow, ...]
    grids: tuple[GridRow, ...]
    dense: tuple[DenseRow, ...]
    promises: tuple[Promise, ...]


def run(size: int = 50_000_000, *, repeats: int = 3, epoch: bool = True) -> Report:
    """Measure everything on arrays of `size` trits; `epoch` also times training steps of ResNet18*."""
    with one_thread():
        codecs = tuple(row for zeros in SHARES for row in codec_rows(size, zeros, repeats))
        references = tuple(reference_row(drift, repeats) for drift in DRIFTS)
        messages = tuple(message_rows(size // 5, repeats))
        dense = tuple(dense_row(kind) for kind in ("float32", "float16", "bfloat16"))
        grids = tuple(grid_rows(repeats))
        promises = (*promises_of(codecs, references, messages, epoch), grid_promise(grids))
        return Report(size, codecs, references, messages, grids, dense, promises)


def codec_rows(size: int, zeros: float, repeats: int) -> list[CodecRow]:
    """Every codec on the same i.i.d. trits."""
    rng = np.random.default_rng(0)
    codes = draw(rng, size, zeros)
    target = np.empty_like(codes)
    target[:] = 0
    memcpy = size / best(lambda: np.copyto(target, codes), repeats + 2)[0] / 1e6
    entropy = ans.entropy_bits(np.array(np.unique(codes, return_counts=True)[1])) / size
    rows = []
    for name, most, write, read in every_codec():
        part = codes[:most] if most else codes
        seconds, data = best(partial(write, part), 1 if most else repeats)
        back_seconds, back = best(partial(read, data, len(part)), 1 if most else repeats)
        if not np.array_equal(back, part):
            raise AssertionError(f"{name} changed its trits")
        bits = 8 * len(data) / len(part)
        rate, back_rate = len(part) / seconds / 1e6, len(part) / back_seconds / 1e6
        rows.append(CodecRow(name, zeros, entropy, bits, rate, back_rate, memcpy))
    return rows


def reference_row(drift: float, repeats: int, size: int = RESNET_TRITS) -> ReferenceRow:
    """Gaussian weights that moved by `drift` standard deviations, a third of them under the threshold."""
    rng = np.random.default_rng(1)
    latent = rng.normal(size=size)
    before, codes = (cut(latent + shift) for shift in (0.0, drift * rng.normal(size=size)))
    reference = HeldTrits(before, (size,))
    given = Trits(codes, (size,), reference)
    difference = ((codes - before + 1) % 3 - 1).astype(np.int8)
    ans.encode(given)  # the reference's places are found once for many messages
    seconds, data = best(lambda: ans.encode(Trits(codes, (size,), reference)), 3 * repeats)
    view = memoryview(data)
    back_seconds, _ = best(lambda: ans.decode(view, (size,), reference), 3 * repeats)
    return ReferenceRow(
        drift=drift,
        changed=float(np.count_nonzero(difference)) / size,
        entropy=ans.entropy_bits(given.counts.sum(axis=(0, 1))) / size,
        conditional=ans.entropy_bits(given.counts) / size,
        contexts=8 * len(data) / size,
        difference=8 * len(ans.encode(Trits(difference, (size,)))) / size,
        zstd=8 * len(zstd.encode(given)) / size,
        golomb=golomb_bits(difference) / size,
        encode=size / seconds / 1e6,
        decode=size / back_seconds / 1e6,
    )


def dense_row(kind: str, size: int = 6_000) -> DenseRow:
    """The size of a small network's layer, normal with a std of 0.05."""
    weight = torch.from_numpy(np.random.default_rng(3).normal(0, 0.05, size)).to(getattr(torch, kind))
    planes = weight.view(torch.uint8).numpy().reshape(size, -1).T.copy()
    sizes = [
        sum(min(len(zstd.frame(plane, min_match=shortest)), size) for plane in planes)
        for shortest in (0, planes_of.MIN_MATCH)
    ]
    return DenseRow(kind, planes.size, len(zstd.frame(planes.reshape(-1), min_match=0)), *sizes)


def message_rows(size: int, repeats: int) -> list[MessageRow]:
    """Uploads of the paper's MLP and of ResNet18*, early and late in a run, and one of `size` weights."""
    late = 0.0001
    return [
        message_row("MLP", [(20, 30)], [(30, 784), (10, 20)], 0.1, repeats),
        message_row("ResNet18*, trits moving", _resnet_shapes(), _resnet_others(), 0.3, repeats),
        message_row("ResNet18*, trits settled", _resnet_shapes(), _resnet_others(), late, repeats),
        message_row(f"{size:,} weights, no reference", [(size // 2,), (size - size // 2,)], [(1_000,)], None, repeats),
    ]


def message_row(
    name: str, ternary: Sequence[tuple[int, ...]], dense: Sequence[tuple[int, ...]], drift: float | None, repeats: int
) -> MessageRow:
    """One upload with these shapes; without `drift` there is no reference."""
    rng = np.random.default_rng(2)
    tensors: dict[str, Value] = {}
    before: dict[str, torch.Tensor] = {}
    for number, shape in enumerate(ternary):
        latent = rng.normal(size=shape)
        before[f"t{number}"] = torch.from_numpy(cut(latent))
        codes = torch.from_numpy(cut(latent + (drift or 0) * rng.normal(size=shape)))
        tensors[f"t{number}"] = Ternary(codes, *torch.tensor([0.05 + 0.01 * number] * 2))
    for number, shape in enumerate(dense):
        tensors[f"d{number}"] = torch.from_numpy(rng.normal(0, 0.05, shape).astype(np.float32))
    message = Message(tensors, {"samples": 600.0, "loss": 0.5})
    schema = schema_of(message)
    reference = None if drift is None else reference_of(before, schema)
    data = encode(message, schema, reference=reference)
    seconds, _ = best(lambda: encode(message, schema, reference=reference), 3 * repeats)
    back_seconds, _ = best(lambda: decode(data, schema, reference=reference), 3 * repeats)
    memory = max(
        peak(lambda: encode(message, schema, reference=reference)),
        peak(lambda: decode(data, schema, reference=reference)),
    )
    floats = schema.size - 4 * schema.trits
    return MessageRow(
        name=name,
        trits=schema.trits,
        dense=floats,
        bytes=len(data),
        overhead=_overhead(data, message, schema, reference),
        ratio=schema.size / len(data),
        encode_ms=1e3 * seconds,
        decode_ms=1e3 * back_seconds,
        memory=max(0, memory - 3 * floats) / schema.trits,
    )


def _overhead(data: bytes, message: Message, schema: Schema, reference: Reference | None) -> float:
    """Bytes beyond the entropy, the dense stream, four bytes per scale and eight per number."""
    trits = {name: trits_of(value) for name, value in message.tensors.items()}
    codes = np.concatenate([flat_codes(name, part) for name, part in trits.items() if part is not None])
    given = locate(data, schema).sections["ternary"].given
    used = reference.held(TERNARY, schema.ternary) if reference and given else None
    counts = Trits(codes, schema.sizes, used).counts.sum(axis=1)
    floats = sections_in(data, schema).get("dense", 0)
    return len(data) - floats - 4 * len(schema.ternary) - 8 * len(schema.numbers) - ans.entropy_bits(counts) / 8


def promises_of(
    codecs: Sequence[CodecRow], references: Sequence[ReferenceRow], messages: Sequence[MessageRow], epoch: bool
) -> list[Promise]:
    """The promises, each with its worst case."""
    mine = [row for row in codecs if row.codec == "ans"]
    packed = [row for row in codecs if row.codec == "base3"]
    above = max(row.bits / row.entropy for row in mine) - 1
    # 64 bytes of a message of this size, in bits per weight, are promised for headers.
    given = max((row.contexts - 64 * 8 / RESNET_TRITS) / row.conditional for row in references) - 1
    writes, reads = min(row.encode / row.memcpy for row in packed), min(row.decode / row.memcpy for row in packed)
    headers, memory = max(row.overhead for row in messages), max(row.memory for row in messages[1:])
    out = [
        Promise("`ans` above entropy, worst share of zeros", "≤ 1%", f"{above:.2%}", above <= 0.01),
        Promise("given a reference, above conditional entropy + 64 bytes", "≤ 1%", f"{given:.2%}", given <= 0.01),
        Promise("header and model of a message", "≤ 64 bytes", f"{headers:.0f} bytes", headers <= 64),
        Promise("`base3` encoding / memcpy", "≥ 0.3", f"{writes:.2f}", writes >= 0.3),
        Promise("`base3` decoding / memcpy", "≥ 0.1", f"{reads:.2f}", reads >= 0.1),
        _rate("`ans` encoding", 300, min(row.encode for row in mine)),
        _rate("`ans` decoding", 150, min(row.decode for row in mine)),
        Promise("peak extra memory / trits", "≤ 3", f"{memory:.2f}", memory <= 3),
    ]
    if epoch:
        upload = max(row.encode_ms for row in messages if "ResNet" in row.name) / 1e3
        share = upload / (EPOCH_STEPS * resnet_step())
        out.append(Promise("encoding ResNet18*'s upload / one local epoch", "≤ 1%", f"{share:.4%}", share <= 0.01))
    return out


def _rate(what: str, promised: float, measured: float) -> Promise:
    return Promise(what, f"≥ {promised:.0f} MB/s", f"{measured:.0f} MB/s", measured >= promised)


def resnet_step() -> float:
    """Seconds of one training step of ResNet18* on 64 images of 32×32, without quantization: the quickest there is."""
    model = resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(images), labels))
        optimizer.step()

    return best(step, 2)[0]


def draw(rng: np.random.Generator, size: int, zeros: float) -> Codes:
    """i.i.d. trits, a million at a time so that the doubles behind them stay few."""
    out = np.empty(size, np.int8)
    for start in range(0, size, 1_000_000):
        part = out[start : start + 1_000_000]
        part[:] = rng.integers(0, 2, len(part), np.int8) * 2 - 1
        part[rng.random(len(part)) < zeros] = 0
    return out


def cut(latent: NDArray[np.float64]) -> Codes:
    """Trits of weights of unit variance: a third of them lies within ±0.43."""
    return (np.sign(latent) * (np.abs(latent) > 0.43)).astype(np.int8)


def _resnet_shapes() -> list[tuple[int, ...]]:
    return [(64, 64, 3, 3)] * 16 + [(64, 64)] * 3


def _resnet_others() -> list[tuple[int, ...]]:
    """Stem, classifier, and scale, shift, mean and variance of twenty batch normalizations."""
    return [(64, 3, 3, 3), (10, 64), (10,)] + [(64,)] * 80


def table(report: Report) -> str:
    """The report as the Markdown of docs/wire.md."""
    return "\n\n".join(
        [
            f"{report.size:,} i.i.d. trits, bits per weight and MB/s of trits encoding / decoding:",
            _codec_table(report.codecs),
            f"{RESNET_TRITS:,} trits given a reference, bits per weight (MB/s of `ans` at the end):",
            _reference_table(report.references),
            "Whole messages:",
            _message_table(report.messages),
            "Tensors on a grid, bits per number and MB/s of int32 codes:",
            grid_table(report.grids),
            "6,000 normal weights, bytes:",
            markdown(
                ("dtype", "raw", "one frame", "a frame per plane", "and no short matches"),
                [
                    (row.kind, *(f"{size:,}" for size in (row.raw, row.whole, row.planes, row.long_matches)))
                    for row in report.dense
                ],
            ),
            markdown(
                ("promise", "", "measured", ""),
                [
                    (row.what, row.promised, row.measured, "kept" if row.kept else "**missed**")
                    for row in report.promises
                ],
            ),
        ]
    )


def _codec_table(rows: Sequence[CodecRow]) -> str:
    shares = sorted({row.zeros for row in rows})
    found = {(row.codec, row.zeros): row for row in rows}
    firsts = [found["ans", zeros] for zeros in shares]
    codecs = [
        (f"`{name}`", *(_codec_cell(found[name, zeros]) for zeros in shares))
        for name in dict.fromkeys(row.codec for row in rows)
    ]
    return markdown(
        ("codec", *(f"{zeros:.1%} zeros" for zeros in shares)),
        [
            ("entropy", *(f"{row.entropy:.4f}" for row in firsts)),
            *codecs,
            ("memcpy", *(f"{row.memcpy:,.0f}" for row in firsts)),
        ],
    )


def _codec_cell(row: CodecRow) -> str:
    return f"{row.bits:.4f} · {row.encode:,.0f} / {row.decode:,.0f}"


def _reference_table(rows: Sequence[ReferenceRow]) -> str:
    ways = ("entropy", "conditional", "`ans`, contexts", "`ans`, difference", "`zstd`", "Golomb")
    return markdown(
        ("drift", "changed", *ways, "encode / decode"),
        [
            (
                f"{row.drift:g}σ",
                f"{row.changed:.4%}",
                *(
                    f"{bits:.5f}"
                    for bits in (row.entropy, row.conditional, row.contexts, row.difference, row.zstd, row.golomb)
                ),
                f"{row.encode:,.0f} / {row.decode:,.0f}",
            )
            for row in rows
        ],
    )


def _message_table(rows: Sequence[MessageRow]) -> str:
    return markdown(
        ("upload", "trits", "dense bytes", "bytes", "header and model", "float32 /", "encode", "decode", "memory"),
        [
            (
                row.name,
                f"{row.trits:,}",
                f"{row.dense:,}",
                f"{row.bytes:,}",
                f"{row.overhead:.0f}",
                f"{row.ratio:.1f}",
                f"{row.encode_ms:.2f} ms",
                f"{row.decode_ms:.2f} ms",
                f"{row.memory:.2f} × trits" if row.trits > 100_000 else "–",
            )
            for row in rows
        ],
    )

"""Tensors on a grid as bytes: bits per number against entropy, and speed. A part of `ternfed bench wire`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ternfed.bench.measure import best
from ternfed.bench.tables import Promise, markdown
from ternfed.quantize.grid import Grid, exponents_for, nearest_codes, on_grid
from ternfed.wire import Message, decode, encode, schema_of
from ternfed.wire.ans import entropy_bits

MLP = ((30, 784), (30,), (20,), (10, 20), (10,))
"""What is not ternary in the paper's MLP."""
RESNET = ((64, 3, 3, 3), (10, 64), (10,), *[(64,)] * 80)
"""And in ResNet18*: stem, classifier, and scale, shift, mean and variance of twenty batch normalizations."""
LARGE = ((600, 1000),)


@dataclass(frozen=True)
class GridRow:
    """One message of grids and nothing else."""

    what: str
    numbers: int
    bits: int
    """That the largest change takes."""
    entropy: float
    """Order-0, of each tensor by itself and its exponents: bits per number."""
    pooled: float
    """The same for all tensors together."""
    bytes: int
    encode: float
    """MB/s of int32 codes"""
    decode: float
    """MB/s"""

    @property
    def per_number(self) -> float:
        """Bits, of the whole message."""
        return 8 * self.bytes / self.numbers


def grid_rows(repeats: int) -> list[GridRow]:
    """Uploads of differences, and broadcasts given the last one and without it."""
    rows = [upload_row("MLP, upload", MLP, bits, rows, repeats) for bits in (2, 3, 4) for rows in (False, True)]
    rows += [upload_row("ResNet18*, upload", RESNET, bits, False, repeats) for bits in (2, 3, 4)]
    rows += [broadcast_row("MLP, broadcast", MLP, bits, held, repeats) for bits in (6, 8) for held in (True, False)]
    rows += [broadcast_row("ResNet18*, broadcast", RESNET, 8, held, repeats) for held in (True, False)]
    return [*rows, upload_row("one layer, upload", LARGE, 4, True, repeats)]


def upload_row(what: str, shapes: Sequence[tuple[int, ...]], bits: int, rows: bool, repeats: int) -> GridRow:
    """Normal differences, each tensor of another size, rounded at random."""
    source = torch.Generator().manual_seed(0)
    values = {}
    for number, shape in enumerate(shapes):
        change = torch.randn(shape, generator=source) * (0.1 + torch.rand((), generator=source))
        values[str(number)] = on_grid(change, exponents_for(_largest(change, rows), bits), source)
    name = f"{what}, a step per {'row' if rows else 'tensor'}"
    return _row(name, bits, values, {name: value.codes for name, value in values.items()}, None, repeats)


def broadcast_row(what: str, shapes: Sequence[tuple[int, ...]], bits: int, held: bool, repeats: int) -> GridRow:
    """Weights that moved by a twentieth of their spread, on grids that such a change takes `bits` on."""
    source = torch.Generator().manual_seed(0)
    values, before, coded = {}, {}, {}
    for number, shape in enumerate(shapes):
        last = torch.randn(shape, generator=source) * (0.1 + torch.rand((), generator=source))
        change = 0.05 * last.std() * torch.randn(shape, generator=source)
        steps = exponents_for(_largest(change, True), bits)
        values[str(number)] = on_grid(last + change, steps)
        before[str(number)] = on_grid(last, steps).dense()
        coded[str(number)] = values[str(number)].codes - (nearest_codes(before[str(number)], steps) if held else 0)
    name = f"{what}, {'given the last' if held else 'nothing held'}"
    return _row(name, bits, values, coded, before if held else None, repeats)


def _row(
    what: str,
    bits: int,
    values: Mapping[str, Grid],
    coded: Mapping[str, Tensor],
    reference: Mapping[str, Tensor] | None,
    repeats: int,
) -> GridRow:
    message = Message(dict(values))
    schema = schema_of(message)
    seconds, data = best(lambda: encode(message, schema, reference=reference), 3 * repeats)
    back_seconds, _ = best(lambda: decode(data, schema, reference=reference), 3 * repeats)
    numbers = sum(value.codes.numel() for value in values.values())
    steps = _entropy(torch.cat([value.exponents.reshape(-1) for value in values.values()]))
    return GridRow(
        what=what,
        numbers=numbers,
        bits=bits,
        entropy=(steps + sum(_entropy(part) for part in coded.values())) / numbers,
        pooled=(steps + _entropy(torch.cat([part.reshape(-1) for part in coded.values()]))) / numbers,
        bytes=len(data),
        encode=4 * numbers / seconds / 1e6,
        decode=4 * numbers / back_seconds / 1e6,
    )


def _largest(change: Tensor, rows: bool) -> Tensor:
    return change.abs().flatten(1).amax(1) if rows and change.dim() > 1 else change.abs().max()


def _entropy(numbers: Tensor) -> float:
    return entropy_bits(np.unique(numbers.reshape(-1).numpy(), return_counts=True)[1])


def grid_promise(rows: Sequence[GridRow]) -> Promise:
    """Of messages whose numbers are mostly those of one layer: what a small tensor needs is mostly its model."""
    layers = [row for row in rows if "ResNet" not in row.what]
    above = max((row.bytes - 64) / (row.entropy * row.numbers / 8) for row in layers) - 1
    return Promise("a layer on a grid above entropy + 64 bytes", "≤ 3%", f"{above:.2%}", above <= 0.03)


def grid_table(rows: Sequence[GridRow]) -> str:
    headings = ("message", "numbers", "bits", "entropy", "pooled", "bits per number", "bytes", "encode / decode")
    return markdown(
        headings,
        [
            (
                row.what,
                f"{row.numbers:,}",
                str(row.bits),
                f"{row.entropy:.3f}",
                f"{row.pooled:.3f}",
                f"{row.per_number:.3f}",
                f"{row.bytes:,}",
                f"{row.encode:,.0f} / {row.decode:,.0f}",
            )
            for row in rows
        ],
    )

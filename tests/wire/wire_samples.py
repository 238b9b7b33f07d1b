"""Messages that the wire tests share, and strategies that draw others."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from ternfed.quantize.grid import HIGHEST, LARGEST, LOWEST, Grid
from ternfed.quantize.ternary import Ternary
from ternfed.wire import Message
from ternfed.wire.schema import DTYPES

CODECS = ["base3", "zstd", "ans", "auto"]


def trits(rng: np.random.Generator, size: int, zeros: float, plus: float = 0.5) -> np.ndarray:
    """int8 codes: so many zeros, and so many of the others +1."""
    signs = np.where(rng.random(size) < plus, 1, -1)
    return np.where(rng.random(size) < zeros, 0, signs).astype(np.int8)


def ternary(codes: np.ndarray, positive: float = 0.25, negative: float | None = None, shape=None) -> Ternary:
    negative = positive if negative is None else negative
    return Ternary(
        torch.from_numpy(codes).reshape(shape or codes.shape), torch.tensor(positive), torch.tensor(negative)
    )


def only(codes: np.ndarray) -> Message:
    """A message of one ternary tensor."""
    return Message({"w": ternary(codes)})


def drift(rng: np.random.Generator, codes: np.ndarray, share: float) -> np.ndarray:
    """Codes of which a share was drawn anew; a zero moves twice as often as another."""
    moved = rng.random(len(codes)) < np.where(codes == 0, 2 * share, share)
    return np.where(moved, trits(rng, len(codes), 0.4), codes).astype(np.int8)


def grid(codes: np.ndarray, exponents: int | np.ndarray = -8, shape=None) -> Grid:
    return Grid(
        torch.from_numpy(np.asarray(codes, np.int32)).reshape(shape or codes.shape),
        torch.from_numpy(np.array(exponents, np.int16)),
    )


def small(seed: int = 0) -> tuple[Message, dict[str, torch.Tensor]]:
    """A message with every sort of section, and a reference for it."""
    rng = np.random.default_rng(seed)
    first, second = trits(rng, 62, 0.3), trits(rng, 45, 0.8)
    message = Message(
        {
            "conv.weight": ternary(drift(rng, first, 0.1), 0.5, 0.25, (31, 2)),
            "bn.weight": torch.from_numpy(rng.normal(1, 0.1, 40).astype(np.float32)),
            "bn.seen": torch.tensor(1_000_000),
            "fc.weight": ternary(drift(rng, second, 0.1), 0.125, 0.125, (5, 9)),
            "half": torch.from_numpy(rng.normal(0, 1, 30).astype(np.float16)),
            "mask": torch.from_numpy(rng.random(21) < 0.5),
            "first.weight": grid(rng.normal(0, 40, (12, 5)).round(), rng.integers(-9, -6, 12)),
            "first.bias": grid(rng.normal(0, 1, 12).round()),
        },
        {"samples": 600.0, "loss": 0.75},
    )
    near = message.tensors["first.weight"].dense().numpy() + rng.normal(0, 0.01, (12, 5))
    return message, {
        "conv.weight": torch.from_numpy(first).reshape(31, 2),
        "fc.weight": torch.from_numpy(second).reshape(5, 9),
        "first.weight": torch.from_numpy(near.astype(np.float32)),
    }


SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
SCALES = st.floats(0, width=32, allow_nan=False, allow_infinity=False, max_value=2.0**100)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype the wire has, any bits."""
    kind = draw(st.sampled_from(sorted(DTYPES)))
    shape, dtype = draw(SHAPES), DTYPES[kind]
    count = int(np.prod(shape, dtype=int))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    raw = rng.integers(0, draw(st.sampled_from([2, 256])), count * dtype.itemsize).astype(np.uint8)
    if dtype is torch.bool:
        raw %= 2
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(raw).view(dtype).reshape(shape)


@st.composite
def ternaries(draw: st.DrawFn) -> Ternary:
    shape = draw(SHAPES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    codes = trits(rng, int(np.prod(shape, dtype=int)), draw(st.floats(0, 1)), draw(st.floats(0, 1)))
    positive = draw(SCALES)
    return ternary(codes, positive, draw(st.one_of(st.just(positive), SCALES)), shape)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Codes of any size, most of them of one; steps per tensor or per row."""
    shape = draw(SHAPES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = 2.0 ** draw(st.integers(-2, 24))
    codes = np.asarray(np.clip(rng.normal(0, size, shape).round(), -LARGEST, LARGEST))
    if codes.size and draw(st.booleans()):
        codes.reshape(-1)[draw(st.integers(0, codes.size - 1))] = draw(st.sampled_from([-LARGEST, 255, 256, LARGEST]))
    low = draw(st.integers(LOWEST, HIGHEST))
    high = min(HIGHEST, low + draw(st.sampled_from([0, 1, 5, HIGHEST - LOWEST])))
    rows = bool(shape) and draw(st.booleans())
    return grid(codes, rng.integers(low, high + 1, shape[:1] if rows else ()))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Messages of up to six tensors of any kind, with up to three numbers of any bits."""
    names = st.text(max_size=5)
    values = st.one_of(tensors(), ternaries(), grids(), grids())
    return Message(
        draw(st.dictionaries(names, values, max_size=6)),
        draw(st.dictionaries(names, st.floats(), max_size=3)),
    )


def other_codes(message: Message, seed: int, share: float) -> dict[str, torch.Tensor]:
    """Codes near those of a message and floats near some of its grids, for a reference."""
    rng = np.random.default_rng(seed)
    held = {
        name: torch.from_numpy(drift(rng, value.codes.numpy().reshape(-1), share)).reshape(value.codes.shape)
        for name, value in message.tensors.items()
        if isinstance(value, Ternary)
    }
    for name, value in message.tensors.items():
        if isinstance(value, Grid) and rng.random() < 0.7:
            near = value.dense().double() * torch.tensor(1 + share * rng.normal(size=value.codes.shape))
            near.reshape(-1)[:2] = torch.tensor(rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e300, 1e-300, 0.5], 1))
            held[name] = near.to([torch.float64, torch.float32, torch.float16, torch.bfloat16][rng.integers(4)])
    return held

"""Uploads that the aggregation tests share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from ternfed.aggregation.aggregation import Aggregation, Uploads
from ternfed.quantize.ternary import Ternary
from ternfed.wire import Message

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WHOLE = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]


def upload(value: float, samples: int, codes: Sequence[int] = (1, 0, -1)) -> Message:
    ternary = Ternary(torch.tensor(codes, dtype=torch.int8), torch.tensor(value), torch.tensor(2 * value))
    tensors = {"dense": torch.full((3,), value), "ternary": ternary, "counter": torch.tensor(samples)}
    return Message(tensors, {"samples": float(samples), "loss": value})


def aggregated(aggregation: Aggregation[Any], uploads: Iterable[tuple[int, Message]]) -> Uploads:
    """What a rule makes of (client, message) in this order of arrival."""
    state = aggregation.begin()
    for client, message in uploads:
        aggregation.add(state, client, message)
    return aggregation.finish(state)


def same_bits(first: Uploads, second: Uploads) -> bool:
    def bits(tensor: Tensor) -> tuple[torch.dtype, bytes]:
        return tensor.dtype, tensor.numpy().tobytes()

    tensors = {n: bits(t) for n, t in first.average.items()} == {n: bits(t) for n, t in second.average.items()}
    return tensors and first.numbers == second.numbers and first.count == second.count


def tensors(dtype: torch.dtype) -> st.SearchStrategy[Tensor]:
    """Three numbers of a dtype, of every size that an average of float32 can hold."""
    if dtype.is_floating_point:
        edge = float(torch.finfo(torch.float32 if dtype is torch.float64 else dtype).max)
        ordinary, any_size = st.floats(-2.0, 2.0), st.floats(-edge, edge)
        numbers: st.SearchStrategy[Any] = st.one_of(ordinary, any_size)
    elif dtype is torch.bool:
        numbers = st.booleans()
    else:
        numbers = st.integers(torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return st.lists(numbers, min_size=3, max_size=3).map(lambda values: torch.tensor(values, dtype=dtype))


def ternaries() -> st.SearchStrategy[Ternary]:
    codes = st.lists(st.sampled_from([-1, 0, 1]), min_size=3, max_size=3)
    scales = st.floats(0, 10, width=32)
    return st.builds(
        lambda c, p, n: Ternary(torch.tensor(c, dtype=torch.int8), torch.tensor(p), torch.tensor(n)),
        codes, scales, scales,
    )  # fmt: skip


def rounds_of_uploads(most_samples: int = 10_000_000) -> st.SearchStrategy[list[Message]]:
    """The uploads of one round: a tensor of every dtype, and the numbers."""
    message = st.builds(
        lambda tensors, samples, loss: Message(tensors, {"samples": float(samples), "loss": loss}),
        st.fixed_dictionaries({**{str(d): tensors(d) for d in (*FLOATS, *WHOLE)}, "ternary": ternaries()}),
        st.one_of(st.integers(1, 1000), st.integers(1, most_samples)),
        st.floats(0, 100),
    )
    return st.lists(message, min_size=1, max_size=6)

"""Many messages coded together are, byte for byte, those coded one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import grid, small

from ternfed.quantize.grid import Grid
from ternfed.wire import Message, WrongChecksum, decode, decode_each, dense, encode, encode_each, same, schema_of


def upload(rng: np.random.Generator, size: float) -> Message:
    """A small network's changes: matrices with a step per row, vectors with one."""
    shapes = {"a": (12, 20), "a.bias": (12,), "b": (7, 12), "b.bias": (7,), "one": ()}
    tensors: dict[str, Grid] = {}
    for name, shape in shapes.items():
        codes = np.asarray(rng.normal(0, size, shape).round())
        exponents = rng.integers(-14, -6, shape[:1]) if len(shape) > 1 else rng.integers(-14, -6)
        tensors[name] = grid(codes, exponents, shape)
    return Message(tensors, {"samples": float(rng.integers(1, 9))})


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.4, 1.5, 4.0, 60.0]),
    st.sampled_from(["none", "far", "near"]),
)
def test_bytes_are_those_of_one_by_one(seed, count, size, held):
    rng = np.random.default_rng(seed)
    messages = [upload(rng, size) for _ in range(count)]
    schema = schema_of(messages[0])
    reference = {
        "none": None,
        "far": {name: torch.randn(value.codes.shape) for name, value in messages[0].tensors.items()},
        "near": {name: value.dense() for name, value in messages[0].tensors.items()},
    }[held]
    together = encode_each(messages, schema, reference=reference)
    assert together == [encode(message, schema, reference=reference) for message in messages]
    for message, back in zip(messages, decode_each(together, schema, reference=reference), strict=True):
        assert same(back, message)
        for name, value in message.tensors.items():
            assert torch.equal(dense(back.tensors[name]), dense(value))
        assert back.largest == message.largest


def test_messages_of_every_form_can_be_coded_together():
    messages, held = [small(seed)[0] for seed in (0, 0, 0)], small()[1]
    schema = schema_of(messages[0])
    together = encode_each(messages, schema, reference=held)
    assert together == [encode(message, schema, reference=held) for message in messages]
    assert all(same(back, messages[0]) for back in decode_each(together, schema, reference=held))


def test_none_are_coded_to_none():
    schema = schema_of(upload(np.random.default_rng(0), 1.0))
    assert encode_each([], schema) == []
    assert decode_each([], schema) == []


def test_one_that_is_damaged_is_refused_by_name():
    message = upload(np.random.default_rng(0), 1.0)
    schema = schema_of(message)
    good = encode(message, schema)
    bad = bytearray(good)
    bad[-1] ^= 1
    with pytest.raises(WrongChecksum):
        decode_each([good, bytes(bad)], schema)
    assert same(decode(good, schema), message)

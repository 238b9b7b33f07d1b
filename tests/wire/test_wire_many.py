"""Many messages coded together are, byte for byte, those coded one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import grid, small

from ternfed.quantize.grid import Grid
from ternfed.wire import (
    Message,
    WireError,
    WrongChecksum,
    decode,
    decode_each,
    dense,
    encode,
    encode_each,
    grid_many,
    same,
    schema_of,
)
from ternfed.wire.fast_ans import grid_loops
from ternfed.wire.grid_many import read_each
from ternfed.wire.grid_stream import plan, read, write
from ternfed.wire.held_grids import Layout, layout_of
from ternfed.wire.numbers import histograms

MANY = 6
"""Messages from which on the compiled loops are used here."""


@pytest.fixture(autouse=True, scope="module")
def few_are_many():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_many, "MANY", MANY)
        yield


def upload(rng: np.random.Generator, size: float) -> Message:
    """A small network's changes: matrices with a step per row, vectors with one."""
    shapes = {"a": (12, 20), "a.bias": (12,), "b": (7, 12), "b.bias": (7,), "one": ()}
    tensors: dict[str, Grid] = {}
    for name, shape in shapes.items():
        codes = np.asarray(rng.normal(0, size, shape).round())
        exponents = rng.integers(-14, -6, shape[:1]) if len(shape) > 1 else rng.integers(-14, -6)
        tensors[name] = grid(codes, exponents, shape)
    return Message(tensors, {"samples": float(rng.integers(1, 9))})


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 3, 6, 9]),
    st.sampled_from([0.0, 0.4, 1.5, 4.0, 60.0]),
    st.sampled_from(["none", "far", "near", "noisy"]),
)
def test_bytes_are_those_of_one_by_one(seed, count, size, held):
    rng = np.random.default_rng(seed)
    messages = [upload(rng, size) for _ in range(count)]
    schema = schema_of(messages[0])
    reference = {
        "none": None,
        "far": {name: torch.randn(value.codes.shape) for name, value in messages[0].tensors.items()},
        "near": {name: value.dense() for name, value in messages[0].tensors.items()},
        "noisy": {
            name: value.dense() + torch.randn(value.codes.shape) * 0.01 * rng.random()
            for name, value in messages[0].tensors.items()
        },
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


@pytest.mark.skipif(grid_loops() is None, reason="needs numba")
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.4, 1.5, 4.0, 60.0, 1e6]))
def test_compiled_loops_read_and_refuse_what_the_plain_reader_does(seed, size):
    """Streams as they are, and with a byte changed, put in, taken out or cut off."""
    rng = np.random.default_rng(seed)
    messages = [upload(rng, size) for _ in range(MANY)]
    schema = schema_of(messages[0])
    layout = layout_of(schema.slots)
    streams = [_stream(message, layout) for message in messages]
    exponents, codes = read_each(streams, layout)
    for row, stream in enumerate(streams):
        for ours, theirs in zip((exponents[row], codes[row]), read(memoryview(stream), layout), strict=True):
            assert np.array_equal(ours, theirs)
    for place in range(MANY):
        damaged = _damaged(streams[place], rng)
        outcomes = [
            _outcome(lambda: [part[-1] for part in read_each([*streams[1:], damaged], layout)]),  # noqa: B023
            _outcome(lambda: list(read(memoryview(damaged), layout))),  # noqa: B023
        ]
        assert outcomes[0] == outcomes[1]


def _stream(message: Message, layout: Layout) -> bytes:
    """The numbers of a message by `ans`, even where planes would be smaller."""
    sides = zip(*message.tensors.values(), strict=True)
    codes, exponents = (np.concatenate([part.numpy().reshape(-1) for part in side]) for side in sides)
    return write(codes, exponents.astype(np.int32), plan(histograms(codes, layout.sizes)), layout)


def _damaged(stream: bytes, rng: np.random.Generator) -> bytes:
    at, kind = int(rng.integers(min(len(stream), 40))), rng.integers(4)
    if kind == 0:
        return stream[:at] + bytes([rng.integers(256)]) + stream[at + 1 :]
    if kind == 1:
        return stream[:at] + bytes([rng.integers(256)]) + stream[at:]
    return stream[:at] + stream[at + 1 :] if kind == 2 else stream[:at]


def _outcome(call):
    try:
        return [part.tolist() for part in call()]
    except WireError as error:
        return type(error), str(error)

"""What goes in comes out, bit for bit, whatever it is."""

import math

import numpy as np
import plain_reader
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import CODECS, drift, messages, only, other_codes, small, ternary, trits

from ternfed.quantize.grid import Grid
from ternfed.quantize.ternary import Ternary
from ternfed.wire import (
    FORMS,
    Kind,
    Message,
    Schema,
    Slot,
    decode,
    encode,
    read_header,
    reference_of,
    same,
    schema_of,
    sections_in,
)
from ternfed.wire.grid import GRID
from ternfed.wire.message import locate
from ternfed.wire.ternary import TERNARY


@given(messages(), st.sampled_from(CODECS))
@settings(max_examples=300, deadline=None)
def test_any_message_comes_back_bit_for_bit(message, codec):
    schema = schema_of(message)
    assert same(decode(encode(message, schema, codec=codec), schema), message)


@given(messages(), st.sampled_from(CODECS), st.integers(0, 99), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_any_message_comes_back_given_a_reference(message, codec, seed, share):
    schema = schema_of(message)
    reference = reference_of(other_codes(message, seed, share), schema)
    assert same(decode(encode(message, schema, reference=reference, codec=codec), schema, reference=reference), message)


@given(messages(), st.sampled_from(CODECS), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_plain_reader_written_from_the_specification_reads_the_same(message, codec, given_reference):
    schema = schema_of(message)
    codes = other_codes(message, 1, 0.01)
    reference = reference_of(codes, schema) if given_reference else None
    data = encode(message, schema, reference=reference, codec=codec)
    # Floats as float32, which is what a grid takes of a reference.
    plain = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in codes.items()}
    held = {name: tensor.reshape(-1).tolist() for name, tensor in plain.items()} if reference else None
    slots = [(slot.name, str(slot.kind), slot.shape) for slot in schema.slots]
    tensors, numbers = plain_reader.read(data, slots, list(schema.numbers), held)
    assert [np.float64(v).tobytes() for v in numbers.values()] == [
        np.float64(v).tobytes() for v in message.numbers.values()
    ]
    for name, value in message.tensors.items():
        if isinstance(value, Ternary):
            assert tensors[name] == (value.codes.reshape(-1).tolist(), float(value.positive), float(value.negative))
        elif isinstance(value, Grid):
            assert tensors[name] == (value.codes.reshape(-1).tolist(), value.exponents.reshape(-1).tolist())
        else:
            assert tensors[name] == value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("size", [327_679, 327_680, 327_681, 700_003])
@pytest.mark.parametrize("codec", CODECS)
def test_messages_around_and_beyond_a_block_come_back(size, codec):
    rng = np.random.default_rng(size)
    codes = trits(rng, size, 0.4)
    message, reference = only(drift(rng, codes, 0.05)), {"w": torch.from_numpy(codes)}
    schema = schema_of(message)
    assert same(decode(encode(message, schema, codec=codec), schema), message)
    data = encode(message, schema, codec=codec, reference=reference)
    assert same(decode(data, schema, reference=reference), message)


def test_the_plain_reader_agrees_beyond_a_block():
    codes = trits(np.random.default_rng(5), 327_680 + 7, 0.4)
    message = only(codes)
    schema = schema_of(message)
    for codec in ("base3", "ans"):
        data = encode(message, schema, codec=codec)
        tensors, _ = plain_reader.read(data, [("w", "ternary", codes.shape)], [], None)
        assert tensors["w"][0] == codes.tolist()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [-1, 0, 1])
@pytest.mark.parametrize("size", [0, 1, 4, 5, 6, 1000])
def test_messages_of_one_single_trit_value_come_back(codec, value, size):
    message = only(np.full(size, value, np.int8))
    schema = schema_of(message)
    assert same(decode(encode(message, schema, codec=codec), schema), message)


def test_views_that_are_not_contiguous_travel_as_what_they_show():
    grid = torch.arange(48, dtype=torch.float32).reshape(6, 8)
    codes = (torch.arange(48).reshape(6, 8) % 3 - 1).to(torch.int8)
    message = Message(
        {
            "turned": grid.T,
            "every other": grid[:, ::2],
            "spread": torch.ones(1).expand(5),
            "codes": Ternary(codes.T[::2], torch.tensor(1.0), torch.tensor(2.0)),
            "parameter": torch.nn.Parameter(grid),
            "negated": torch.complex(grid, grid).conj().imag,
        }
    )
    schema = schema_of(message)
    back = decode(encode(message, schema), schema)
    assert same(back, message)
    assert not back.tensors["parameter"].requires_grad


def test_every_nan_and_both_zeros_keep_their_bits():
    bits = torch.tensor([0x7FC00001, -0x3FFFFF, 0x7F800001, -0x80000000, 0], dtype=torch.int32)
    message = Message({"x": bits.view(torch.float32)}, {"loss": math.nan, "low": -0.0})
    schema = schema_of(message)
    back = decode(encode(message, schema), schema)
    assert back.tensors["x"].view(torch.int32).tolist() == bits.tolist()
    assert math.isnan(back.numbers["loss"])
    assert math.copysign(1, back.numbers["low"]) == -1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_on_a_gpu_arrive_on_the_cpu():
    message, reference = small()
    moved = Message(
        {
            name: type(value)(*(part.cuda() for part in value)) if isinstance(value, tuple) else value.cuda()
            for name, value in message.tensors.items()
        },
        message.numbers,
    )
    schema = schema_of(moved)
    held = {name: codes.cuda() for name, codes in reference.items()}
    assert same(decode(encode(moved, schema, reference=held), schema, reference=held), message)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_what_was_decoded_owns_its_memory(wrap):
    message, _ = small()
    schema = schema_of(message)
    data = bytearray(encode(message, schema))
    back = decode(wrap(data), schema)
    data[:] = bytes(len(data))
    assert same(back, message)
    for value in back.tensors.values():
        for tensor in [*value] if isinstance(value, Ternary | Grid) else [value]:
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
            tensor.zero_()


def test_equal_scales_are_sent_once():
    codes = np.ones(10, np.int8)
    one, two = Message({"w": ternary(codes, 0.5)}), Message({"w": ternary(codes, 0.5, 0.25)})
    schema = schema_of(one)
    assert len(encode(two, schema)) - len(encode(one, schema)) == 4
    signed = Message({"w": ternary(codes, 0.0, -0.0)})
    assert same(decode(encode(signed, schema), schema), signed)


def test_the_header_tells_which_schema_and_reference_a_message_was_written_for():
    message, codes = small()
    schema = schema_of(message)
    reference = reference_of(codes, schema)
    data = encode(message, schema, reference=reference, codec="ans")
    header, sections = read_header(data), locate(data, schema).sections
    assert (header.version, header.schema) == (2, schema.digest)
    assert list(sections) == ["ternary", "grid", "dense"]
    assert sections["ternary"].given == reference.held(TERNARY, schema.ternary).digest
    assert sections["grid"].given == reference.held(GRID, schema.of(GRID.kinds)).digest
    assert {name: form.codecs[sections[name].codec] for name, form in ((f.name, f) for f in FORMS)} == {
        "ternary": "ans",
        "grid": "ans",
        "dense": "planes",
    }
    assert locate(encode(message, schema, codec="zstd"), schema).sections["ternary"].given is None


def test_bytes_are_told_by_form():
    message, _ = small()
    schema = schema_of(message)
    data = encode(message, schema)
    sizes = sections_in(data, schema)
    scales, numbers, tags, lengths = 16, 16, 3, 4
    assert list(sizes) == ["ternary", "grid", "dense"]
    assert len(data) == 16 + numbers + scales + tags + lengths + sum(sizes.values())
    floats = Message({"w": torch.ones(3)})
    assert sections_in(encode(floats, schema_of(floats)), schema_of(floats)) == {"dense": 4 * 4}


def test_the_schema_is_its_names_kinds_shapes_order_and_numbers():
    base = Schema((Slot("a", (2, 3), Kind.TERNARY), Slot("b", (6,), Kind.FLOAT32)), ("loss",))
    others = [
        Schema((Slot("c", (2, 3), Kind.TERNARY), base.slots[1]), ("loss",)),
        Schema((Slot("a", (3, 2), Kind.TERNARY), base.slots[1]), ("loss",)),
        Schema((Slot("a", (2, 3), Kind.INT8), base.slots[1]), ("loss",)),
        Schema((Slot("a", (2, 3), Kind.GRID), base.slots[1]), ("loss",)),
        Schema((Slot("a", (2, 3), Kind.GRID_ROWS), base.slots[1]), ("loss",)),
        Schema(base.slots[::-1], ("loss",)),
        Schema(base.slots, ("samples",)),
        Schema(base.slots),
    ]
    assert len({schema.digest for schema in [base, *others]}) == 9
    assert Schema(tuple(base.slots), ("loss",)).digest == base.digest


def test_same_sees_every_difference():
    message, _ = small()
    again, _ = small()
    assert same(message, again)
    for name, value in message.tensors.items():
        for changed in _changes(value):
            assert not same(message, Message({**message.tensors, name: changed}, message.numbers))
    assert not same(message, Message(message.tensors, {**message.numbers, "loss": 0.5}))
    assert not same(message, Message(message.tensors, {"loss": 0.75}))


def _changes(value):
    if isinstance(value, Ternary):
        yield value._replace(codes=-value.codes)
        yield value._replace(positive=value.positive + 1)
        yield value._replace(negative=value.negative + 1)
        yield value.codes
        return
    if isinstance(value, Grid):
        yield value._replace(codes=value.codes + 1)
        yield value._replace(exponents=value.exponents + 1)
        yield value.dense()
        return
    yield value.reshape(1, -1)
    yield value.bool() if value.dtype is not torch.bool else value.int()
    yield ~value if value.dtype is torch.bool else value + 1


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["base3", "ans", "zstd"])
def test_a_hundred_million_weights_come_back(codec):
    message = only(trits(np.random.default_rng(0), 100_000_000, 0.4))
    schema = schema_of(message)
    assert same(decode(encode(message, schema, codec=codec), schema), message)

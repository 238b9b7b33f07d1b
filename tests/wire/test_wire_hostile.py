"""Whatever arrives, `decode` returns a valid message or raises the `WireError` that says which check failed."""

import struct
import tracemalloc
from pathlib import Path
from zlib import crc32

import attack_corpus
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import CODECS, other_codes, small

from ternfed import wire
from ternfed.bench import fuzz_wire
from ternfed.quantize.grid import HIGHEST, LARGEST, LOWEST, Grid
from ternfed.quantize.ternary import Ternary
from ternfed.wire import (
    Message,
    MissingReference,
    Schema,
    TrailingBytes,
    Truncated,
    WireError,
    WrongChecksum,
    WrongReference,
    WrongSchema,
    WrongVersion,
    decode,
    encode,
    load_tern,
    reference_of,
    schema_of,
)
from ternfed.wire.message import assemble, locate
from ternfed.wire.tern import parse_tern, tern_bytes
from ternfed.wire.ternary import TERNARY

MESSAGE, CODES = small()
SCHEMA = schema_of(MESSAGE)
REFERENCE = reference_of(CODES, SCHEMA)
GOOD = [encode(MESSAGE, SCHEMA, codec=codec, reference=r) for codec in CODECS for r in (None, REFERENCE)]
GOOD.append(assemble(MESSAGE, SCHEMA, reference=None, codec="ans", compress=False))
ATTACKS = sorted(attack_corpus.FOLDER.glob("*.bin"))
FILES = sorted(attack_corpus.FOLDER.glob("*.tern"))


def is_valid(message, schema=SCHEMA):
    """Whether a decoded message is one that could have been sent."""
    fits = schema_of(message) == schema
    for value in message.tensors.values():
        if isinstance(value, Ternary):
            fits &= bool((value.codes.abs() <= 1).all())
            fits &= all(0 <= float(scale) < float("inf") for scale in value[1:])
        elif isinstance(value, Grid):
            fits &= bool((value.codes.abs() <= LARGEST).all())
            fits &= bool(((value.exponents >= LOWEST) & (value.exponents <= HIGHEST)).all())
        elif value.dtype is torch.bool:
            fits &= bool((value.view(torch.uint8) <= 1).all())
    return fits


def outcome(call):
    """What a call returns, or the `WireError` it raises; nothing else is let through."""
    try:
        return call()
    except WireError as problem:
        return problem


def is_named(result):
    """Whether this is an error that says which check failed."""
    return isinstance(result, WireError) and type(result) is not WireError


@pytest.mark.parametrize("path", ATTACKS, ids=lambda path: path.stem)
def test_a_crafted_message_fails_the_check_in_its_name(path: Path):
    error = getattr(wire, path.stem.split("-")[0])
    tracemalloc.start()
    try:
        with pytest.raises(WireError) as caught:
            decode(path.read_bytes(), SCHEMA, reference=REFERENCE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(caught.value) is error
    # The sample is smaller than a kilobyte; a hundred cover the file itself, the exception and its traceback.
    assert peak < 100_000 + 2 * path.stat().st_size


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_crafted_file_fails_the_check_in_its_name(path: Path):
    error = getattr(wire, path.stem.split("-")[0])
    tracemalloc.start()
    try:
        with pytest.raises(WireError) as caught:
            load_tern(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert type(caught.value) is error
    assert peak < 100_000 + 20 * path.stat().st_size  # JSON becomes Python objects: some times its size


def test_the_corpus_is_what_its_recipes_make():
    for suffix, recipes in ((".bin", attack_corpus.ATTACKS), (".tern", attack_corpus.FILES)):
        kept = {path.stem for path in attack_corpus.FOLDER.glob(f"*{suffix}")}
        assert kept == {name.replace("/", "-") for name in recipes}
    tried = {name.split("/")[0] for name in [*attack_corpus.ATTACKS, *attack_corpus.FILES]}
    assert tried == {
        error.__name__ for error in vars(wire).values() if isinstance(error, type) and issubclass(error, WireError)
    } - {"WireError", "MessageError", "MissingReference"}


@pytest.mark.parametrize("data", GOOD)
def test_every_cut_is_truncated_and_every_addition_trailing(data):
    for length in range(len(data)):
        with pytest.raises(Truncated):
            decode(data[:length], SCHEMA, reference=REFERENCE)
    for more in (b"\0", b"\xff" * 9, data):
        with pytest.raises(TrailingBytes):
            decode(data + more, SCHEMA, reference=REFERENCE)


@pytest.mark.parametrize("data", GOOD)
def test_every_flipped_bit_is_found(data):
    for place in range(8 * len(data)):
        changed = attack_corpus.flip(data, place // 8, 1 << place % 8)
        with pytest.raises(WireError):
            decode(changed, SCHEMA, reference=REFERENCE)


def test_a_flipped_bit_in_the_sections_is_a_wrong_checksum():
    for data in GOOD:
        places = set(range(12, 32))
        for coded in locate(data, SCHEMA).sections.values():
            start = data.index(coded.stream)
            places |= set(range(start, start + len(coded.stream)))
        for at in places:
            with pytest.raises(WrongChecksum):
                decode(attack_corpus.flip(data, at), SCHEMA, reference=REFERENCE)


@st.composite
def mutations(draw):
    """A good message after a few edits, usually with its checksum put right again."""
    data = bytearray(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        edit = draw(st.sampled_from(["set", "insert", "delete", "splice"]))
        if edit == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif edit == "insert":
            data[at:at] = draw(st.binary(max_size=8))
        elif edit == "delete":
            del data[at : at + draw(st.integers(1, 8))]
        else:
            other = draw(st.sampled_from(GOOD))
            data[at:] = other[at:]
    if draw(st.integers(0, 9)) and len(data) >= 16:
        data[12:16] = struct.pack("<I", crc32(data[16:], crc32(data[:12])))
    return bytes(data)


@given(mutations())
@settings(max_examples=1500, deadline=None)
def test_a_mutated_message_is_refused_by_name_or_valid(data):
    result = outcome(lambda: decode(data, SCHEMA, reference=REFERENCE))
    assert is_named(result) or is_valid(result)


@given(mutations())
@settings(max_examples=500, deadline=None)
def test_what_is_accepted_has_only_one_spelling_of_its_trits(data):
    """A receiver that counts bytes cannot be sent the same trits in another way by the same codec, but by zstd."""
    try:
        message = decode(data, SCHEMA, reference=REFERENCE)
    except WireError:
        return
    trits = locate(data, SCHEMA).sections["ternary"]
    codec = TERNARY.codecs[trits.codec]
    if codec == "zstd":
        return
    grouping = trits.stream[0] if codec == "ans" else None
    again = encode(message, SCHEMA, codec=codec, reference=REFERENCE if trits.given else None)
    stream = locate(again, SCHEMA).sections["ternary"].stream
    if grouping is None or stream[0] == grouping:
        assert bytes(stream) == bytes(trits.stream)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_noise_is_refused(data):
    for front in (b"", b"\xf3TF\x02", GOOD[5][:12], GOOD[5][:41]):
        with pytest.raises(WireError):
            decode(front + data, SCHEMA, reference=REFERENCE)


@given(st.binary(min_size=1, max_size=6), st.integers(0, 2000), st.integers(0, 3))
@settings(max_examples=500, deadline=None)
def test_a_mutated_file_is_refused_by_name_or_valid(edit, at, repaired):
    good = tern_bytes(MESSAGE.tensors, {"name": "sample"})
    data = bytearray(good)
    at %= len(data)
    data[at : at + len(edit)] = edit
    if repaired and len(data) > 20:
        length, start = wire.varint.read(memoryview(bytes(data)), 8)
        data[4:8] = struct.pack("<I", crc32(data[start : start + length]))
        body = start + length
        if len(data) > body + 16:
            data[body + 12 : body + 16] = struct.pack("<I", crc32(data[body + 16 :], crc32(data[body : body + 12])))
    result = outcome(lambda: parse_tern(bytes(data)))
    assert is_named(result) or is_valid(Message(result[0]), schema_of(Message(result[0])))


def test_a_message_of_the_old_version_is_refused_by_name():
    with pytest.raises(WrongVersion, match="the message has version 1, this program reads 2"):
        decode(b"\xf3TF\x01" + bytes(30), SCHEMA)


def test_a_message_for_another_model_is_refused():
    other = Schema((*SCHEMA.slots[:-1],), SCHEMA.numbers)
    with pytest.raises(WrongSchema):
        decode(GOOD[0], other)


def test_a_missing_or_different_reference_has_its_name_and_the_sender_can_do_without():
    data = encode(MESSAGE, SCHEMA, reference=REFERENCE, codec="ans")
    with pytest.raises(MissingReference):
        decode(data, SCHEMA)
    others = [
        CODES | {"fc.weight": -CODES["fc.weight"]},
        CODES | {"first.weight": CODES["first.weight"] + 1},
        CODES | {"first.bias": torch.zeros(12)},
        {name: tensor for name, tensor in CODES.items() if name != "first.weight"},
        {"first.weight": CODES["first.weight"]},
    ]
    for other in others:
        with pytest.raises(WrongReference) as caught:
            decode(data, SCHEMA, reference=other)
        assert type(caught.value) is WrongReference
    alone = encode(MESSAGE, SCHEMA, codec="ans")
    assert wire.same(decode(alone, SCHEMA), MESSAGE)
    assert all(wire.same(decode(alone, SCHEMA, reference=other), MESSAGE) for other in others)


@pytest.mark.parametrize("form", ["ternary", "grid"])
def test_models_whose_counts_belong_to_other_numbers_are_refused(form):
    message, reference = small(1)
    schema = schema_of(message)
    held = reference_of(reference, schema)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        data = bytearray(encode(message, schema, codec="ans", reference=held))
        stream = bytes(locate(bytes(data), schema).sections[form].stream)
        start = bytes(data).index(stream)
        data[start + int(rng.integers(1, len(stream)))] = int(rng.integers(256))
        try:
            assert is_valid(decode(attack_corpus.seal(bytes(data)), schema, reference=held), schema)
        except WireError:
            refused += 1
    assert refused > 250
    assert other_codes(message, 0, 0.1).keys() == reference.keys()


def test_a_short_run_of_the_fuzzer_finds_nothing():
    """The long one is `ternfed bench fuzz-wire`: the same mutations, a million of them."""
    outcomes = fuzz_wire.run(5_000, seed=7, sample=20).outcomes
    assert sum(outcomes.values()) == 5_000
    reached = {
        error.__name__ for error in vars(wire).values() if isinstance(error, type) and issubclass(error, WireError)
    }
    assert set(outcomes) >= reached - {"WireError", "MessageError", "MissingReference"}

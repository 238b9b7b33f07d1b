"""A sender's mistakes are named before anything is sent."""

import numpy as np
import pytest
import torch
from wire_samples import small, ternary

from ternfed.quantize.ternary import Ternary
from ternfed.wire import (
    ImpossibleCount,
    Kind,
    Message,
    MessageError,
    Schema,
    Slot,
    WrongReference,
    decode,
    encode,
    reference_of,
    schema_of,
)
from ternfed.wire import message as wire_message
from ternfed.wire.message import locate

MESSAGE, CODES = small()
SCHEMA = schema_of(MESSAGE)
CONV = MESSAGE.tensors["conv.weight"]


def with_conv(value):
    return Message({**MESSAGE.tensors, "conv.weight": value}, MESSAGE.numbers)


WRONG = {
    "shape": with_conv(CONV._replace(codes=CONV.codes.T)),
    "dense where ternary belongs": with_conv(CONV.dense()),
    "code 2": with_conv(CONV._replace(codes=CONV.codes * 2)),
    "code -128": with_conv(CONV._replace(codes=CONV.codes - 127)),
    "codes of int64": with_conv(CONV._replace(codes=CONV.codes.long())),
    "negative scale": with_conv(CONV._replace(positive=torch.tensor(-0.5))),
    "scale that is no number": with_conv(CONV._replace(negative=torch.tensor(float("nan")))),
    "infinite scale": with_conv(CONV._replace(negative=torch.tensor(float("inf")))),
    "scale of float64": with_conv(CONV._replace(positive=torch.tensor(0.5, dtype=torch.float64))),
    "scale per channel": with_conv(CONV._replace(positive=torch.ones(31))),
    "missing": Message({n: v for n, v in MESSAGE.tensors.items() if n != "conv.weight"}, MESSAGE.numbers),
}


@pytest.mark.parametrize("mistake", WRONG)
@pytest.mark.parametrize("codec", ["base3", "auto"])
def test_a_ternary_tensor_that_does_not_fit_is_named(mistake, codec):
    with pytest.raises(MessageError, match=r"conv\.weight"):
        encode(WRONG[mistake], SCHEMA, codec=codec)


FIRST = MESSAGE.tensors["first.weight"]
WRONG_GRIDS = {
    "shape": FIRST._replace(codes=FIRST.codes.T),
    "dense where a grid belongs": FIRST.dense(),
    "codes of int64": FIRST._replace(codes=FIRST.codes.long()),
    "a code too large": FIRST._replace(codes=FIRST.codes + 2**24),
    "a code too small": FIRST._replace(codes=FIRST.codes - 2**24),
    "exponents of int32": FIRST._replace(exponents=FIRST.exponents.int()),
    "one exponent": FIRST._replace(exponents=FIRST.exponents[0]),
    "too few exponents": FIRST._replace(exponents=FIRST.exponents[1:]),
    "an exponent too large": FIRST._replace(exponents=FIRST.exponents + 110),
    "an exponent too small": FIRST._replace(exponents=FIRST.exponents - 120),
}


@pytest.mark.parametrize("mistake", WRONG_GRIDS)
def test_a_grid_that_does_not_fit_is_named(mistake):
    with pytest.raises(MessageError, match=r"first\.weight: "):
        encode(Message({**MESSAGE.tensors, "first.weight": WRONG_GRIDS[mistake]}, MESSAGE.numbers), SCHEMA)


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(40, dtype=torch.float64),
        torch.ones(41),
        torch.ones(40).to_sparse(),
        ternary(np.ones(40, np.int8)),
        np.ones(40, np.float32),
    ],
)
def test_a_dense_tensor_that_does_not_fit_is_named(value):
    with pytest.raises(MessageError, match=r"bn\.weight"):
        encode(Message({**MESSAGE.tensors, "bn.weight": value}, MESSAGE.numbers), SCHEMA)


def test_extra_tensors_and_numbers_and_missing_numbers_are_named():
    with pytest.raises(MessageError, match="extra"):
        encode(Message({**MESSAGE.tensors, "extra": torch.ones(1)}, MESSAGE.numbers), SCHEMA)
    with pytest.raises(MessageError, match="loss"):
        encode(Message(MESSAGE.tensors, {"samples": 1.0}), SCHEMA)
    with pytest.raises(MessageError, match="round"):
        encode(Message(MESSAGE.tensors, {**MESSAGE.numbers, "round": 1.0}), SCHEMA)
    with pytest.raises(MessageError, match="loss"):
        encode(Message(MESSAGE.tensors, {**MESSAGE.numbers, "loss": None}), SCHEMA)


def test_an_unknown_codec_is_named_with_those_that_exist():
    with pytest.raises(MessageError, match=r"'lzma'.*auto, base3, zstd, ans"):
        encode(MESSAGE, SCHEMA, codec="lzma")


def test_a_dtype_the_wire_does_not_have_is_named():
    with pytest.raises(MessageError, match=r"w: .*complex64"):
        schema_of(Message({"w": torch.ones(2, dtype=torch.complex64)}))


def test_an_impossible_schema_is_refused():
    slot = Slot("w", (2,), Kind.TERNARY)
    with pytest.raises(MessageError, match="twice"):
        Schema((slot, slot))
    with pytest.raises(MessageError, match="twice"):
        Schema((slot,), ("loss", "loss"))
    with pytest.raises(MessageError, match="w"):
        Schema((Slot("w", (-2, -3), Kind.TERNARY),))
    with pytest.raises(MessageError, match="w: a single number has no rows"):
        Schema((Slot("w", (), Kind.GRID_ROWS),))


def test_a_reference_that_does_not_fit_is_named():
    with pytest.raises(MessageError, match=r"fc\.weight"):
        reference_of({"conv.weight": CODES["conv.weight"]}, SCHEMA)
    with pytest.raises(MessageError, match=r"fc\.weight"):
        reference_of({**CODES, "fc.weight": torch.ones(3, dtype=torch.int8)}, SCHEMA)
    with pytest.raises(MessageError, match=r"fc\.weight"):
        reference_of({**CODES, "fc.weight": CODES["fc.weight"].float()}, SCHEMA)
    other = schema_of(Message({"w": Ternary(torch.ones(3, dtype=torch.int8), *CONV[1:])}))
    reference = reference_of({"w": torch.ones(3, dtype=torch.int8)}, other)
    data = encode(MESSAGE, SCHEMA, reference=CODES, codec="ans")
    with pytest.raises(WrongReference):
        decode(data, SCHEMA, reference=reference)
    with pytest.raises(MessageError, match=r"first\.weight"):
        reference_of({**CODES, "first.weight": CODES["first.weight"].T}, SCHEMA)


def test_a_reference_that_has_nothing_for_a_form_is_no_reference_for_it():
    other = reference_of({"elsewhere": torch.ones(3), "first.bias": torch.ones(12, dtype=torch.int64)}, SCHEMA)
    assert encode(MESSAGE, SCHEMA, reference=other) == encode(MESSAGE, SCHEMA)
    floats = {"first.weight": CODES["first.weight"]}
    sections = locate(encode(MESSAGE, SCHEMA, reference=floats), SCHEMA).sections
    assert (sections["ternary"].given is None, sections["grid"].given is None) == (True, False)


class TestTooLong:
    """gRPC carries 2 GiB at most; sizes are made small here, memory for a real one is not to be had."""

    def test_a_message_beyond_two_gibibytes_is_refused_by_its_sender(self, monkeypatch):
        message = Message({"w": torch.randn(1000)})
        schema = schema_of(message)
        monkeypatch.setattr(wire_message, "MOST_BYTES", len(encode(message, schema)))
        encode(message, schema)
        monkeypatch.setattr(wire_message, "MOST_BYTES", wire_message.MOST_BYTES - 1)
        with pytest.raises(MessageError, match=r"^a message of [\d,]+ bytes is longer than [\d,]+, which is what one"):
            encode(message, schema)

    def test_and_by_its_receiver(self, monkeypatch):
        message = Message({"w": torch.randn(1000)})
        data = encode(message, schema_of(message))
        monkeypatch.setattr(wire_message, "MOST_BYTES", len(data) - 1)
        with pytest.raises(ImpossibleCount, match="none is longer than"):
            decode(data, schema_of(message))

    def test_the_limit_is_what_31_bits_count(self):
        assert wire_message.MOST_BYTES == 2**31 - 1
        with pytest.raises(MessageError):
            wire_message.refuse_too_long(2**31)
        wire_message.refuse_too_long(2**31 - 1)

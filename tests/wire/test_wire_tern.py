"""`model.tern`: readable without the model's code."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import messages, small, ternary, trits

from ternfed.wire import Kind, Message, MessageError, describe, load_tern, same, save_tern
from ternfed.wire.tern import parse_tern, tern_bytes


@given(messages(), st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_tensors_come_back_with_names_shapes_and_notes(message, notes):
    tensors, metadata = parse_tern(tern_bytes(message.tensors, notes))
    assert same(Message(tensors), Message(message.tensors))
    assert list(tensors) == list(message.tensors)
    assert metadata == notes


def test_a_file_holds_what_was_saved(tmp_path):
    message, _ = small()
    size = save_tern(tmp_path / "model.tern", message.tensors, {"dataset": "digits"})
    assert size == (tmp_path / "model.tern").stat().st_size
    tensors, metadata = load_tern(tmp_path / "model.tern")
    assert same(Message(tensors), Message(message.tensors))
    assert metadata == {"dataset": "digits"}


def test_numbers_are_sent_to_the_metadata():
    message, _ = small()
    with pytest.raises(MessageError, match="loss"):
        tern_bytes(message)
    with pytest.raises(MessageError, match="strings"):
        tern_bytes(message.tensors, {"loss": 0.5})


def test_a_model_of_nothing_but_zeros_can_be_saved_and_read():
    """It would compress to a few bytes; a reader could not tell such a file from one that only claims its size."""
    model = {"w": ternary(np.zeros(3_000_000, np.int8)), "b": torch.zeros(1_000_000)}
    data = tern_bytes(model)
    assert 2**20 + 1024 * len(data) >= 3_000_000
    assert same(Message(parse_tern(data)[0]), Message(model))
    only = {"w": model["w"]}
    assert same(Message(parse_tern(tern_bytes(only))[0]), Message(only))
    assert len(tern_bytes(only)) < 700_000


@pytest.mark.parametrize("codec", ["ans", "base3"])
def test_a_summary_counts_what_is_there(tmp_path, codec):
    rng = np.random.default_rng(0)
    zeros = 0.8 if codec == "ans" else 1 / 3
    model = {
        "conv": ternary(trits(rng, 60_000, zeros), shape=(200, 300)),
        "fc": ternary(trits(rng, 30_000, zeros / 2 if codec == "ans" else zeros)),
        "bias": torch.tensor([0.0, 1.5, 0.0, 2.5]),
    }
    size = save_tern(tmp_path / "m.tern", model, {"a": "b"})
    summary = describe(tmp_path / "m.tern")
    assert (summary.bytes, summary.float32_bytes, summary.metadata) == (size, 4 * 90_004, {"a": "b"})
    assert summary.ratio == 4 * 90_004 / size
    conv, fc, bias = summary.rows
    assert (conv.name, conv.shape, conv.kind) == ("conv", (200, 300), Kind.TERNARY)
    assert conv.zeros == float((model["conv"].codes == 0).float().mean(dtype=torch.float64))
    p = np.array([(model["conv"].codes == v).sum() for v in (-1, 0, 1)]) / 60_000
    assert conv.entropy == pytest.approx(-(p * np.log2(p)).sum(), rel=1e-9)  # the same formula in another order
    assert (bias.zeros, bias.entropy, bias.kind) == (0.5, None, Kind.FLOAT32)
    total = sum(row.bits * np.prod(row.shape) for row in summary.rows) / 8
    assert 0 < size - total < 200  # what is left are the two headers and the scales
    if codec == "ans":
        assert summary.codec == "ans"
        assert conv.bits == pytest.approx(conv.entropy, rel=0.01)  # the size the format promises
        assert fc.bits == pytest.approx(fc.entropy, rel=0.01)


def test_a_summary_of_an_empty_model_is_empty(tmp_path):
    save_tern(tmp_path / "m.tern", {"none": torch.ones(0, 3)})
    summary = describe(tmp_path / "m.tern")
    assert [row.bits for row in summary.rows] == [0]
    save_tern(tmp_path / "m.tern", {})
    assert describe(tmp_path / "m.tern").rows == ()

"""References: what both sides hold already, made once and used for many messages."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import drift, only, small, trits

from ternfed.wire import Message, decode, encode, reference_of, same, schema_of
from ternfed.wire.held import HeldTrits, Trits
from ternfed.wire.ternary import TERNARY
from ternfed.wire.trits import count


@given(st.integers(0, 2_000), st.floats(0, 1), st.booleans(), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_order_puts_equal_contexts_together_and_restore_undoes_it(size, zeros, keep, seed):
    rng = np.random.default_rng(seed)
    held, codes = trits(rng, size, zeros), trits(rng, size, 0.3)
    reference = HeldTrits(held, (size,), keep)
    ordered = reference.order(codes)
    assert ordered.tolist() == np.concatenate([codes[held == value] for value in (-1, 0, 1)]).tolist()
    assert reference.restore(ordered).tolist() == codes.tolist()


def test_counts_are_by_context_and_tensor():
    rng = np.random.default_rng(0)
    held, codes = trits(rng, 1_000, 0.4), trits(rng, 1_000, 0.2)
    counts = Trits(codes, (300, 700), HeldTrits(held, (300, 700))).counts
    for context, value in enumerate((-1, 0, 1)):
        for tensor, part in enumerate((slice(0, 300), slice(300, 1_000))):
            mine = codes[part][held[part] == value]
            assert counts[context, tensor].tolist() == [int((mine == v).sum()) for v in (-1, 0, 1)]
    assert count(codes, (1_000,))[0].sum() == 1_000


@pytest.mark.parametrize("size", [1_000, 400_000])
def test_a_kept_reference_makes_the_same_bytes_as_one_for_a_single_message(size):
    rng = np.random.default_rng(size)
    held = trits(rng, size, 0.4)
    message = only(drift(rng, held, 0.1))
    schema = schema_of(message)
    source = {"w": torch.from_numpy(held)}
    kept = reference_of(source, schema)
    sent = [encode(message, schema, reference=r, codec="ans") for r in (kept, kept, source)]
    sent.append(encode(message, schema, reference=reference_of(source, schema, keep=False), codec="ans"))
    assert len(set(sent)) == 1
    for reference in (kept, source):
        assert same(decode(sent[0], schema, reference=reference), message)


def test_a_reference_can_be_the_message_before():
    before, _ = small(1)
    message, _ = small(2)
    schema = schema_of(message)
    data = encode(message, schema, reference=before, codec="ans")
    assert same(decode(data, schema, reference=before), message)
    codes = {name: before.tensors[name].codes for name in ("conv.weight", "fc.weight")}
    assert same(decode(data, schema, reference=codes), message)


def test_a_reference_stays_when_its_source_trains_on():
    message, codes = small()
    schema = schema_of(message)
    reference = reference_of(codes, schema)
    data = encode(message, schema, reference=reference, codec="ans")
    single = only(np.ones(40, np.int8))
    alone = reference_of({"w": single.tensors["w"].codes}, schema_of(single)).held(TERNARY, schema_of(single).ternary)
    single.tensors["w"].codes.zero_()
    for tensor in codes.values():
        tensor.zero_()
    assert alone.codes.tolist() == [1] * 40
    assert same(decode(data, schema, reference=reference), message)


def test_the_digest_sees_every_trit():
    schema = schema_of(only(np.zeros(40, np.int8)))
    digests = set()
    for place in range(40):
        for value in (-1, 1):
            codes = torch.zeros(40, dtype=torch.int8)
            codes[place] = value
            digests.add(reference_of({"w": codes}, schema).held(TERNARY, schema.ternary).digest)
    assert len(digests) == 80


def test_a_message_without_trits_needs_no_reference():
    message = Message({"b": torch.ones(3)})
    schema = schema_of(message)
    for codec in ("base3", "zstd", "ans", "auto"):
        data = encode(message, schema, reference={}, codec=codec)
        assert same(decode(data, schema, reference={}), message)

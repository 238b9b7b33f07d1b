"""Compiled loops decode `ans` to what constriction decodes, or refuse it by the same name.

Without numba the loops run as they are written: slow, and held to the same.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import drift, trits

from ternfed.wire import ans, fast_ans
from ternfed.wire.errors import WireError
from ternfed.wire.held import HeldTrits, Trits

IS_THERE = find_spec("numba") is not None
SIZES = st.sampled_from([(1,), (4,), (5,), (6, 0, 3), (40, 21), (700, 333)])


@pytest.fixture(scope="module")
def compiled():
    """The loops by numba, or as they are."""
    if IS_THERE:
        yield fast_ans.loops()
        return
    numba = ModuleType("numba")
    numba.njit = lambda *args, **options: lambda function: function
    sys.modules["numba"] = numba
    try:
        with np.errstate(over="ignore"):
            yield import_module("ternfed.wire.compiled_ans")
    finally:
        del sys.modules["numba"]
        sys.modules.pop("ternfed.wire.compiled_ans", None)


def decoded(data, sizes, reference, loops):
    """The codes, or the name of the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ans, "FEWEST", 0)
        patch.setattr(ans, "loops", lambda: loops)
        patch.setattr(fast_ans, "loops", lambda: loops)
        try:
            return ans.decode(memoryview(data), sizes, reference).tolist()
        except WireError as error:
            return type(error).__name__


def sample(sizes, zeros, seed, given_reference, keep=True):
    rng = np.random.default_rng(seed)
    codes = trits(rng, sum(sizes), zeros)
    reference = HeldTrits(drift(rng, codes, 0.1), sizes, keep) if given_reference else None
    return codes, reference, ans.encode(Trits(codes, sizes, reference))


@settings(max_examples=60, deadline=None)
@given(SIZES, st.sampled_from([0.0, 0.01, 0.33, 0.99, 1.0]), st.integers(0, 99), st.booleans(), st.booleans())
def test_both_decode_the_same(compiled, sizes, zeros, seed, given_reference, keep):
    codes, reference, data = sample(sizes, zeros, seed, given_reference, keep)
    assert decoded(data, sizes, reference, compiled) == codes.tolist()
    assert decoded(data, sizes, reference, None) == codes.tolist()


@settings(max_examples=120, deadline=None)
@given(SIZES, st.integers(0, 99), st.booleans(), st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255))))
def test_both_refuse_the_same_damage(compiled, sizes, seed, given_reference, damage):
    _, reference, data = sample(sizes, 0.4, seed, given_reference)
    broken = bytearray(data)
    for place, byte in damage:
        broken[place % len(broken)] = byte
    assert decoded(broken, sizes, reference, compiled) == decoded(broken, sizes, reference, None)


def test_blocks_follow_each_other(compiled):
    if not IS_THERE:
        pytest.skip("takes minutes where the loops are not compiled")
    sizes = (700_000, 123_456)
    for given_reference in (False, True):
        codes, reference, data = sample(sizes, 0.3, 0, given_reference)
        assert np.array_equal(ans.decode(memoryview(data), sizes, reference), codes)


def test_without_numba_there_are_no_loops(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "ternfed.wire.compiled_ans", raising=False)
    assert fast_ans.loops.__wrapped__() is None

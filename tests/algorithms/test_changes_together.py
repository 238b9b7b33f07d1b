"""Small tensors rounded in one go have the codes that they have one by one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ternfed.algorithms import rest
from ternfed.quantize.ternary import NonFiniteError

SHAPES = st.lists(st.lists(st.integers(1, 7), max_size=3).map(tuple), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(0, 2**31), st.integers(1, 16), st.booleans())
def test_codes_and_steps_are_the_same(shapes, seed, bits, at_random):
    source = torch.Generator().manual_seed(seed)
    before = {str(k): torch.randn(shape, generator=source) for k, shape in enumerate(shapes)}
    moved = {
        name: tensor + 10.0 ** -(seed % 9) * torch.randn(tensor.shape, generator=source)
        for name, tensor in before.items()
    }
    each = dict.fromkeys(moved, bits)
    first = rest.changes(moved, before, each, torch.Generator().manual_seed(1) if at_random else None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rest, "SMALL", 0)
        second = rest.changes(moved, before, each, torch.Generator().manual_seed(1) if at_random else None)
    for name in moved:
        assert torch.equal(first[name].codes, second[name].codes)
        assert torch.equal(first[name].exponents, second[name].exponents)
        assert first[name].exponents.shape == second[name].exponents.shape


def test_what_is_not_finite_is_refused():
    with pytest.raises(NonFiniteError):
        rest.changes({"w": torch.tensor([1.0, torch.nan])}, {"w": torch.zeros(2)}, {"w": 3}, None)

"""Tensors on a grid: exact scaling, unbiased rounding, and codes that fit their bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ternfed.quantize.grid import HIGHEST, LOWEST, Grid, exponents_for, nearest_codes, on_grid, recognise
from ternfed.quantize.ternary import NonFiniteError

SIZES = st.floats(2**-20, 2**20, width=32)


@given(SIZES, st.integers(2, 8), st.booleans())
def test_a_change_of_the_largest_size_has_a_code_of_these_bits(size: float, bits: int, rows: bool) -> None:
    change = size * (2 * torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) - 1)
    change[2, 3] = size
    largest = change.abs().amax(1) if rows else change.abs().max()
    exponents = exponents_for(largest, bits)
    top = 2 ** (bits - 1) - 1
    for source in (None, torch.Generator().manual_seed(2)):
        assert int(on_grid(change, exponents, source).codes.abs().max()) <= top
    finer = on_grid(change, exponents - 1, None)
    assert int(finer.codes.abs().max()) > top / 2  # no finer step than half of it would do


def test_the_step_of_a_power_of_two_is_exact() -> None:
    assert exponents_for(torch.tensor(0.5), 2).item() == -1
    assert exponents_for(torch.tensor(0.51), 2).item() == 0
    assert exponents_for(torch.tensor(0.0), 2).item() == LOWEST
    assert exponents_for(torch.tensor(3e38), 2).item() == HIGHEST


@given(st.integers(LOWEST, HIGHEST - 24), st.lists(st.integers(-(2**24), 2**24), min_size=1, max_size=9))
def test_a_value_on_the_grid_stays_bit_for_bit(exponent: int, codes: list[int]) -> None:
    value = Grid(torch.tensor(codes, dtype=torch.int32), torch.tensor(exponent, dtype=torch.int16))
    again = on_grid(value.dense(), value.exponents)
    assert torch.equal(again.codes, value.codes)
    assert torch.equal(nearest_codes(value.dense(), value.exponents), value.codes)


def test_rounding_at_random_has_the_value_as_its_mean() -> None:
    value, exponents = torch.tensor([0.3, -0.7, 1.0, 0.0]), torch.tensor(0, dtype=torch.int16)
    source = torch.Generator().manual_seed(0)
    mean = torch.stack([on_grid(value, exponents, source).dense() for _ in range(4000)]).mean(0)
    # Four standard errors of a coin at worst: 4 · 0.5 / √4000.
    torch.testing.assert_close(mean, value, rtol=0, atol=0.032)
    assert torch.equal(mean[2:], value[2:])  # what is on the grid is not moved


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(NonFiniteError):
        on_grid(torch.tensor([bad]), torch.tensor(0, dtype=torch.int16))


def test_one_bit_has_twice_the_step_of_two() -> None:
    assert exponents_for(torch.tensor(1.0), 2) == 0
    assert exponents_for(torch.tensor(1.0), 1) == 1


def test_no_bit_is_refused() -> None:
    with pytest.raises(ValueError, match="bits = 0: at least 1"):
        exponents_for(torch.tensor(1.0), 0)


def test_rows_have_steps_of_their_own() -> None:
    value: Tensor = torch.tensor([[0.4, -0.4], [40.0, -40.0]])
    grid = on_grid(value, exponents_for(value.abs().amax(1), 4))
    assert grid.exponents.shape == (2,)
    assert grid.dense().shape == value.shape
    assert int(grid.codes.abs().max()) <= 7


class TestRecognise:
    @given(
        st.lists(st.lists(st.integers(-127, 127), min_size=3, max_size=3), min_size=1, max_size=5),
        st.lists(st.integers(LOWEST, 90), min_size=5, max_size=5),
        st.booleans(),
    )
    def test_what_lies_on_a_grid_is_found_to_the_bit(
        self, codes: list[list[int]], exponents: list[int], rows: bool
    ) -> None:
        steps = torch.tensor(exponents[: len(codes)] if rows else exponents[0], dtype=torch.int16)
        whole = torch.tensor(codes, dtype=torch.int32)
        value = Grid(whole if rows else whole.flatten(), steps).dense()
        found = recognise(value)
        assert found is not None
        assert torch.equal(found.dense(), value)
        assert found.exponents.shape == steps.shape
        assert int(found.codes.abs().max()) <= 127

    @given(st.integers(128, 2**24), st.integers(-100, 50))
    def test_codes_beyond_a_byte_are_not(self, code: int, exponent: int) -> None:
        value = torch.tensor([code | 1, 1]) * 2.0**exponent if code < 2**24 else torch.tensor([2.0**24, 1])
        assert recognise(value.float()) is None

    @pytest.mark.parametrize("value", [[float("nan")], [float("inf"), 1.0], [], [2**-149.0, 1.0], [1 / 3]])
    def test_nor_is_anything_else(self, value: list[float]) -> None:
        assert recognise(torch.tensor(value)) is None
        assert recognise(torch.ones(2, dtype=torch.int32)) is None

    def test_a_number_below_the_finest_step_is_none(self) -> None:
        assert recognise(torch.tensor([2**-140.0, 0.0])) is None

    def test_nothing_but_zeros_is_one(self) -> None:
        found = recognise(torch.zeros(2, 3))
        assert found is not None
        assert not found.dense().any()

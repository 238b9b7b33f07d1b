"""EDEN's quantizer: what it loses is what its paper says, and the mean over many rotations is the vector."""

from itertools import pairwise
from math import erf, exp, inf, pi, sqrt

import pytest
import torch
from torch import Tensor

from ternfed.quantize.rotation import (
    CENTROIDS,
    SMALLEST,
    TRITS,
    blocks_of,
    centroids,
    hadamard,
    random_signs,
    rotated,
    turned_back,
)
from ternfed.quantize.ternary import NonFiniteError

THEORY = {1: pi / 2 - 1, TRITS: 0.26223, 2: 0.13312, 3: 0.03578, 4: 0.00959}
"""1 / (1 - D) - 1, where D is the loss of the Lloyd–Max quantizer: EDEN's with its unbiased scale."""


def heavy_tailed(size: int) -> Tensor:
    """A vector that is far from normal: a few coordinates have most of its length."""
    source = torch.Generator().manual_seed(7)
    normal = torch.randn(2, size, generator=source)
    return normal[0] * (1.5 * normal[1]).exp()


def there_and_back(vector: Tensor, bits: float, seed: int) -> Tensor:
    signs = random_signs(len(vector), torch.Generator().manual_seed(seed))
    return turned_back(rotated(vector, bits, signs), bits, signs, len(vector))


def loss(vector: Tensor, decoded: Tensor) -> float:
    return float((decoded - vector).square().sum() / vector.square().sum())


class TestRotation:
    @pytest.mark.parametrize("size", [1, 2, 8, 64])
    def test_hadamards_rows_are_orthogonal_signs(self, size: int) -> None:
        matrix = torch.stack([hadamard(row) for row in torch.eye(size)])
        assert set(matrix.flatten().tolist()) <= {1.0, -1.0}
        assert torch.equal(matrix @ matrix, size * torch.eye(size))

    @pytest.mark.parametrize(
        ("size", "blocks"),
        [(1, [64]), (64, [64]), (65, [64, 64]), (1920, [1024, 512, 256, 128]), (1930, [1024, 512, 256, 128, 64])],
    )
    def test_blocks_are_the_binary_digits_of_the_size(self, size: int, blocks: list[int]) -> None:
        assert blocks_of(size) == blocks

    @pytest.mark.parametrize("size", [63, 100, 4095, 4097, 23860, 1_000_001])
    def test_less_than_a_smallest_block_is_padding(self, size: int) -> None:
        assert 0 <= sum(blocks_of(size)) - size < SMALLEST
        assert len(set(blocks_of(size))) >= len(blocks_of(size)) - 1


class TestCentroids:
    @pytest.mark.parametrize("bits", sorted(CENTROIDS.keys() - {TRITS}))
    def test_each_is_the_mean_of_the_normal_numbers_nearest_to_it(self, bits: float) -> None:
        levels = centroids(bits).double().tolist()
        assert len(levels) == 2**bits
        borders = [-inf, *((low + high) / 2 for low, high in pairwise(levels)), inf]
        for level, low, high in zip(levels, borders[:-1], borders[1:], strict=True):
            share = (erf(high / sqrt(2)) - erf(low / sqrt(2))) / 2
            mean = (exp(-(low**2) / 2) - exp(-(high**2) / 2)) / sqrt(2 * pi) / share
            assert level == pytest.approx(mean, abs=1e-5)

    def test_trits_cost_a_twelfth_more_loss_and_a_twelfth_fewer_bits_than_the_best_three_numbers(self) -> None:
        vector = torch.randn(1 << 16, generator=torch.Generator().manual_seed(3))
        codes = rotated(vector, TRITS, random_signs(len(vector), torch.Generator().manual_seed(4))).codes
        shares = torch.bincount(codes, minlength=3) / len(codes)
        assert -float((shares * shares.log2()).sum()) == pytest.approx(1.407, abs=0.01)
        assert centroids(TRITS).tolist() == [-centroids(TRITS)[2], 0, centroids(TRITS)[2]]


class TestLoss:
    @pytest.mark.parametrize("bits", THEORY)
    @pytest.mark.parametrize("size", [4096, 23860])
    def test_it_is_the_papers_whatever_the_vector(self, bits: float, size: int) -> None:
        vector = heavy_tailed(size)
        losses = [loss(vector, there_and_back(vector, bits, seed)) for seed in range(10)]
        assert sum(losses) / 10 == pytest.approx(THEORY[bits], rel=0.03)

    @pytest.mark.parametrize("bits", THEORY)
    @pytest.mark.parametrize("size", [64, 1000, 4096])
    def test_what_is_decoded_is_never_longer_or_shorter_along_the_vector(self, bits: float, size: int) -> None:
        vector = heavy_tailed(size)
        for seed in range(5):
            along = (vector.double() * there_and_back(vector, bits, seed)).sum() / vector.double().square().sum()
            assert float(along) == pytest.approx(1, abs=1e-5)

    @pytest.mark.parametrize("bits", THEORY)
    @pytest.mark.parametrize("size", [64, 300])
    def test_the_mean_of_many_is_the_vector(self, bits: float, size: int) -> None:
        """Independent errors: the loss of the mean of n is the n-th part. A bias would stay, as after one H · D."""
        vector, draws = heavy_tailed(size), 400
        decoded = [there_and_back(vector, bits, seed) for seed in range(draws)]
        one = sum(loss(vector, each) for each in decoded) / draws
        assert loss(vector, torch.stack(decoded).mean(0)) < 1.5 * one / draws

    @pytest.mark.parametrize("bits", [1, TRITS, 2])
    def test_a_sender_that_keeps_the_length_loses_less(self, bits: float) -> None:
        vector = heavy_tailed(4096)
        signs = random_signs(len(vector), torch.Generator().manual_seed(5))
        decoded = turned_back(rotated(vector, bits, signs, keep_length=True), bits, signs, len(vector))
        assert float(decoded.norm()) == pytest.approx(float(vector.norm()), rel=1e-5)
        assert loss(vector, decoded) < 0.95 * loss(vector, there_and_back(vector, bits, 5))

    def test_other_signs_give_something_else(self) -> None:
        vector = heavy_tailed(1000)
        mine, other = (random_signs(1000, torch.Generator().manual_seed(seed)) for seed in (0, 1))
        assert loss(vector, turned_back(rotated(vector, 4, mine), 4, other, 1000)) > 1


@pytest.mark.parametrize("bits", THEORY)
def test_nothing_stays_nothing(bits: float) -> None:
    assert not there_and_back(torch.zeros(100), bits, 0).any()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_finite_is_refused(wrong: float) -> None:
    with pytest.raises(NonFiniteError):
        rotated(torch.full((64,), wrong), 1, torch.ones(2, 64))

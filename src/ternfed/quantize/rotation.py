"""EDEN's quantizer: a vector is rotated at random, and each coordinate goes to the nearest of a few fixed numbers.

Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher: EDEN, ICML 2022; with one bit it is DRIVE (the same
authors, NeurIPS 2021). The rotation is a randomised Hadamard transform: random signs D, then all sums and differences
H, and both once more. Whatever the vector, its coordinates are nearly normal after that, so that the best numbers to
round them to are known beforehand (Lloyd, Max). After H · D alone they are not where a few coordinates are much larger
than the others, and the mean over many rotations is then another vector. Only sums, differences and products of single
numbers undo it: the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ternfed.quantize.ternary import check_finite

SMALLEST = 64
"""No block is smaller: the coordinates of a rotated block must be many to be nearly normal."""

TRITS = 1.5
"""In place of a number of bits: three numbers, zero among them, which an entropy coder writes in 1.41 bits."""

CENTROIDS: Mapping[float, tuple[float, ...]] = {
    1: (0.7978846,),
    TRITS: (0.0, 1.3674023),
    2: (0.4527800, 1.5104176),
    3: (0.2450942, 0.7560053, 1.3439093, 2.1519457),
    4: (0.1283950, 0.3880483, 0.6567591, 0.9423405, 1.2562312, 1.6180464, 2.0690172, 2.7325896),
}
"""By bits, the positive half of the Lloyd–Max quantizer of the normal distribution: each is the mean of those numbers
that are nearer to it than to any other. Trits have a wider zero, all below 0.8: a twelfth more is lost than by the best
three numbers, for a twelfth fewer bits."""
_ZERO = 0.8


class Rotated(NamedTuple):
    """A vector as EDEN sends it."""

    codes: Tensor
    """int32, from 0 upwards: which centroid each rotated coordinate went to, block by block."""
    scales: Tensor
    """float32: what each block is multiplied by when it is turned back."""


def blocks_of(size: int) -> list[int]:
    """Powers of two that hold so many numbers: the binary digits of the size, what is below 64 padded to 64."""
    rest = size % SMALLEST
    powers = [1 << place for place in range(size.bit_length()) if (size - rest) >> place & 1]
    return [*reversed(powers), *([SMALLEST] if rest else [])]


def random_signs(size: int, source: torch.Generator) -> Tensor:
    """D₁ and D₂, (2, n): +1 or -1 for each of the n coordinates of all blocks of a vector of this size."""
    return torch.randint(2, (2, sum(blocks_of(size))), generator=source).float().mul_(2).sub_(1)


def hadamard(values: Tensor) -> Tensor:
    """H · values, for a vector whose length n is a power of two. H is symmetric, and H · H = n."""
    length = 1
    while length < len(values):
        first, second = values.view(-1, 2, length).unbind(1)
        values = torch.stack([first + second, first - second], 1).view(-1)
        length *= 2
    return values


def centroids(bits: float) -> Tensor:
    """The 2^bits numbers, or three, that codes stand for, ascending."""
    half = torch.tensor(CENTROIDS[bits])
    return torch.cat([-half[half > 0].flip(0), half])


def _borders(levels: Tensor) -> Tensor:
    """What lies between two neighbours: halfway, but for trits."""
    return levels.new_tensor([-_ZERO, _ZERO]) if len(levels) == 3 else (levels[1:] + levels[:-1]) / 2


def rotated(vector: Tensor, bits: float, signs: Tensor, *, keep_length: bool = False) -> Rotated:
    """A vector in so many bits per coordinate. The mean over many rotations is the vector.

    A block x of n numbers becomes z = H D₂ H D₁ x, whose coordinates have variance n ‖x‖². Where c are the centroids
    that z / (√n ‖x‖) went to, EDEN's scale is ‖x‖² / ⟨z, c⟩: so ⟨x, decoded⟩ = ‖x‖² every time, and what is wrong
    points anywhere else. For a sender that makes up for its errors later, `keep_length` has ‖decoded‖ = ‖x‖ instead: it
    loses less, and who compares lengths on the other side sees the right ones.
    """
    check_finite(vector, "a change")
    blocks = blocks_of(len(vector))
    padded = torch.cat([vector.float(), vector.new_zeros(sum(blocks) - len(vector), dtype=torch.float32)])
    levels = centroids(bits).to(vector.device)
    borders = _borders(levels)
    codes, scales = [], []
    for block, (first, second) in zip(
        torch.split(padded, blocks), _by_block(signs.to(vector.device), blocks), strict=True
    ):
        square = block.double().square().sum()
        spread = hadamard(hadamard(block * first) * second).double()
        code = torch.bucketize(spread / (len(block) * square).sqrt(), borders.double())
        along = (spread * levels[code]).sum()
        codes.append(code.to(torch.int32))
        scale = square.sqrt() / (len(block) * levels[code].double().norm()) if keep_length else square / along
        scales.append(torch.where(along > 0, scale, 0.0).float())
    return Rotated(torch.cat(codes), torch.stack(scales))


def turned_back(value: Rotated, bits: float, signs: Tensor, size: int) -> Tensor:
    """The vector that was meant, by the signs that it was rotated with."""
    blocks, levels = blocks_of(size), centroids(bits)
    parts = zip(torch.split(value.codes, blocks), value.scales, _by_block(signs, blocks), strict=True)
    back = [
        hadamard(hadamard(levels[codes.long()]) * second) * first * scale for codes, scale, (first, second) in parts
    ]
    return torch.cat(back)[:size]


def _by_block(signs: Tensor, blocks: list[int]) -> list[tuple[Tensor, Tensor]]:
    """D₁ and D₂ of each block."""
    return [(part[0], part[1]) for part in torch.split(signs, blocks, 1)]

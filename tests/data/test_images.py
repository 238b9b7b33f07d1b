"""Normalisation and augmentation against a plain loop over images."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ternfed.data.images import crop_flip, normalise

CIFAR_MEAN, CIFAR_DEVIATION = (0.4914, 0.4824, 0.4467), (0.247, 0.244, 0.262)


def random_images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def draws(*shape: int, padding: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.randint(0, 2 * padding + 1, (*shape, 2), generator=generator)
    return offsets, torch.rand(shape, generator=generator) < 0.5


def plain_crop_flip(image: Tensor, offset: Tensor, flip: bool, padding: int) -> Tensor:
    """The reference: pad, cut, mirror one C×H×W image."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    row, column = offset.tolist()
    cut = padded[:, row : row + height, column : column + width]
    return cut.flip(-1) if flip else cut


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 9), width=st.integers(1, 9), channels=st.integers(1, 3),
    padding=st.integers(0, 5), seed=st.integers(0, 1000), dtype=st.sampled_from([torch.uint8, torch.float32]),
)  # fmt: skip
def test_crop_and_flip_equals_padding_cutting_and_mirroring_each_image(
    height: int, width: int, channels: int, padding: int, seed: int, dtype: torch.dtype
) -> None:
    images = random_images(6, channels, height, width, seed=seed).to(dtype)
    offsets, flips = draws(6, padding=padding, seed=seed)
    expected = torch.stack(
        [plain_crop_flip(*each, padding) for each in zip(images, offsets, flips.tolist(), strict=True)]
    )
    result = crop_flip(images, offsets, flips, padding)
    assert result.dtype == dtype
    assert torch.equal(result, expected)


def test_the_middle_offset_without_a_flip_changes_nothing() -> None:
    images = random_images(5, 3, 32, 32)
    assert torch.equal(crop_flip(images, torch.full((5, 2), 4), torch.zeros(5, dtype=torch.bool)), images)


def test_many_clients_at_once_get_what_each_gets_alone() -> None:
    images = random_images(3, 4, 3, 32, 32)
    offsets, flips = draws(3, 4, padding=4)
    together = crop_flip(images, offsets, flips)
    alone = torch.stack([crop_flip(*each) for each in zip(images, offsets, flips, strict=True)])
    assert torch.equal(together, alone)
    together_normal = normalise(together, CIFAR_MEAN, CIFAR_DEVIATION)
    assert torch.equal(together_normal, torch.stack([normalise(each, CIFAR_MEAN, CIFAR_DEVIATION) for each in alone]))


def test_normalise_scales_bytes_to_one_and_then_standardises_each_channel() -> None:
    images = random_images(4, 3, 5, 5)
    result = normalise(images, CIFAR_MEAN, CIFAR_DEVIATION, torch.float64)
    for channel in range(3):
        expected = (images[:, channel].double() / 255 - CIFAR_MEAN[channel]) / CIFAR_DEVIATION[channel]
        assert torch.equal(result[:, channel], expected)


def test_normalise_takes_its_constants_as_tensors_too() -> None:
    images = random_images(4, 3, 5, 5)
    as_tensors = normalise(images, torch.tensor(CIFAR_MEAN), torch.tensor(CIFAR_DEVIATION))
    assert torch.equal(as_tensors, normalise(images, CIFAR_MEAN, CIFAR_DEVIATION))


def test_normalise_rounds_to_a_narrow_type_only_at_the_end() -> None:
    images = random_images(4, 1, 28, 28)
    wide = normalise(images, (0.1307,), (0.3081,))
    assert torch.equal(normalise(images, (0.1307,), (0.3081,), torch.bfloat16), wide.bfloat16())


def test_normalise_leaves_the_scale_of_floats_alone_and_serves_plain_vectors() -> None:
    vectors = torch.tensor([[0.0, 0.5], [1.0, 0.25]])
    assert torch.equal(normalise(vectors, (0.5,), (0.25,)), torch.tensor([[-2.0, 0.0], [2.0, -1.0]]))


def test_normalise_refuses_a_number_of_channels_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"3 channel values for inputs of shape \(2, 1, 4, 4\)"):
        normalise(random_images(2, 1, 4, 4), CIFAR_MEAN, CIFAR_DEVIATION)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_captured_graph_gives_what_the_cpu_gives() -> None:
    images = random_images(2, 64, 3, 32, 32)
    offsets, flips = draws(2, 64, padding=4)
    static = [each.cuda() for each in (torch.zeros_like(images), torch.zeros_like(offsets), torch.zeros_like(flips))]

    def step() -> Tensor:
        return normalise(crop_flip(*static), CIFAR_MEAN, CIFAR_DEVIATION)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    for place, value in zip(static, (images, offsets, flips), strict=True):
        place.copy_(value)
    graph.replay()
    expected = normalise(crop_flip(images, offsets, flips), CIFAR_MEAN, CIFAR_DEVIATION)
    # Two divisions and a subtraction on values below 3: a few units in the last place of float32.
    assert torch.allclose(result.cpu(), expected, rtol=0, atol=1e-6)

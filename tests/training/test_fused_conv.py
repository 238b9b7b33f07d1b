"""The first convolution and 1×1 ones with a stride, computed in ways of their own, give what PyTorch's give.

With a GPU the kernels run there; without one, Triton's interpreter runs them on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from triton_kernels import DEVICE, use_kernels

from ternfed.models import resnet18
from ternfed.training import fused_conv
from ternfed.training.fused_conv import Tiling, fuse_convolutions


@pytest.fixture
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(monkeypatch, fused_conv)


class Case(NamedTuple):
    make: Callable[[], nn.Conv2d]
    shape: tuple[int, int, int, int]
    dtype: torch.dtype = torch.float16
    tiling: Tiling = Tiling(pixels=16, parts=3)
    slopes: bool = False
    """Slopes of the images are asked for."""

    def images(self) -> Tensor:
        return numbers(0, self.shape, self.dtype)


def numbers(seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=source).to(dtype).to(DEVICE, memory_format=torch.channels_last)


def stem() -> nn.Conv2d:
    return nn.Conv2d(3, 20, 3, padding=1, bias=False)


def picking() -> nn.Conv2d:
    return nn.Conv2d(6, 10, 1, stride=2, bias=False)


CASES = {
    "three channels": Case(stem, (2, 3, 8, 9)),
    "with a bias": Case(lambda: nn.Conv2d(3, 32, 3, padding=1), (3, 3, 7, 8)),
    "a stride": Case(lambda: nn.Conv2d(1, 8, 5, stride=(2, 3), padding=2), (3, 1, 9, 8)),
    "a kernel that is no square": Case(lambda: nn.Conv2d(2, 6, (3, 1), padding=(0, 2)), (1, 2, 6, 5)),
    "the longest patch": Case(lambda: nn.Conv2d(7, 5, 3), (2, 7, 5, 5)),
    "the tiles of a GPU": Case(stem, (3, 3, 16, 16), tiling=Tiling()),
    "1×1 with a stride": Case(picking, (3, 6, 7, 8), slopes=True),
    "1×1 with another stride": Case(lambda: nn.Conv2d(6, 4, 1, (3, 1), bias=False), (2, 6, 7, 5), slopes=True),
    "1×1 of images": Case(picking, (3, 6, 6, 6)),
}


def outcome(conv: nn.Conv2d, images: Tensor, slopes: bool) -> dict[str, Tensor]:
    """Outputs and all slopes, in float64."""
    images = images.clone(memory_format=torch.preserve_format).requires_grad_(slopes)
    outputs = conv(images)
    outputs.backward(numbers(1, outputs.shape, torch.float16).to(outputs.dtype))
    found = {"outputs": outputs, **{name: p.grad for name, p in conv.named_parameters()}}
    if slopes:
        found["images"] = images.grad
    return {name: tensor.detach().to("cpu", torch.float64) for name, tensor in found.items()}


def made(case: Case) -> nn.Conv2d:
    torch.manual_seed(0)
    return case.make().to(case.dtype).to(DEVICE, memory_format=torch.channels_last)


@pytest.mark.usefixtures("_kernels")
# Triton's interpreter multiplies bfloat16 as if it were whole numbers.
@pytest.mark.parametrize("dtype", [torch.float16] + [torch.bfloat16] * (DEVICE == "cuda"), ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_outputs_and_slopes_are_those_of_pytorch_in_float64(
    case: Case, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case._replace(dtype=dtype)
    monkeypatch.setattr(fused_conv, "TILING", case.tiling)
    conv = made(case)
    fused = fuse_convolutions(deepcopy(conv))
    monkeypatch.setattr(nn.Conv2d, "forward", None)
    found = outcome(fused, case.images(), case.slopes)
    monkeypatch.undo()
    wanted = outcome(deepcopy(conv).double(), case.images().double(), case.slopes)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        # Each number is rounded to 16 bits once, after sums in float32.
        error = ((found[name] - tensor).abs() / (tensor.abs() + tensor.abs().max())).max().item()
        assert error <= torch.finfo(dtype).eps, f"{name}: {error}"


@pytest.mark.usefixtures("_kernels")
def test_a_step_repeats_to_the_last_bit() -> None:
    case = CASES["the tiles of a GPU"]
    first, second = (outcome(fuse_convolutions(made(case)), case.images(), False) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def fails(*_: object, **__: object) -> Tensor:
    raise AssertionError("this is not for the fast way")


@pytest.fixture
def _never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_conv, "runs_on", lambda device: True)
    monkeypatch.setattr(fused_conv._ShortPatches, "apply", fails)
    monkeypatch.setattr(fused_conv._PickedPixels, "apply", fails)


@pytest.mark.usefixtures("_never")
@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(8, 4, 3),
        nn.Conv2d(3, 129, 3),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(3, 4, 3, dilation=2),
        nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(3, 4, 3, padding="same"),
        nn.Conv2d(64, 4, 1),
        nn.Conv2d(64, 4, 1, stride=2, padding=1),
        nn.Conv2d(64, 4, 1, stride=2),
    ],
    ids=str,
)
def test_other_convolutions_are_left_to_pytorch(conv: nn.Conv2d) -> None:
    conv = conv.to(torch.bfloat16).to(DEVICE, memory_format=torch.channels_last)
    images = numbers(0, (2, conv.in_channels, 8, 8), torch.bfloat16)
    assert torch.equal(fuse_convolutions(deepcopy(conv))(images), conv(images))


@pytest.mark.usefixtures("_never")
@pytest.mark.parametrize("make", [stem, picking])
@pytest.mark.parametrize("change", ["float32", "another layout", "mixed"])
def test_other_numbers_and_layouts_are_left_to_pytorch(make: Callable[[], nn.Conv2d], change: str) -> None:
    conv = make().to(DEVICE)
    images = numbers(0, (2, conv.in_channels, 8, 8), torch.float32)
    if change == "another layout":
        conv, images = conv.to(torch.bfloat16), images.to(torch.bfloat16).contiguous()
    if change == "mixed":  # as under autocast; it rounds by itself
        images = images.to(torch.bfloat16)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=change == "mixed"):
        assert torch.equal(fuse_convolutions(deepcopy(conv))(images), conv(images))


@pytest.mark.usefixtures("_never")
def test_images_whose_slopes_are_asked_for_are_left_to_pytorch() -> None:
    conv = stem().to(DEVICE, torch.bfloat16)
    images = numbers(0, (2, 3, 8, 8), torch.bfloat16).requires_grad_()
    assert torch.equal(fuse_convolutions(deepcopy(conv))(images), conv(images))


@pytest.mark.usefixtures("_never")
def test_an_image_smaller_than_the_kernel_is_pytorchs_own_error() -> None:
    with pytest.raises(RuntimeError, match=r"Kernel size can't be greater"):
        fuse_convolutions(nn.Conv2d(3, 4, 3).to(DEVICE, torch.bfloat16))(numbers(0, (2, 3, 2, 8), torch.bfloat16))


@pytest.mark.usefixtures("_never")
def test_subclasses_and_many_models_at_once_are_left_to_pytorch() -> None:
    class Own(nn.Conv2d):
        pass

    images = numbers(0, (2, 3, 8, 8), torch.bfloat16)
    fuse_convolutions(Own(3, 4, 3).to(DEVICE, torch.bfloat16))(images)
    model = fuse_convolutions(stem().to(DEVICE, torch.bfloat16))
    tensors = {name: torch.stack((tensor, tensor)) for name, tensor in model.state_dict().items()}
    vmap(lambda own, batch: functional_call(model, own, (batch,)))(tensors, images.expand(2, -1, -1, -1, -1))


def test_names_and_parameters_stay_and_without_a_gpu_nothing_is_computed_otherwise() -> None:
    torch.manual_seed(0)
    plain = resnet18(width=16).to(DEVICE, memory_format=torch.channels_last)
    fused = fuse_convolutions(deepcopy(plain))
    assert list(fused.state_dict()) == list(plain.state_dict())
    images = numbers(0, (3, 3, 8, 8), torch.float32)
    assert torch.equal(plain(images), fused(images))

"""BatchNorm, residual and ReLU in fused kernels give what PyTorch's operations give, and only where they are for it.

With a GPU the kernels run there; without one, Triton's interpreter runs them on the CPU.
"""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from triton_kernels import DEVICE, use_kernels

from ternfed.models import Block, cnn, resnet18
from ternfed.training import fused_norm
from ternfed.training.fused_norm import Tiling, fork, fuse_norms, norm_relu

SMALL = Tiling(
    parts=4, second_parts=3, channels=8, numbers=64, warps=4, join_channels=2, few_rows=16, few_channels=4,
    few_numbers=32, few_warps=4, stages=1,
)  # fmt: skip
"""Tiles so small that a few numbers need several of them."""


@pytest.fixture
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(monkeypatch, fused_norm)


ROUNDINGS = 20
"""So many of them may add up."""


class Case(NamedTuple):
    shape: tuple[int, int, int, int]
    tiling: Tiling = SMALL
    dtype: torch.dtype = torch.float32
    mean: float = 0.5
    spread: float = 2.0

    def random(self, seed: int) -> Tensor:
        source = torch.Generator().manual_seed(seed)
        return torch.randn(self.shape, generator=source).to(memory_format=torch.channels_last)

    def inputs(self) -> Tensor:
        return (self.mean + self.spread * self.random(0)).to(DEVICE, self.dtype)

    @property
    def rounding(self) -> float:
        """x - mean has so many units in the last place of the mean."""
        return torch.finfo(torch.float32).eps * (1 + abs(self.mean) / self.spread)


CASES = {
    "several tiles in each part": Case((5, 8, 6, 7)),
    "rows and channels that fill no tile": Case((3, 11, 5, 3)),
    "more channels than one program takes": Case((2, 20, 5, 5)),
    "so few rows that one program takes them": Case((2, 6, 2, 3)),
    "one image": Case((1, 3, 9, 9)),
    "one pixel": Case((7, 5, 1, 1)),
    "one channel": Case((4, 1, 5, 5)),
    "the tiles of a GPU, few rows": Case((2, 16, 8, 8), Tiling()),
    "the tiles of a GPU, many rows": Case((2, 40, 24, 24), Tiling(few_rows=1024)),
    "tiles on their way while one is worked on": Case((5, 8, 6, 7), SMALL._replace(stages=3)),
    "bfloat16": Case((5, 8, 6, 7), dtype=torch.bfloat16),
    "float16": Case((5, 8, 6, 7), dtype=torch.float16),
    "a large mean and a small variance": Case((5, 8, 6, 7), mean=1000.0, spread=0.1),
    "a large mean and a small variance, few rows": Case((2, 6, 2, 3), mean=1000.0, spread=0.1),
}


def norm_of(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.3)
    source = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            tensor.copy_(0.5 + torch.rand(channels, generator=source))
        norm.bias.sub_(1.0)
    return norm.to(DEVICE)


def outcome(
    call: Callable[[nn.BatchNorm2d, Tensor, Tensor | None], Tensor], case: Case, residual: bool, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Outputs, all slopes and the buffers afterwards, in float64."""
    norm = fuse_norms(norm_of(case.shape[1])).to(torch.float64 if dtype == torch.float64 else torch.float32)
    inputs = case.inputs().to(dtype).requires_grad_()
    other = case.random(1).to(DEVICE, case.dtype).to(dtype).requires_grad_() if residual else None
    outputs = call(norm, inputs, other)
    # ReLU's derivative jumps at 0, where rounding decides on which side a number lies: no slope is sent there.
    before = norm_of(case.shape[1]).double()(case.inputs().double())
    before = before if other is None else before + other.detach().double()
    outputs.backward((case.random(2).to(DEVICE, case.dtype) * (before.abs() > ROUNDINGS * case.rounding)).to(dtype))
    found = {"outputs": outputs, "inputs": inputs.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    if other is not None:
        found["residual"] = other.grad
    return {
        name: tensor.detach().to("cpu", torch.float64) for name, tensor in (found | dict(norm.named_buffers())).items()
    }


def compare(call: Callable[[nn.BatchNorm2d, Tensor, Tensor | None], Tensor], case: Case, residual: bool) -> None:
    """Against PyTorch in float64 on the same numbers; rounding to 16 bits once is allowed."""
    found, wanted = (outcome(call, case, residual, dtype) for dtype in (case.dtype, torch.float64))
    for name, tensor in wanted.items():
        own = torch.finfo(case.dtype).eps if name in ("outputs", "inputs", "residual") else 0.0
        scale = tensor.abs().max().clamp_min(1.0).item()
        error = ((found[name] - tensor).abs() / (tensor.abs() + scale)).max().item()
        assert error <= own + ROUNDINGS * case.rounding, f"{name}: {error}"


KINDS = ["norm", "norm and ReLU", "norm, residual and ReLU"]


def compare_kind(
    kind: str, case: Case, monkeypatch: pytest.MonkeyPatch, then: Callable[[Tensor], Tensor] = lambda outputs: outputs
) -> None:
    """What is compared is `then` of the outputs."""
    monkeypatch.setattr(fused_norm, "TILING", case.tiling)
    fits = []
    original = fused_norm._fits
    monkeypatch.setattr(fused_norm, "_fits", lambda *of: fits.append(original(*of)) or fits[-1])
    call = (lambda norm, batch, _: norm(batch)) if kind == "norm" else norm_relu
    compare(lambda *of: then(call(*of)), case, "residual" in kind)
    assert fits[0], "the kernels are for this"
    assert not any(fits[1:]), "and not for the float64 that they are compared with"


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_slopes_and_statistics_are_those_of_pytorch(
    kind: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_kind(kind, case, monkeypatch)


def both_ways(outputs: Tensor) -> Tensor:
    """The outputs again, exactly, and of the slopes of both ways their sum: twice the slope, and its opposite."""
    outputs, beside = fork(outputs)
    return 2 * outputs - beside


def both_ways_in_two_layouts(outputs: Tensor) -> Tensor:
    outputs, beside = fork(outputs)
    beside.register_hook(lambda slope: slope.contiguous())
    return 2 * outputs - beside


WAYS = {
    "both ways": both_ways,
    "both ways, in two layouts": both_ways_in_two_layouts,
    "the first way alone": lambda outputs: fork(outputs)[0],
    "the second way alone": lambda outputs: fork(outputs)[1],
}


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("case", ["several tiles in each part", "so few rows that one program takes them", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_slopes_of_two_ways_are_added(kind: str, way: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_kind(kind, CASES[case], monkeypatch, WAYS[way])


def blocks() -> nn.Sequential:
    """Three blocks, whose inputs come from a norm with ReLU, and from blocks."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Conv2d(3, 16, 3, padding=1, bias=False),
            norm=nn.BatchNorm2d(16),
            relu=nn.ReLU(),
            blocks=nn.Sequential(*(Block(16, stride, nn.BatchNorm2d) for stride in (1, 2, 1))),
        )
    )


class Detours(TorchDispatchMode):
    """Counts batches of slopes that PyTorch adds up, or makes of zeros."""

    count = 0

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = call(*args, **(kwargs or {}))
        aten = torch.ops.aten
        self.count += call.overloadpacket in (aten.add, aten.add_, aten.zeros, aten.zero_) and made.dim() == 4
        return made


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("few_rows", [0, 1024], ids=["many rows", "few rows"])
def test_blocks_train_as_without_and_leave_no_slopes_to_add(few_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_norm, "TILING", SMALL._replace(few_rows=few_rows))
    torch.manual_seed(0)
    plain = blocks().to(DEVICE).to(memory_format=torch.channels_last)
    fused, exact = fuse_norms(deepcopy(plain)), plain.double()
    inputs, counted = Case((4, 3, 8, 8)).inputs(), []
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        for model, batch in ((fused, inputs), (exact, inputs.double())):
            loss = model(batch).square().sum()
            with Detours() as detours:
                loss.backward()
            counted.append(detours.count)
    assert counted == [0, 3]
    for (name, parameter), wanted in zip(fused.named_parameters(), exact.parameters(), strict=True):
        assert (parameter.grad - wanted.grad).norm() <= 1e-3 * wanted.grad.norm(), name


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("reentrant", [False, True], ids=["by saved tensors", "reentrant"])
def test_a_block_may_be_computed_again_for_the_backward_pass(reentrant: bool) -> None:
    torch.manual_seed(0)
    once = fuse_norms(blocks().to(DEVICE).to(memory_format=torch.channels_last))
    again, inputs = deepcopy(once), Case((4, 3, 8, 8)).inputs()
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        once(inputs).square().sum().backward()
        batch = again[:3](inputs)
        for block in again.blocks:
            batch = checkpoint(block, batch, use_reentrant=reentrant)
        batch.square().sum().backward()
    for (name, parameter), wanted in zip(again.named_parameters(), once.parameters(), strict=True):
        assert (parameter.grad - wanted.grad).norm() <= 1e-3 * wanted.grad.norm(), name


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(
    "change",
    [
        lambda outputs: outputs + 1,
        lambda outputs: outputs.detach(),
        lambda outputs: outputs.detach_(),
        lambda outputs: outputs.mul_(2),
        lambda outputs: outputs.retain_grad() or outputs,
        lambda outputs: outputs.register_hook(lambda slope: slope) and outputs,
    ],
    ids=["another", "detached", "detached in place", "changed in place", "its slope asked for", "a hook"],
)
def test_what_has_no_twin_that_stands_for_it_goes_both_ways_itself(change: Callable[[Tensor], Tensor]) -> None:
    made = norm_relu(fuse_norms(norm_of(16)), Case((2, 16, 4, 4)).inputs())
    assert fork(made)[0] is made
    assert fork(made)[1] is not made
    outputs = change(made)
    assert all(way is outputs for way in fork(outputs))


@pytest.mark.usefixtures("_kernels")
def test_what_was_made_without_slopes_has_no_twin() -> None:
    with torch.no_grad():
        outputs = norm_relu(fuse_norms(norm_of(16)), Case((2, 16, 4, 4)).inputs())
    outputs.requires_grad_()
    assert all(way is outputs for way in fork(outputs))


class NoSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, batch: Tensor) -> Tensor:
        return batch.clone()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> None:
        return None


@pytest.mark.usefixtures("_kernels")
def test_where_no_slope_arrives_none_goes_on() -> None:
    norm = fuse_norms(norm_of(16))
    NoSlope.apply(norm_relu(norm, Case((2, 16, 4, 4)).inputs())).sum().backward()
    assert norm.weight.grad is None


@pytest.mark.usefixtures("_kernels")
def test_a_twin_takes_no_memory_and_goes_with_the_graph() -> None:
    gc.disable()  # reference counts alone must do
    try:
        outputs = norm_relu(fuse_norms(norm_of(16)), *(Case((2, 16, 4, 4)).random(seed).to(DEVICE) for seed in (0, 1)))
        twin = fork(outputs)[1]
        assert twin.data_ptr() == outputs.data_ptr()
        loss = fuse_norms(Block(16, 1, nn.BatchNorm2d).to(DEVICE))(outputs).sum()
        held = weakref.ref(outputs), weakref.ref(twin)
        del outputs, twin
        loss.backward()
        assert not any(reference() is not None for reference in held)
    finally:
        gc.enable()


@pytest.mark.usefixtures("_kernels")
def test_a_step_repeats_to_the_last_bit() -> None:
    first, second = (outcome(norm_relu, CASES["the tiles of a GPU, many rows"], True, torch.float32) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.usefixtures("_kernels")
def test_what_is_not_a_number_is_not_hidden() -> None:
    norm = fuse_norms(norm_of(4))
    inputs = Case((2, 4, 4, 4)).inputs()
    inputs[0, 1, 2, 3] = torch.nan
    outputs = norm_relu(norm, inputs)
    assert outputs[:, 1].isnan().all()
    assert not outputs[:, (0, 2, 3)].isnan().any()


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("make", [lambda: resnet18(width=16), lambda: cnn(size=16)], ids=["resnet18", "cnn"])
def test_a_network_trains_as_without(make: Callable[[], nn.Module]) -> None:
    # With four channels, channels last and PyTorch 2.13, backward passes after this one damaged the heap (docs/LOG.md).
    torch.manual_seed(0)
    plain = make().to(DEVICE).to(memory_format=torch.channels_last)
    fused, exact = fuse_norms(deepcopy(plain)), deepcopy(plain).double()
    assert list(fused.state_dict()) == list(plain.state_dict())
    inputs = Case((6, 3, 16, 16)).inputs()
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        for model, batch in ((fused, inputs), (exact, inputs.double())):
            model(batch).square().sum().backward()
    for (name, parameter), wanted in zip(fused.named_parameters(), exact.parameters(), strict=True):
        assert (parameter.grad - wanted.grad).norm() <= 1e-3 * wanted.grad.norm(), name
    for (name, buffer), wanted in zip(fused.named_buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(buffer.to(wanted), wanted, rtol=1e-4, atol=1e-5, msg=name)


def fails(*_: object) -> Tensor:
    raise AssertionError("these are not for the kernels")


@pytest.mark.parametrize(
    "change",
    [
        lambda norm: norm.eval(),
        lambda norm: norm.double(),
        lambda norm: setattr(norm, "momentum", None),
        lambda norm: norm.register_forward_hook(lambda *_: None),
        lambda norm: norm.register_full_backward_hook(lambda *_: None),
    ],
    ids=["evaluation", "float64", "a plain mean of statistics", "a hook", "a backward hook"],
)
def test_everything_else_is_left_to_pytorch(
    change: Callable[[nn.Module], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_norm, "runs_on", lambda device: True)
    monkeypatch.setattr(fused_norm, "_fused", fails)
    model = nn.Sequential(OrderedDict(norm=norm_of(4), relu=nn.ReLU()))
    change(model.norm)
    inputs = Case((2, 4, 4, 4)).inputs().to(model.norm.weight.dtype)
    wanted = deepcopy(model)(inputs)
    assert torch.equal(fuse_norms(model)(inputs), wanted)


@pytest.mark.parametrize("other", [{"affine": False}, {"track_running_stats": False}], ids=str)
def test_a_norm_without_parameters_or_statistics_is_left_to_pytorch(
    other: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_norm, "runs_on", lambda device: True)
    monkeypatch.setattr(fused_norm, "_fused", fails)
    norm, inputs = nn.BatchNorm2d(4, **other).to(DEVICE), Case((2, 4, 4, 4)).inputs()
    assert torch.equal(fuse_norms(deepcopy(norm))(inputs), norm(inputs))


def test_subclasses_and_another_layout_in_memory_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_norm, "runs_on", lambda device: True)
    monkeypatch.setattr(fused_norm, "_fused", fails)

    class Own(nn.BatchNorm2d):
        pass

    inputs = Case((2, 4, 4, 4)).inputs()
    fuse_norms(nn.Sequential(Own(4).to(DEVICE), nn.ReLU()))(inputs)
    fuse_norms(nn.Sequential(norm_of(4), nn.ReLU()))(inputs.contiguous())


@pytest.mark.skipif(DEVICE == "cuda", reason="PyTorch's own BatchNorm with channels last takes no vmap on a GPU")
def test_many_models_at_once_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_norm, "runs_on", lambda device: True)
    monkeypatch.setattr(fused_norm, "_fused", fails)
    model = nn.Sequential(norm_of(4), nn.ReLU())
    tensors = {name: torch.stack((tensor, tensor)) for name, tensor in model.state_dict().items()}
    inputs = Case((2, 4, 4, 4)).inputs().expand(2, -1, -1, -1, -1)
    both = vmap(lambda own, batch: functional_call(fuse_norms(model), own, (batch,)))(tensors, inputs)
    torch.testing.assert_close(both[0], model(inputs[0].contiguous()))


@pytest.mark.usefixtures("_kernels")
def test_a_relu_that_somebody_watches_gets_what_it_would() -> None:
    seen: list[Tensor] = []
    model = fuse_norms(nn.Sequential(norm_of(4), nn.ReLU()))
    model[1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(Case((2, 4, 4, 4)).inputs())
    assert seen[0].min() < 0


def test_without_a_gpu_nothing_is_computed_otherwise() -> None:
    if DEVICE == "cuda":
        pytest.skip("there is a GPU here")
    torch.manual_seed(0)
    plain = resnet18(width=16).to(memory_format=torch.channels_last)
    fused = fuse_norms(deepcopy(plain))
    inputs = Case((3, 3, 8, 8)).inputs()
    assert torch.equal(plain(inputs), fused(inputs))
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), fused.buffers(), strict=True))

"""BatchNorm, the addition of a residual and ReLU in one pass over memory, for training on an NVIDIA GPU.

PyTorch's own BatchNorm of bfloat16 with channels last keeps a few multiprocessors busy and the others waiting, and
ReLU and residual go over the same memory again (docs/LOG.md). `fuse_norms` has a model use the kernels of
`norm_kernels.py` instead: every `BatchNorm2d`, together with a ReLU that follows it in an `nn.Sequential`, and the two
of a `models.Block`. Names, parameters and buffers stay as they are, and whatever the kernels are not for (an
evaluation, float64, another layout in memory, hooks, a transform of `torch.func`) is computed by the modules as ever.

What goes into a `Block` goes two ways. If the kernels made it, it has a twin in the same memory, and `fork` sends one
each way: so the slopes of both come to the kernels, which add them as they read them, and no addition stands before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ternfed.models import Block, plain_fork, plain_norm_relu
from ternfed.training.kernels import is_matrix, on_device, power_above, runs_on

FUSED = True
"""Benchmarks set it to False, to measure a model that `fuse_norms` leaves as it is."""


class Tiling(NamedTuple):
    """How a matrix of rows × channels is shared out among programs. By shape alone, so that runs repeat."""

    parts: int = 128
    """Of the rows, at most, in the first pass, which looks for sums; a small kernel adds up what all parts found."""
    second_parts: int = 1024
    """Of the rows, at most, in the second pass, which makes what is asked for."""
    channels: int = 32
    """Of a program, at most: 64 bytes of bfloat16."""
    numbers: int = 2048
    """In a tile."""
    warps: int = 4
    join_channels: int = 8
    """Of a program that adds up parts, at most."""
    few_rows: int = 1024
    """Up to so many rows one program does everything for `few_channels` channels: one launch instead of three."""
    few_channels: int = 4
    few_numbers: int = 4096
    few_warps: int = 8
    stages: int = 2
    """Tiles that are on their way from memory while one is worked on."""


TILING = Tiling()


def fuse_norms(model: nn.Module) -> nn.Module:
    """The model itself, its BatchNorms computed by fused kernels wherever they can be."""
    if not FUSED:
        return model
    for module in model.modules():
        if "forward" in vars(module):
            continue
        # The exact types: a subclass may compute anything.
        if type(module) is nn.BatchNorm2d:
            module.__class__ = _Norm
        elif type(module) is nn.Sequential:
            module.__class__ = _Sequence
        elif type(module) is Block:
            module.norm_relu, module.fork = norm_relu, fork
    return model


class _Norm(nn.BatchNorm2d):
    def forward(self, batch: Tensor) -> Tensor:
        return _fused(self, batch, None, relu=False) if _fits(self, batch, None) else super().forward(batch)


class _Sequence(nn.Sequential):
    """Each pair of BatchNorm and ReLU as one."""

    def forward(self, batch: Any) -> Any:
        parts = [*self, None]
        at = 0
        while (part := parts[at]) is not None:
            following = parts[at + 1]
            pair = isinstance(part, _Norm) and type(following) is nn.ReLU and not _is_watched(following)
            if pair and isinstance(batch, Tensor) and _fits(part, batch, None):
                batch, at = _fused(part, batch, None, relu=True), at + 2
            else:
                batch, at = part(batch), at + 1
        return batch


def norm_relu(norm: nn.Module, batch: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(batch) + residual)."""
    if isinstance(norm, _Norm) and _fits(norm, batch, residual):
        return _fused(norm, batch, residual, relu=True)
    return plain_norm_relu(norm, batch, residual)


def fork(batch: Tensor) -> tuple[Tensor, Tensor]:
    """The batch for each of two ways, the second time as its twin if it has one."""
    twin = getattr(batch, "twin", None)
    # What was changed in place since has another derivative, and a hook is to see the whole slope.
    if twin is None or twin.grad_fn is not batch.grad_fn or batch._backward_hooks or batch.retains_grad:
        return plain_fork(batch)
    return batch, twin


def _is_watched(module: nn.Module) -> bool:
    """Whether hooks want to see what goes in and out."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def _fits(norm: _Norm, batch: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernels compute what the modules would; only then are they asked."""
    own = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    return (
        runs_on(batch.device.type)
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and norm.training
        and norm.momentum is not None
        and not _is_watched(norm)
        and is_matrix(batch)
        and batch.numel() // batch.shape[1] > 1
        and (residual is None or (is_matrix(residual) and _alike(residual, batch)))
        and all(
            t is not None and t.dtype == torch.float32 and t.is_contiguous() and t.device == batch.device for t in own
        )
        and batch.shape[1] == norm.num_features
    )


def _alike(first: Tensor, second: Tensor) -> bool:
    return (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)


def _fused(norm: _Norm, batch: Tensor, residual: Tensor | None, *, relu: bool) -> Tensor:
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    outputs: Tensor
    outputs, twin = _NormRelu.apply(  # type: ignore[no-untyped-call]
        batch, residual, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.momentum, norm.eps, relu
    )
    if outputs.requires_grad:
        outputs.twin = twin  # type: ignore[attr-defined]
    return outputs


class _NormRelu(torch.autograd.Function):
    """relu(batch norm(x) + residual), ReLU and residual as wished, with its first derivative; and a twin of it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        from ternfed.training import norm_kernels

        rows, channels = _size(x)
        y = torch.empty_like(x)
        kept = x.new_empty(2, channels, dtype=torch.float32)
        fixed = {"CHANNELS": channels, "RELU": relu, "RESIDUAL": residual is not None, "STAGES": TILING.stages}
        own = (weight, bias, kept, running_mean, running_var)
        other = x if residual is None else residual
        with on_device(x):
            if rows <= TILING.few_rows:
                grid, tile = _whole(rows, channels)
                norm_kernels.normalise_whole[grid](x, other, y, *own, rows, eps, momentum, **fixed, **tile)
            else:
                grid, tile, per_part = _parts(rows, channels, TILING.parts)
                partials = x.new_empty(grid[0], 2, channels, dtype=torch.float32)
                norm_kernels.part_moments[grid](
                    x, partials, rows, per_part, CHANNELS=channels, STAGES=TILING.stages, **tile
                )
                join, join_tile = _join(channels)
                norm_kernels.join_moments[join](
                    partials, kept, running_mean, running_var, rows, per_part, grid[0], eps, momentum, **join_tile
                )
                grid, tile, per_part = _parts(rows, channels, TILING.second_parts)
                norm_kernels.normalise_parts[grid](x, other, y, weight, bias, kept, rows, per_part, **fixed, **tile)
        ctx.save_for_backward(x, y if relu and residual is not None else None, weight, bias, kept)
        ctx.relu, ctx.residual = relu, residual is not None
        ctx.set_materialize_grads(False)
        return y, y.detach()  # not a view, which would hold y, which holds its twin

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        from ternfed.training import norm_kernels

        x, y, weight, bias, kept = ctx.saved_tensors
        rows, channels = _size(x)
        given = [s.to(x.dtype).contiguous(memory_format=torch.channels_last) for s in slopes if s is not None]
        if not given:
            return (None,) * 9
        slope, beside, both = given[0], given[-1], len(given) == 2
        out = torch.empty_like(x)
        # Behind a residual, the slope of what ReLU got is an outcome too; otherwise it is made again from x.
        cuts = ctx.residual and (ctx.relu or both)
        cut = torch.empty_like(x) if cuts else slope
        of_parameters = torch.empty_like(kept)
        fixed = {"CHANNELS": channels, "STAGES": TILING.stages}
        own = (weight, bias, kept)
        before = x if y is None else y
        kind = {"RELU": ctx.relu, "RESIDUAL": ctx.residual, "BOTH": both, "CUT": cuts}
        with on_device(x):
            if rows <= TILING.few_rows:
                grid, tile = _whole(rows, channels)
                norm_kernels.input_slopes_whole[grid](
                    slope, beside, x, before, cut, out, *own, of_parameters, rows, **kind, **fixed, **tile
                )
            else:
                grid, tile, per_part = _parts(rows, channels, TILING.parts)
                partials = x.new_empty(grid[0], 2, channels, dtype=torch.float32)
                norm_kernels.part_slopes[grid](
                    slope, beside, x, before, cut, partials, *own, rows, per_part, **kind, **fixed, **tile
                )
                join, join_tile = _join(channels)
                norm_kernels.join_slopes[join](partials, of_parameters, grid[0], **join_tile)
                grid, tile, per_part = _parts(rows, channels, TILING.second_parts)
                norm_kernels.input_slopes_parts[grid](
                    cut, beside, x, out, *own, of_parameters, rows, per_part, RELU=ctx.relu and not cuts,
                    BOTH=both and not cuts, **fixed, **tile,
                )  # fmt: skip
        return out, cut if ctx.residual else None, of_parameters[0], of_parameters[1], None, None, None, None, None


def _size(x: Tensor) -> tuple[int, int]:
    return x.numel() // x.shape[1], x.shape[1]


def _whole(rows: int, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs, and their tiles, where each takes all rows."""
    wide = min(TILING.few_channels, power_above(channels))
    high = TILING.few_numbers // wide
    return (1, -(-channels // wide)), {"BLOCK_R": high, "BLOCK_C": wide, "num_warps": TILING.few_warps}


def _join(channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Programs that add up parts, and their tiles."""
    wide = min(TILING.join_channels, power_above(channels))
    return (1, -(-channels // wide)), {"CHANNELS": channels, "BLOCK_C": wide, "PARTS": TILING.parts}


def _parts(rows: int, channels: int, parts: int) -> tuple[tuple[int, int], dict[str, int], int]:
    """Programs, their tiles, and the rows of each."""
    wide = min(TILING.channels, power_above(channels))
    high = TILING.numbers // wide
    per_part = -(-rows // (parts * high)) * high
    return (
        (-(-rows // per_part), -(-channels // wide)),
        {"BLOCK_R": high, "BLOCK_C": wide, "num_warps": TILING.warps},
        per_part,
    )

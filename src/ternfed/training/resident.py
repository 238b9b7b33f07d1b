"""What lies on the device during local training: all samples ready to be gathered, all weights end to end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Network, Training, Weights
from ternfed.data.images import normalise
from ternfed.training.work import TrainingData, Work

ALIGNED = 8
"""So many numbers of two bytes are sixteen bytes."""


@dataclass(frozen=True, eq=False)
class Table:
    """All samples on the device, ready to be gathered: normalised, images padded and with channels last."""

    rows: Tensor
    """(samples × positions, channels) for images that are cropped, else (samples, …)."""
    labels: Tensor
    patterns: Tensor | None = None
    """(2, H·W): from a crop's first position to each of its others, as it is and mirrored."""
    image: tuple[int, int, int] | None = None
    """H, W, C of an image that is cropped."""
    padding: int = 0
    last: bool = False
    """Rows have channels last."""

    def places(self, work: Work) -> tuple[Tensor, Tensor]:
        """Of every sample of a round, (epochs·n,): its first position among the rows, and whether it is mirrored."""
        order = work.order.reshape(-1)
        if self.image is None:
            return order, torch.zeros_like(order)
        assert work.offsets is not None
        assert work.flips is not None
        height, width, _ = self.image
        pitch = width + 2 * self.padding
        row, column = work.offsets.reshape(-1, 2).unbind(1)
        turn = work.flips.reshape(-1).to(torch.int64)
        return order * (height + 2 * self.padding) * pitch + row * pitch + column + turn * (width - 1), turn

    def take(self, start: Tensor, turn: Tensor, at: Tensor) -> Tensor:
        """The inputs at positions `at` of a round."""
        first = start.index_select(0, at)
        if self.patterns is None or self.image is None:
            picked = self.rows.index_select(0, first)
            return picked.movedim(-1, 1) if self.last else picked
        index = first.unsqueeze(1) + self.patterns.index_select(0, turn.index_select(0, at))
        return self.rows.index_select(0, index.view(-1)).view(len(at), *self.image).movedim(-1, 1)


def table_of(feed: TrainingData, dtype: torch.dtype | None) -> Table:
    """The table of a feed, in another dtype if wanted: C×H×W samples of 8 bits become (H+2p)·(W+2p)·C numbers."""
    inputs, labels = feed.samples.inputs, feed.samples.labels
    if feed.augment is None:
        last = inputs.dim() == 4
        rows = (inputs.movedim(1, -1) if last else inputs).contiguous()
        return Table(rows.to(dtype) if dtype and rows.is_floating_point() else rows, labels, last=last)
    count, channels, height, width = inputs.shape
    padding, pitch = feed.augment.padding, width + 2 * feed.augment.padding
    rows = torch.empty(count, height + 2 * padding, pitch, channels, dtype=dtype or torch.float32, device=inputs.device)
    for at in range(0, count, 4096):
        padded = nn.functional.pad(inputs[at : at + 4096], (padding,) * 4)
        rows[at : at + 4096] = normalise(padded, feed.mean, feed.std).movedim(1, -1)
    y, x = torch.arange(height, device=inputs.device).unsqueeze(1), torch.arange(width, device=inputs.device)
    patterns = torch.stack((y * pitch + x, y * pitch - x)).flatten(1)
    return Table(rows.view(-1, channels), labels, patterns, (height, width, channels), padding)


class Span(NamedTuple):
    """One tensor in a flat one."""

    name: str
    shape: torch.Size
    last: bool
    """Channels last in memory."""

    def pack(self, tensor: Tensor) -> Tensor:
        return (tensor.movedim(1, -1) if self.last else tensor).reshape(-1)

    def view(self, flat: Tensor) -> Tensor:
        if not self.last:
            return flat.view(self.shape)
        rows, channels, *kernel = self.shape
        return flat.view(rows, *kernel, channels).movedim(-1, 1)


@dataclass(frozen=True)
class Spans:
    """Tensors end to end."""

    spans: tuple[Span, ...]

    @property
    def lengths(self) -> list[int]:
        return [prod(span.shape) for span in self.spans]

    @property
    def size(self) -> int:
        return sum(self.lengths)

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        nothing = next(iter(tensors.values())).new_empty(0)
        return torch.cat([nothing, *(span.pack(tensors[span.name]) for span in self.spans)])

    def views(self, flat: Tensor) -> Weights:
        if not self.spans:
            return {}
        named, at = {}, 0
        for span, part in zip(self.spans, torch.split(flat, self.lengths), strict=True):
            # Kernels for a GPU load sixteen bytes at a time; a tensor that does not begin at such an address is copied.
            named[span.name] = span.view(part if at % ALIGNED == 0 else part.clone())
            at += len(part)
        return named


class Layout(NamedTuple):
    """Which tensor of the model lies where."""

    ternary: Spans
    """Latent weights, those last after which nothing is aligned."""
    cast: Spans
    """Other weights and biases of linear and convolutional layers: they compute in `precision`."""
    kept: Spans
    """All other parameters, BatchNorm's say, in full precision."""
    computing: Spans
    """`ternary` and `cast`."""
    flat_shapes: tuple[torch.Size, ...]
    """Of the latent weights, as `fused` takes them."""


_Products = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


def _misaligns(span: Span) -> bool:
    """Whether what follows a tensor begins at an odd address."""
    return prod(span.shape) % ALIGNED != 0


def layout_of(network: Network, training: Training, trained: Collection[str]) -> Layout:
    """Where the trained parameters lie; all others stay in the model."""
    products = {n: m for n, m in network.model.named_modules() if isinstance(m, _Products)}

    def owner(name: str) -> nn.Module | None:
        return products.get(name.rpartition(".")[0])

    spans = {
        name: Span(name, tensor.shape, isinstance(owner(name), nn.Conv2d) and tensor.dim() == 4)
        for name, tensor in network.model.named_parameters()
        if name in trained
    }
    ternary = Spans(tuple(sorted((spans[name] for name in training.ternary), key=_misaligns)))
    others = [span for name, span in spans.items() if name not in training.ternary]
    others.sort(key=_misaligns)
    cast = Spans(tuple(span for span in others if owner(span.name) is not None))
    kept = Spans(tuple(span for span in others if owner(span.name) is None))
    shapes = tuple(torch.Size((length,)) for length in ternary.lengths)
    return Layout(ternary, cast, kept, Spans(ternary.spans + cast.spans), shapes)

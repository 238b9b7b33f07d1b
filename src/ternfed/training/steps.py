"""The local steps of many clients at once: which clients take one together, and with which samples."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from ternfed.algorithms.algorithm import Training
from ternfed.data.values import Samples
from ternfed.training.passes import WHOLE
from ternfed.training.work import Work

Count = int | Tensor
"""A number of steps: the same for all clients, or (clients, 1) in float64."""


class Step(NamedTuple):
    """One local step of the clients from `first` to `end`, `width` samples each.

    Clients are sorted by their number of steps, so that those still at work are the first ones.
    """

    number: int
    """From 1."""
    first: int
    plain: int
    """Those before it are in an epoch without quantization."""
    earlier: int
    """Those before it are in another epoch than their last."""
    end: int
    quantized: Count
    """How many steps with quantization each from `plain` on has begun."""
    chosen: Tensor
    """(clients · width,): the samples; a short batch is filled up with a sample of its own."""
    labels: Tensor
    """(clients, 1, width)"""
    share: Tensor
    """(clients, 1, width): the weight of a sample in its batch's mean; 0 for one that fills up."""


def steps_of(
    works: Sequence[Work], training: Training, samples: Samples, widest: Callable[[int], int]
) -> Iterator[Step]:
    """The steps of clients with one number of epochs, the largest client first.

    `widest`: how far a batch of so many samples may be filled up. Clients whose batches may not be filled up alike take
    their steps one after the other.
    """
    device, batch, epochs = samples.inputs.device, training.batch, len(works[0].order)
    sizes = [work.order.shape[1] for work in works]
    steps = [-(-size // batch) for size in sizes]
    index = torch.zeros(epochs * steps[0], len(works), batch, dtype=torch.int64)
    counts = torch.zeros(epochs * steps[0], len(works), dtype=torch.int64)
    for k, (work, count) in enumerate(zip(works, steps, strict=True)):
        fill = count * batch - sizes[k]
        rows = torch.cat((work.order, work.order[:, :1].expand(-1, fill)), dim=1) if fill else work.order
        index[: epochs * count, k] = rows.reshape(-1, batch)
        counts[: epochs * count, k] = batch
        counts[count - 1 : epochs * count : max(count, 1), k] -= fill
    share = (torch.arange(batch) < counts.unsqueeze(2)) / counts.clamp_min(1).unsqueeze(2).to(torch.float64)
    index, share = index.to(device), share.to(device, samples.inputs.dtype)
    widths = ((counts + (WHOLE - 1)) // WHOLE * WHOLE).clamp_max(batch).tolist()
    rows_of = zip(index, samples.labels[index], share, widths, strict=True)
    done = torch.tensor(steps, dtype=torch.float64, device=device).unsqueeze(1) * training.plain_epochs

    def unfinished(at: int, epochs: int) -> int:
        """How many clients have not done so many epochs before this step; `steps` descends."""
        return bisect_left(steps, True, key=lambda count: count * epochs <= at)

    for at, (chosen, labels, weight, own) in enumerate(rows_of):
        active = unfinished(at, epochs)
        plain, earlier = unfinished(at, training.plain_epochs), unfinished(at, training.epochs - 1)
        for first, end, width in _alike(own[:active], widest):
            quantized_from = min(max(plain, first), end)
            yield Step(
                number=at + 1,
                first=first,
                plain=quantized_from,
                earlier=min(max(earlier, first), end),
                end=end,
                quantized=at + 1 - done[quantized_from:end] if training.plain_epochs else at + 1,
                chosen=chosen[first:end, :width].reshape(-1),
                labels=labels[first:end, None, :width],
                share=weight[first:end, None, :width],
            )


def _alike(widths: Sequence[int], widest: Callable[[int], int]) -> Iterator[tuple[int, int, int]]:
    """Neighbours whose batches may be filled up alike: from which to which one, and to how many samples."""
    if len(set(widths)) == 1:  # there is nothing to fill up, nor to ask
        yield 0, len(widths), widths[0]
        return
    first = 0
    for _, together in groupby(widths, widest):
        own = list(together)
        yield first, first + len(own), max(own)
        first += len(own)

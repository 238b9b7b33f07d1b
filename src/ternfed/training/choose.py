"""The fastest way that this machine has to train several clients of a network.

All clients at once where the network is a chain of linear layers (`batched`), a captured graph on a GPU (`captured`),
and otherwise one client after another (`plain`), as well as where local steps have parts of the algorithm's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from ternfed.algorithms.algorithm import Local, Network, Training
from ternfed.training.batched import train_batched, trainable_chain
from ternfed.training.bfloat16 import slow_precision, warn_once
from ternfed.training.captured import CapturedTrainer
from ternfed.training.plain import train_one
from ternfed.training.work import Trained, TrainingData, Work, placed


@dataclass(frozen=True, eq=False)
class Trainer:
    """Trains clients of one network on one set of data. What it keeps between rounds, on a GPU say, goes with it."""

    way: Literal["batched", "captured", "plain"]
    train: Callable[[Sequence[Work]], Iterator[Trained]]
    """The work of several clients, in their order. Each work has its rate: that of the training is not read."""


GROWTH = 100.0
"""A client whose largest weight became so many times larger in one round, and as many times larger than 1, diverged."""


SMALL = 1 << 16
"""Weights of a model that are looked at in one go."""


def train_recovering(
    trainer: Trainer, works: list[Work], tries: int, again: Callable[[int], Work] | None = None
) -> Iterator[Trained]:
    """The outcomes, in order; a client that diverged trains again at a quarter of its rates.

    With `again`, which makes the work at a place of the list once more, the list is emptied: what a large model starts
    from is another model.
    """
    mine, count = list(works), len(works)
    if again is None:
        again = mine.__getitem__
    else:
        works.clear()
    outcomes = trainer.train(mine)
    del mine
    # Nothing here may hold an outcome while the next one comes about: each is a whole model.
    return (_recovered(trainer, next(outcomes), partial(again, place), tries) for place in range(count))


def _recovered(trainer: Trainer, outcome: Trained, work: Callable[[], Work], tries: int) -> Trained:
    rates: tuple[float, float, float] | None = None
    for _ in range(tries):
        if _is_sound(outcome, work):
            break
        once_more = work()
        first, latents, factors = once_more.rates if rates is None else rates
        rates = first / 4, latents / 4, factors / 4
        (outcome,) = trainer.train([replace(once_more, rates=rates)])
    return outcome


def _is_sound(trained: Trained, work: Callable[[], Work]) -> bool:
    """Whether all numbers are finite, and no weight has exploded."""
    if not all(bool(torch.isfinite(tensor).all()) for tensor in trained.local.buffers.values()):
        return False
    largest = _largest(trained.local)
    # Most are below it whatever they started from, and need not be compared with that.
    return math.isfinite(largest) and (largest <= GROWTH or largest <= GROWTH * _largest(work().local))


def _largest(local: Local) -> float:
    """The size of the largest weight or factor; NaN where one is."""
    tensors = [tensor for tensor in (*local.weights.values(), *local.factors.values()) if tensor.numel()]
    if 0 < sum(tensor.numel() for tensor in tensors) <= SMALL:  # thousands of small models want few kernels
        low, high = torch.aminmax(torch.cat([tensor.reshape(-1) for tensor in tensors]))
        return max(-low.item(), high.item())  # of a NaN both are
    ends = (torch.aminmax(tensor) for tensor in tensors)
    sizes = [torch.maximum(-low, high) for low, high in ends]
    return float(torch.stack([size.float().cpu() for size in sizes]).max()) if sizes else 0.0


def trainer_for(network: Network, training: Training, feed: TrainingData) -> Trainer:
    """The fastest trainer there is that gives what `train_one` gives; what will be slow is said."""
    if (slow := slow_precision(training.precision, feed.samples.inputs.device.type)) is not None:
        warn_once(slow)
    if trainable_chain(network, training, feed) is not None:
        return Trainer("batched", lambda works: train_batched(network, training, feed, works))
    if feed.samples.inputs.device.type == "cuda" and not training.one_by_one:
        return Trainer("captured", CapturedTrainer(network, training, feed).train)
    there = placed(network, feed.samples.inputs.device)
    return Trainer("plain", lambda works: (train_one(there, training, feed, work) for work in works))

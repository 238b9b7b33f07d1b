"""What local training takes and gives: the data, one client's work with every draw made, and its outcome."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ternfed.algorithms.algorithm import Local, Network, Training
from ternfed.data.images import Augment, crop_flip, normalise
from ternfed.data.values import DataSet, Samples
from ternfed.draws import generator, orders, seed_of


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training samples and how they enter the network, on the device where it runs."""

    samples: Samples
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None = None

    @staticmethod
    def of(data: DataSet, device: str = "cpu") -> TrainingData:
        """The training samples of a data set; normalised once and for all where nothing is drawn at random."""
        inputs, labels = data.train.inputs.to(device), data.train.labels.to(device)
        if data.augment is None:
            return TrainingData(Samples(normalise(inputs, data.mean, data.std), labels), (0.0,), (1.0,))
        return TrainingData(Samples(inputs, labels), data.mean, data.std, data.augment)

    def plain(self, order: Tensor) -> Samples:
        """The samples at these indices as an evaluation sees them: normalised, not augmented."""
        samples = self.samples.take(order)
        if self.augment is None:
            return samples
        return Samples(normalise(samples.inputs, self.mean, self.std), samples.labels)

    def batch(self, order: Tensor, offsets: Tensor | None, flips: Tensor | None) -> tuple[Tensor, Tensor]:
        """The inputs and labels at these indices, augmented as drawn, normalised."""
        inputs, labels = self.samples.inputs[order], self.samples.labels[order]
        if self.augment is None:
            return inputs, labels
        assert offsets is not None
        assert flips is not None
        return normalise(crop_flip(inputs, offsets, flips, self.augment.padding), self.mean, self.std), labels


@dataclass(frozen=True, eq=False)
class Work:
    """What one client does in one round: where it starts, and every draw it needs."""

    local: Local
    order: Tensor
    """(epochs, n): indices into the feed's samples."""
    rates: tuple[float, float, float]
    """The learning rates of this round: of ordinary weights, of latent weights, of factors."""
    offsets: Tensor | None = None
    """(epochs, n, 2) int64: where each image is cropped."""
    flips: Tensor | None = None
    """(epochs, n) bool: which images are mirrored."""
    seed: int = 0
    """For random layers of the user's own model, dropout for example."""

    @staticmethod
    def draw(
        local: Local,
        indices: Tensor,
        training: Training,
        augment: Augment | None,
        *,
        seed: int,
        round: int,
        client: int,
    ) -> Work:
        """The work of a client in a round, all draws made from the experiment's seed."""
        order = orders(indices, training.epochs, generator(seed, "order", round, client))
        work = Work(local, order, training.rates, seed=seed_of(seed, "model", round, client))
        if augment is None:
            return work
        source = generator(seed, "augment", round, client)
        offsets = torch.randint(2 * augment.padding + 1, (*order.shape, 2), generator=source)
        flips = torch.rand(order.shape, generator=source) < (0.5 if augment.flip else 0.0)
        return replace(work, offsets=offsets, flips=flips)

    def steps(self, batch: int) -> Iterator[tuple[int, Tensor, Tensor | None, Tensor | None]]:
        """(epoch, indices, offsets, flips) of every local step; the last batch of an epoch may be smaller."""
        for epoch, row in enumerate(self.order):
            for at in range(0, len(row), batch):
                part = slice(at, at + batch)
                offsets = None if self.offsets is None else self.offsets[epoch, part]
                yield epoch, row[part], offsets, None if self.flips is None else self.flips[epoch, part]


def computing_in(precision: str, device: torch.device) -> torch.autocast:
    """While it lasts, linear and convolutional layers compute in this precision; weights and BatchNorm do not."""
    if precision not in ("float32", "bfloat16"):
        raise ValueError(f"precision is {precision!r}; allowed are 'float32' and 'bfloat16'")
    return torch.autocast(device.type, torch.bfloat16, precision == "bfloat16")


def placed(network: Network, device: torch.device) -> Network:
    """The network with its model on a device; itself where it is there."""
    there = next(network.model.parameters()).device
    return network if there == device else replace(network, model=copy_on(network.model, device))


def copy_on(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a model on a device, to be called with weights that are not its own."""
    copy = deepcopy(model).to(device)
    for module in copy.modules():
        if isinstance(module, nn.RNNBase):
            # It would move whatever weights it is called with into one piece of memory, out of the graph they are in.
            module.flatten_parameters = _nothing  # type: ignore[method-assign]
    return copy


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of one client's work."""

    local: Local
    loss: float
    """Mean over the samples of the last local epoch."""

"""One client's local training as a pure function: the reference that every faster way is held to.

`train` takes the work of several clients and picks the fastest way this machine has for the network: all clients at
once where the network is a chain of linear layers (`batched.py`), a captured graph on a GPU (`captured.py`), and
otherwise `train_one`, one client after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ternfed.algorithms.algorithm import Local, Network, Training, Weights
from ternfed.data.images import Augment, crop_flip, normalise
from ternfed.data.values import DataSet, Samples
from ternfed.draws import generator, orders, seed_of
from ternfed.ternary import quantize


@dataclass(frozen=True)
class Feed:
    """Training samples and how they enter the network, on the device where it runs."""

    samples: Samples
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    augment: Augment | None = None

    @staticmethod
    def of(data: DataSet, device: str = "cpu") -> Feed:
        """The training samples of a data set; normalised once and for all where nothing is drawn at random."""
        inputs, labels = data.train.inputs.to(device), data.train.labels.to(device)
        if data.augment is None:
            return Feed(Samples(normalise(inputs, data.mean, data.deviation), labels), (0.0,), (1.0,))
        return Feed(Samples(inputs, labels), data.mean, data.deviation, data.augment)

    def plain(self, order: Tensor) -> Samples:
        """The samples at these indices as an evaluation sees them: normalised, not augmented."""
        samples = self.samples.take(order)
        if self.augment is None:
            return samples
        return Samples(normalise(samples.inputs, self.mean, self.deviation), samples.labels)

    def batch(self, order: Tensor, offsets: Tensor | None, flips: Tensor | None) -> tuple[Tensor, Tensor]:
        """The inputs and labels at these indices, augmented as drawn, normalised."""
        inputs, labels = self.samples.inputs[order], self.samples.labels[order]
        if self.augment is None:
            return inputs, labels
        assert offsets is not None
        assert flips is not None
        return normalise(crop_flip(inputs, offsets, flips, self.augment.padding), self.mean, self.deviation), labels


@dataclass(frozen=True)
class Work:
    """What one client does in one round: where it starts, and every draw it needs."""

    local: Local
    order: Tensor
    """(epochs, n): indices into the feed's samples."""
    rate: float
    """The learning rate of this round."""
    offsets: Tensor | None = None
    """(epochs, n, 2) int64: where each image is cropped."""
    flips: Tensor | None = None
    """(epochs, n) bool: which images are mirrored."""
    seed: int = 0
    """For random layers of the user's own model, dropout say."""

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
        work = Work(local, order, training.rate, seed=seed_of(seed, "model", round, client))
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


@dataclass(frozen=True)
class Trained:
    """The outcome of one client's work."""

    local: Local
    loss: float
    """Mean over the samples of the last local epoch."""


Trainer = Callable[[Network, Training, Feed, Sequence[Work]], Iterator[Trained]]


def train_one(network: Network, training: Training, feed: Feed, work: Work) -> Trained:
    """Local training, one step after another (Algorithm 1): forward, loss, backward, optimizer, clip."""
    local = work.local
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in {**local.weights}.items()}
    factors = {name: tensor.clone().requires_grad_() for name, tensor in local.factors.items()}
    buffers = {name: tensor.clone() for name, tensor in local.buffers.items()}
    optimizer = make_optimizer(training, leaves, factors, work.rate)
    device = feed.samples.inputs.device
    total, seen = 0.0, 0
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(work.seed)
        for epoch, order, offsets, flips in work.steps(training.batch):
            inputs, labels = feed.batch(order, offsets, flips)
            weights = forward_weights(training, leaves, factors, local, epoch)
            outputs = functional_call(network.model, {**weights, **buffers}, (inputs,))
            loss = nn.functional.cross_entropy(outputs, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if training.clip is not None:
                with torch.no_grad():
                    for name in training.ternary:
                        leaves[name].clamp_(-training.clip, training.clip)
            if epoch == training.epochs - 1:
                total, seen = total + loss.item() * len(labels), seen + len(labels)
    detached = [{name: t.detach() for name, t in group.items()} for group in (leaves, factors)]
    return Trained(replace(local, weights=detached[0], factors=detached[1], buffers=buffers), total / max(seen, 1))


def forward_weights(training: Training, leaves: Weights, factors: Weights, local: Local, epoch: int) -> Weights:
    """The weights of one forward pass: ternary layers quantized, unless this epoch is one of the plain ones."""
    if training.quantizer is None:
        return leaves
    if epoch < training.plain_epochs:
        return {name: local.scales[name] * leaf if name in local.scales else leaf for name, leaf in leaves.items()}
    quantizer = replace(training.quantizer, factor=local.threshold)
    return {
        name: quantize(leaf, factors.get(name), quantizer) if name in training.ternary else leaf
        for name, leaf in leaves.items()
    }


def make_optimizer(training: Training, leaves: Weights, factors: Weights, rate: float) -> torch.optim.Optimizer:
    """The optimizer of one round, with its rates for latent weights, factors and everything else."""
    latents = [leaf for name, leaf in leaves.items() if name in training.ternary]
    others = [leaf for name, leaf in leaves.items() if name not in (*training.ternary, *training.frozen)]
    groups = [
        {"params": others, "lr": rate},
        {"params": latents, "lr": rate * training.latent_rate},
        {"params": list(factors.values()), "lr": rate * training.factor_rate, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if training.optimizer == "adam":
        return torch.optim.Adam(groups, lr=rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(groups, lr=rate, momentum=training.momentum, weight_decay=training.weight_decay)


def train(network: Network, training: Training, feed: Feed, works: Sequence[Work]) -> Iterator[Trained]:
    """The work of several clients, in their order, the fastest way there is."""
    from ternfed import batched, captured  # here, because they are made of this module's values

    if feed.augment is None and batched.chain_of(network.model, feed.samples.inputs.shape[1:]) is not None:
        yield from batched.train_batched(network, training, feed, works)
    elif feed.samples.inputs.device.type == "cuda":
        yield from captured.train_captured(network, training, feed, works)
    else:
        yield from (train_one(network, training, feed, work) for work in works)

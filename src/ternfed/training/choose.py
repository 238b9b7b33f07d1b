"""The fastest way that this machine has to train several clients of a network.

All clients at once where the network is a chain of linear layers (`batched`), a captured graph on a GPU (`captured`),
and otherwise one client after another (`plain`), as well as where the algorithm corrects the gradients of local steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ternfed.algorithms.algorithm import Network, Training
from ternfed.training import batched, captured
from ternfed.training.plain import train_one
from ternfed.training.work import Trained, TrainingData, Work


def train(network: Network, training: Training, feed: TrainingData, works: Sequence[Work]) -> Iterator[Trained]:
    """The work of several clients, in their order, the fastest way there is."""
    if training.correct is not None:
        yield from (train_one(network, training, feed, work) for work in works)
    elif feed.augment is None and batched.chain_of(network.model, feed.samples.inputs.shape[1:]) is not None:
        yield from batched.train_batched(network, training, feed, works)
    elif feed.samples.inputs.device.type == "cuda":
        yield from captured.train_captured(network, training, feed, works)
    else:
        yield from (train_one(network, training, feed, work) for work in works)

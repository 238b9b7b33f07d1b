"""One round of pfl's federated averaging each time a line arrives: the other end of `ternfed bench peers`.

A script, run under a Python of its own that has pfl 0.6.0 and torch. Prints `ready`, then the seconds of each round.
pfl's data sets give their batches in the order in which the samples lie, and keep them: no sample is gathered, where
the others draw an order per epoch.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

NEVER = 1_000_000


class Net(nn.Sequential):
    """The MLP, with the two functions that pfl asks for."""

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            return {"loss": Weighted(self.loss(inputs, labels).item() * len(labels), len(labels))}


class Turns(TrainingProcessCallback):  # type: ignore[misc]
    """Says how long each round took, and waits for the next line; the end of the lines is that of the run."""

    begun: float | None = None

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        print("ready" if self.begun is None else time.perf_counter() - self.begun, flush=True)
        asked = sys.stdin.readline()
        self.begun = time.perf_counter()
        return not asked, Metrics()


def main(clients: int, samples: int, epochs: int, batch: int, rate: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - pfl draws from it
    layers = (nn.Linear(784, 30, bias=False), nn.Linear(30, 20, bias=False), nn.Linear(20, 10, bias=False))
    net = Net(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    sets = {
        k: PyTorchTensorDataset((torch.randn(samples, 784), torch.randint(10, (samples,))), user_id=str(k))
        for k in range(clients)
    }
    data = FederatedDataset(sets.__getitem__, get_user_sampler("minimize_reuse", list(sets)))
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    backend = SimulatedBackend(training_data=data, val_data=data)
    train = NNTrainHyperParams(local_batch_size=batch, local_num_epochs=epochs, local_learning_rate=rate)
    # Only the first of all rounds judges the clients' models too, which nobody else does: it is not counted.
    rounds = NNAlgorithmParams(
        central_num_iterations=NEVER, evaluation_frequency=NEVER, train_cohort_size=clients, val_cohort_size=0
    )
    FederatedAveraging().run(rounds, backend, model, train, callbacks=[Turns()], send_metrics_to_platform=False)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    count, own, repeats, size = (int(number) for number in sys.argv[1:5])
    main(count, own, repeats, size, rate=float(sys.argv[5]))

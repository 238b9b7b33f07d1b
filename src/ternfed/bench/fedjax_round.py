"""One round of FedJAX's federated averaging each time a line arrives: the other end of `ternfed bench rounds`.

A script, run under a Python of its own (TERNFED_FEDJAX_PYTHON) that has fedjax 0.0.17, which needs jax and jaxlib
0.4.25, dm-haiku 0.0.12, optax 0.1.9, chex 0.1.85, scipy < 1.13 and numpy < 2. Prints `ready`, then the seconds of each
round. FedJAX lets a batch run over the end of an epoch: 47 steps of 64 samples, where the others take 50 steps, some
shorter.
"""

from __future__ import annotations

import os
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import fedjax
import haiku as hk
import jax
import numpy as np


def main(clients: int, samples: int, epochs: int, batch: int, rate: float) -> None:
    network = hk.transform(
        lambda data: hk.Sequential(
            [
                hk.Linear(30, with_bias=False),
                jax.nn.relu,
                hk.Linear(20, with_bias=False),
                jax.nn.relu,
                hk.Linear(10, with_bias=False),
            ]
        )(data["x"])
    )
    source = np.random.default_rng(0)
    inputs = source.standard_normal((clients, samples, 784), dtype=np.float32)
    labels = source.integers(10, size=(clients, samples), dtype=np.int32)
    model = fedjax.create_model_from_haiku(
        network,
        {"x": inputs[0, :1], "y": labels[0, :1]},
        lambda data, outputs: fedjax.metrics.unreduced_cross_entropy_loss(data["y"], outputs),
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=batch, num_epochs=epochs),
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    keys = jax.random.split(jax.random.PRNGKey(1), clients)
    members = [(k, fedjax.ClientDataset({"x": inputs[k], "y": labels[k]}), keys[k]) for k in range(clients)]

    def play() -> float:
        start = time.perf_counter()
        after, _ = algorithm.apply(state, members)
        jax.block_until_ready(after.params)
        return time.perf_counter() - start

    play()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(play(), flush=True)


if __name__ == "__main__":
    count, own, repeats, size = (int(number) for number in sys.argv[1:5])
    main(count, own, repeats, size, rate=float(sys.argv[5]))

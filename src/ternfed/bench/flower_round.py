"""Rounds of federated averaging in Flower's simulation, as anyone would write them: the other end of `bench peers`.

A script, run under a Python of its own that has `flwr[simulation]` and torch. Prints the seconds of each round but the
first, which starts Ray's workers.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

CLIENTS, SAMPLES, EPOCHS, BATCH = (int(number) for number in sys.argv[1:5])
RATE, ROUNDS = float(sys.argv[5]), int(sys.argv[6])


def model() -> nn.Module:
    layers = (nn.Linear(784, 30, bias=False), nn.Linear(30, 20, bias=False), nn.Linear(20, 10, bias=False))
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def samples(client: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(client)
    return torch.randn(SAMPLES, 784, generator=source), torch.randint(10, (SAMPLES,), generator=source)


def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    own = model()
    own.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    inputs, labels = samples(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(own.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for chosen in torch.split(torch.randperm(SAMPLES), BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(own(inputs[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    counted = MetricRecord({"num-examples": SAMPLES})
    return Message(RecordDict({"arrays": ArrayRecord(own.state_dict()), "metrics": counted}), reply_to=message)


class Timed(FedAvg):
    """FedAvg that says how long each round took."""

    begun = 0.0

    def configure_train(self, *arguments: Any, **named: Any) -> Any:
        self.begun = time.perf_counter()
        return super().configure_train(*arguments, **named)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        made = super().aggregate_train(server_round, replies)
        if server_round > 1:
            print(f"seconds {time.perf_counter() - self.begun}", flush=True)
        return made


def serve(grid: Grid, context: Context) -> None:
    strategy = Timed(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(model().state_dict()), num_rounds=ROUNDS + 1)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    client, server = ClientApp(), ServerApp()
    client.train()(train)
    server.main()(serve)
    run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})

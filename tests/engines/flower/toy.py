"""A Flower app without training: each client moves its arrays a part of the way to where it wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from ternfed.engines.flower.adapter.in_process import in_process_grid
from ternfed.engines.flower.mod import ternary_mod
from ternfed.engines.flower.strategy import TernaryStrategy

CLIENTS = 3
State = dict[str, Any]
COUNTER = "num_batches_tracked"


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(32, 24), *([nn.BatchNorm1d(24)] if norm else []), nn.ReLU(), nn.Linear(24, 24), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(24, 10))


def state_of(model: nn.Module) -> State:
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def record(state: State) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in state.items()})


def arrays(found: Any) -> State:
    return {name: array.numpy() for name, array in found.items()}


def is_float(array: Any) -> bool:
    return array.dtype.kind == "f" and bool(np.isfinite(array).all())


def target(state: State, client: int = -1) -> State:
    """Where all clients together, or one of them, would have the arrays."""
    source = np.random.default_rng(7)
    common = {n: a + 0.2 * source.standard_normal(a.shape) if is_float(a) else a for n, a in state.items()}
    common = {n: np.abs(a) + 0.1 if n.endswith("running_var") else a for n, a in common.items()}
    if client < 0:
        return common
    own = np.random.default_rng(100 + client)
    return {n: a + 0.01 * own.standard_normal(a.shape) if is_float(a) else a for n, a in common.items()}


def client_app(
    start: State, mods: Sequence[Any] = (ternary_mod,), log: list[Any] | None = None, share: float = 0.5
) -> ClientApp:
    """Moves each array by a share of the way; what it received and was asked goes into the log."""
    app = ClientApp(mods=list(mods))
    seen = [] if log is None else log

    @app.train()
    def train(message: Message, context: Any) -> Message:
        got = arrays(message.content["arrays"])
        seen.append((context.node_id, got, message))
        goal = target(start, int(context.node_config["partition-id"]))
        moved = {
            n: (a + share * (goal[n] - a)).astype(a.dtype) if is_float(a) else a + 3 if n.endswith(COUNTER) else a
            for n, a in got.items()
        }
        metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5})
        return Message(RecordDict({"arrays": record(moved), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        seen.append((context.node_id, arrays(message.content["arrays"]), message))
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "seen": 1.0})}), reply_to=message)

    @app.query()
    def query(message: Message, context: Any) -> Message:
        return Message(message.content, reply_to=message)

    return app


def grid_of(app: ClientApp, clients: int = CLIENTS) -> Any:
    return in_process_grid(dict.fromkeys(range(1, clients + 1), app))


def small(strategy: Callable[..., Any], **more: Any) -> Any:
    """A strategy of Flower's for a few clients that does not evaluate unless told."""
    return strategy(**{"fraction_evaluate": 0.0, "min_train_nodes": 2, "min_available_nodes": 2, **more})


def play(inner: Any, start: State, rounds: int = 4, mode: str = "updates", **more: Any) -> tuple[TernaryStrategy, Any]:
    """(the strategy around another, the run's result)."""
    strategy = TernaryStrategy(inner, mode, seed=1)
    return strategy, strategy.start(grid_of(client_app(start, **more)), record(start), num_rounds=rounds)


def distance(state: State, start: State) -> float:
    """How far from the common target, as a share of the way there."""
    goal = target(start)
    pairs = [(state[n].astype(float), goal[n], start[n]) for n in start if is_float(start[n])]
    left = sum(float(np.square(now - end).sum()) for now, end, _ in pairs)
    way = sum(float(np.square(first - end).sum()) for _, end, first in pairs)
    return (left / way) ** 0.5

"""What a run knows between two rounds, and that as tensors and facts for a checkpoint.

The next round depends on nothing else, so a run that goes on from a saved state ends as one never interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ternfed.algorithms.algorithm import Algorithm, Memory, Server, Weights
from ternfed.quantize.ternary import Ternary
from ternfed.round.exchange import Broadcast, broadcast_of
from ternfed.runs.folder import MODEL
from ternfed.wire import Message


@dataclass(frozen=True)
class State:
    """Everything that the next round depends on."""

    round: int
    """Rounds played so far."""
    server: Server
    memories: Mapping[int, Memory] = field(default_factory=dict)
    """What each client remembers; empty where clients are machines of their own."""
    holders: tuple[int, ...] = ()
    """Who took part in the last round and holds its broadcast."""
    broadcast: Broadcast | None = None
    """That broadcast."""
    best: float | None = None
    """The best validation score so far; None where nothing is held out."""
    best_round: int = 0
    """The first round that reached it; the last one where nothing is held out."""


def pack(state: State) -> tuple[Weights, dict[str, Any]]:
    """The tensors and facts of a checkpoint."""
    tensors = {f"{MODEL}{name}": tensor for name, tensor in state.server.weights.items()}
    tensors |= {f"server/memory/{name}": tensor for name, tensor in state.server.memory.items()}
    tensors |= _spread("server/ternary", state.server.ternary)
    for client, memory in state.memories.items():
        tensors |= {f"client/{client}/{name}": tensor for name, tensor in memory.items()}
    if state.broadcast is not None:
        values = state.broadcast.message.tensors
        tensors |= _spread("broadcast/ternary", {n: v for n, v in values.items() if isinstance(v, Ternary)})
        tensors |= {f"broadcast/dense/{n}": v for n, v in values.items() if not isinstance(v, Ternary)}
    facts = {
        "holders": list(state.holders),
        "server": dict(state.server.facts),
        "numbers": None if state.broadcast is None else dict(state.broadcast.message.numbers),
        "best": [state.best, state.best_round],
    }
    return tensors, facts


def unpack(algorithm: Algorithm, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> State:
    """The state of a checkpoint."""
    server = Server(
        weights=_under(tensors, MODEL),
        ternary=_gather(tensors, "server/ternary"),
        memory=_under(tensors, "server/memory/"),
        facts=facts["server"],
    )
    memories: dict[int, Memory] = {}
    for name, tensor in _under(tensors, "client/").items():
        client, _, key = name.partition("/")
        memories.setdefault(int(client), {})[key] = tensor
    broadcast = None
    if facts["numbers"] is not None:
        message = Message({**_gather(tensors, "broadcast/ternary")}, facts["numbers"])
        message.tensors.update(_under(tensors, "broadcast/dense/"))
        broadcast = broadcast_of(algorithm, message)
    return State(round, server, memories, tuple(facts["holders"]), broadcast, *facts["best"])


def _under(tensors: Mapping[str, Tensor], prefix: str) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _spread(prefix: str, values: Mapping[str, Ternary]) -> Weights:
    return {f"{prefix}/{part}/{name}": getattr(value, part) for name, value in values.items() for part in value._fields}


def _gather(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Ternary]:
    parts = [_under(tensors, f"{prefix}/{part}/") for part in Ternary._fields]
    return {name: Ternary(*(part[name] for part in parts)) for name in parts[0]}

"""What a run knows between two rounds, and that as tensors and facts for a checkpoint.

The next round depends on nothing else, so a run that is resumed from a saved state ends as one never interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ternfed.algorithms.algorithm import Algorithm, Server, Strategy, Weights
from ternfed.algorithms.memory import memory_of, tensors_of
from ternfed.round.exchange import Broadcast, broadcast_of
from ternfed.runs.folder import MODEL, RunError
from ternfed.wire import Message
from ternfed.wire.forms import put_together, take_apart

LAYOUT = 2
"""How `pack` names its tensors and facts. A checkpoint with another number is refused."""


@dataclass(frozen=True, eq=False)
class State:
    """Everything that the next round depends on."""

    round: int
    """Rounds played so far."""
    server: Server
    memories: Mapping[int, Any] = field(default_factory=dict)
    """What each client remembers, values of the algorithm's `client_memory`; empty where clients are machines of
    their own."""
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
    tensors = _named(MODEL, state.server.weights)
    tensors |= _named("server/memory/", tensors_of(state.server.memory))
    tensors |= _named("server/sent/", take_apart(state.server.sent))
    for client, memory in state.memories.items():
        tensors |= _named(f"client/{client}/", tensors_of(memory))
    if state.broadcast is not None:
        tensors |= _named("broadcast/", take_apart(state.broadcast.message.tensors))
    facts = {
        "layout": LAYOUT,
        "holders": list(state.holders),
        "strategy": state.server.strategy,
        "numbers": None if state.broadcast is None else dict(state.broadcast.message.numbers),
        "best": [state.best, state.best_round],
    }
    return tensors, facts


def unpack(algorithm: Algorithm, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> State:
    """The state of a checkpoint; RunError where it is one of another version or another model."""
    if facts.get("layout") != LAYOUT:
        raise _does_not_fit(round, f"its layout is {facts.get('layout', 1)}, this version of ternfed reads {LAYOUT}")
    try:
        state = _unpack(algorithm, round, tensors, facts)
        _check_model(algorithm, state.server.weights)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise _does_not_fit(round, reason) from error
    return state


def _unpack(algorithm: Algorithm, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> State:
    server = Server(
        weights=_under(tensors, MODEL),
        sent=put_together(_under(tensors, "server/sent/")),
        memory=memory_of(algorithm.server_memory, _under(tensors, "server/memory/")),
        strategy=None if facts["strategy"] is None else Strategy(facts["strategy"]),
    )
    of_client: dict[int, Weights] = {}
    for name, tensor in _under(tensors, "client/").items():
        client, _, key = name.partition("/")
        of_client.setdefault(int(client), {})[key] = tensor
    memories = {client: memory_of(algorithm.client_memory, named) for client, named in of_client.items()}
    broadcast = None
    if facts["numbers"] is not None:
        message = Message(put_together(_under(tensors, "broadcast/")), facts["numbers"])
        broadcast = broadcast_of(algorithm, message)
    return State(round, server, memories, tuple(facts["holders"]), broadcast, *facts["best"])


def _check_model(algorithm: Algorithm, weights: Weights) -> None:
    """What may be broadcast must be there, in its shape."""
    for slot in algorithm.down[-1].slots:
        if tuple(weights[slot.name].shape) != slot.shape:
            raise ValueError(f"{slot.name} has the shape {tuple(weights[slot.name].shape)}, the model has {slot.shape}")


def _does_not_fit(round: int, reason: str) -> RunError:
    return RunError(
        f"state.safetensors: its checkpoint of round {round} does not fit ({reason}); "
        "start the run again in another folder"
    )


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> Weights:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

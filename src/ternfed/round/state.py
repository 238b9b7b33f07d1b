"""What a run knows between two rounds, and that as tensors and facts for a checkpoint.

The next round depends on nothing else, so a run that is resumed from a saved state ends as one never interrupted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ternfed.algorithms.algorithm import Algorithm, Server, Strategy, Weights
from ternfed.algorithms.memory import memory_of, tensors_of
from ternfed.runs.folder import RunError
from ternfed.runs.state_file import MODEL, SENT, under
from ternfed.wire.forms import put_together, take_apart

LAYOUT = 3
"""How `pack` names its tensors and facts. A checkpoint with another number is refused."""

KEPT_BYTES = 64 * 2**20
"""Broadcasts of earlier rounds are kept in so many bytes, or in those of `KEPT_MODELS` where that is more; the oldest
are forgotten first."""

KEPT_MODELS = 16
"""Whole models in float32."""


@dataclass(frozen=True, eq=False)
class State:
    """Everything that the next round depends on."""

    round: int
    """Rounds played so far."""
    server: Server
    memories: Mapping[int, Any] = field(default_factory=dict)
    """What each client remembers, values of the algorithm's `client_memory`; empty where clients are machines of
    their own."""
    holders: Mapping[int, int] = field(default_factory=dict)
    """The round of the newest broadcast that each client holds, as long as it matters to what the client gets."""
    broadcasts: Mapping[int, bytes] = field(default_factory=dict)
    """By round, those that some client holds: encoded without a reference, as far as memory allows."""
    best: float | None = None
    """The best validation score so far; None where nothing is held out."""
    best_round: int = 0
    """The first round that reached it; the last one where nothing is held out."""

    @property
    def took_part(self) -> tuple[int, ...]:
        """Who holds the broadcast of the last round."""
        return tuple(client for client, held in self.holders.items() if held == self.round)


def keep(
    before: State, holders: Collection[int], packed: bytes | None, fp32_bytes: int
) -> tuple[dict[int, int], dict[int, bytes]]:
    """(who holds which broadcast, the broadcasts that are kept) after a round, by its holders and its broadcast."""
    number = before.round + 1
    held_by = {**before.holders, **dict.fromkeys(holders, number)}
    known = dict(before.broadcasts) if packed is None else {**before.broadcasts, number: packed}
    kept: dict[int, bytes] = {}
    left = kept_bytes(fp32_bytes)
    for held in sorted(known.keys() & set(held_by.values()), reverse=True):
        left -= len(known[held])
        if left < 0 and kept:  # the newest is kept in any case
            break
        kept[held] = known[held]
    # Whoever holds the last may be sent something else than the others, whether or not that lends anything.
    matters = {number, *kept}
    return {client: held for client, held in sorted(held_by.items()) if held in matters}, kept


def kept_bytes(fp32_bytes: int) -> int:
    """The most that kept broadcasts may take, for a model of this size."""
    return max(KEPT_BYTES, KEPT_MODELS * fp32_bytes)


def pack(state: State, frozen: str | None = None) -> tuple[Weights, dict[str, Any]]:
    """The tensors and facts of a checkpoint, with the digest of the weights that are not in it."""
    tensors = _named(MODEL, state.server.weights)
    tensors |= _named("server/memory/", tensors_of(state.server.memory))
    tensors |= _named(SENT, take_apart(state.server.sent))
    for client, memory in state.memories.items():
        tensors |= _named(f"client/{client}/", tensors_of(memory))
    for held, data in state.broadcasts.items():
        tensors[f"broadcast/{held}"] = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
    facts = {
        "layout": LAYOUT,
        "holders": [list(pair) for pair in state.holders.items()],
        "strategy": state.server.strategy,
        "best": [state.best, state.best_round],
        **({} if frozen is None else {"frozen": frozen}),
    }
    return tensors, facts


def unpack(
    algorithm: Algorithm,
    round: int,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    frozen: str | None = None,
) -> State:
    """The state of a checkpoint; RunError where it is one of another version, another model or other frozen weights."""
    if facts.get("frozen") != frozen:
        raise _does_not_fit(round, "the frozen weights were others, those of model.weights say")
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
        weights=under(tensors, MODEL),
        sent=put_together(under(tensors, SENT)),
        memory=memory_of(algorithm.server_memory, under(tensors, "server/memory/")),
        strategy=None if facts["strategy"] is None else Strategy(facts["strategy"]),
    )
    of_client: dict[int, Weights] = {}
    for name, tensor in under(tensors, "client/").items():
        client, _, key = name.partition("/")
        of_client.setdefault(int(client), {})[key] = tensor
    memories = {client: memory_of(algorithm.client_memory, named) for client, named in of_client.items()}
    holders = {int(client): int(held) for client, held in facts["holders"]}
    broadcasts = {int(held): tensor.numpy().tobytes() for held, tensor in under(tensors, "broadcast/").items()}
    return State(round, server, memories, holders, dict(sorted(broadcasts.items(), reverse=True)), *facts["best"])


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

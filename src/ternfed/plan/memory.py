"""Memory on the server and on a client, counted in the tensors and bytes that a rehearsed round really holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ternfed.algorithms.algorithm import Algorithm, Local
from ternfed.plan.costs import Rehearsed
from ternfed.round.state import kept_bytes
from ternfed.wire import form_of


@dataclass(frozen=True)
class ServerMemory:
    """Bytes, beside the program itself and the data held out."""

    model: int
    """The global model, as it is sent too, and what the algorithm remembers; twice while a new one is made."""
    broadcast: int
    """The broadcast of the round and the reference that it gives."""
    aggregation: int
    """Sums, or whatever the rule keeps of each upload."""
    references: int
    """Older broadcasts that some client holds, encoded; the most that is kept of them."""
    uploads: int
    """Uploads of all clients of a round at once, encoded, at their largest, and one of them decoded."""
    frozen: int = 0
    """What is not trained, once."""

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class ClientMemory:
    """Bytes, beside the program itself, its data and the activations of a batch."""

    received: int
    """The broadcast and the reference that it gives."""
    training: int
    """Weights, gradients, and what the optimizer remembers."""
    remembered: int
    """What the algorithm remembers between rounds."""
    upload: int
    frozen: int = 0
    """What is not trained, once."""

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def server_memory(
    rehearsed: Rehearsed, clients: int, chosen: int, rounds: int, fp32_bytes: int, frozen: int = 0
) -> ServerMemory:
    """With so many clients, of whom so many take part in a round; beside so many bytes that are not trained."""
    costs, message = rehearsed.costs, rehearsed.answer.message
    packed = 0 if rehearsed.broadcast.reference is None else costs.down.worst
    ages = 1 if chosen == clients else min(clients, rounds)
    times = 1 / rehearsed.sample.share
    one, two = _arrived(rehearsed)

    def whole(count: float) -> int:
        return round(count * times)

    return ServerMemory(
        model=whole(2 * held(rehearsed.server)),
        broadcast=whole(held(rehearsed.broadcast)),
        aggregation=whole(one + (chosen - 1) * (two - one)),
        references=min(ages * packed, kept_bytes(fp32_bytes)),
        uploads=chosen * costs.up.worst + whole(held(message)),
        frozen=frozen,
    )


def client_memory(rehearsed: Rehearsed, frozen: int = 0) -> ClientMemory:
    """Of a client that trains one model, beside so many bytes that are not trained."""
    answer, times = rehearsed.answer, 1 / rehearsed.sample.share
    training = held(answer.local) + _trained(answer.local, rehearsed.algorithm)
    return ClientMemory(
        received=round(times * held(rehearsed.broadcast)),
        training=round(times * training),
        remembered=round(times * held(answer.memory)),
        upload=round(times * held(answer.message)) + rehearsed.costs.up.worst,
        frozen=frozen,
    )


def _arrived(rehearsed: Rehearsed) -> tuple[int, int]:
    """What the aggregation holds of one upload, and of two: the same where it adds them up."""
    aggregate, first = rehearsed.algorithm.aggregate, rehearsed.meaning
    parts = {name: (form_of(value), form_of(value).parts(value)) for name, value in first.tensors.items()}
    copied = {name: form.join({key: part.clone() for key, part in own.items()}) for name, (form, own) in parts.items()}
    total, sizes = aggregate.begin(), []
    for client, message in enumerate((first, replace(first, tensors=copied))):
        aggregate.add(total, client, message)
        sizes.append(held(total))
    return sizes[0], sizes[1]


def _trained(local: Local, algorithm: Algorithm) -> int:
    """Gradients of everything that is trained, and the optimizers' further tensors."""
    training, total = algorithm.training, 0
    for name, tensor in {**local.weights, **{f"factors/{name}": own for name, own in local.factors.items()}}.items():
        own = training.latent_optimizer if name in training.ternary else None
        total += tensor.nbytes * (1 + (own or training.optimizer).moments)
    return total


def held(value: Any) -> int:
    """Bytes of all tensors, arrays and byte strings in a value; what is there twice counts once."""
    return sum(_parts(value).values())


def _parts(value: Any) -> dict[int, int]:
    """Bytes by where they lie."""
    if isinstance(value, Tensor):
        return {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()}
    if isinstance(value, np.ndarray | bytes):
        return {id(value): value.nbytes if isinstance(value, np.ndarray) else len(value)}
    inner: list[Any] = []
    if isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        inner = list(value)
    elif is_dataclass(value):
        inner = list(vars(value).values())
    return {place: size for part in inner for place, size in _parts(part).items()}

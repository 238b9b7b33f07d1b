"""A data set from what each client has: its own arrays, or any iterable of batches, such as a PyTorch `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from ternfed.data.values import Array, DataSet, from_arrays
from ternfed.task import CLASSIFICATION, Task

Batches: TypeAlias = tuple[Array, Array] | Iterable[tuple[Array, Array]]
"""(inputs, targets) of all samples, or of one batch after another."""
Clients: TypeAlias = Mapping[Any, Batches] | Iterable[Batches]
"""What each client has, by name or in order."""


def from_clients(
    name: str, clients: Clients, test: Batches, *, task: Task | str = CLASSIFICATION, **more: Any
) -> DataSet:
    """A data set whose samples stay with the clients they are given for (`data.partition = "natural"`).

    Every iterable is read once, to its end, and kept in memory; a batch is (inputs, targets), of any size. What else
    there is to say is that of `from_arrays`.
    """
    if not isinstance(clients, Iterable):
        raise ValueError(f"{name}: is a {type(clients).__name__}; a data set, or what each client has, is needed")
    named = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    own = {client: _joined(f"{name}: client {client}", batches) for client, batches in named}
    if not own:
        raise ValueError(f"{name}: there are no clients; at least one is needed")
    inputs, targets = (_together(name, [pair[part] for pair in own.values()]) for part in range(2))
    owners = np.repeat(np.arange(len(own)), [len(x) for x, _ in own.values()])
    return from_arrays(name, inputs, targets, *_joined(f"{name}: test", test), task=task, clients=owners, **more)


def _joined(whose: str, batches: Batches) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All samples of one client, batch after batch."""
    if isinstance(batches, tuple) and len(batches) == 2 and _is_array(batches[0]):
        batches = [batches]
    if not isinstance(batches, Iterable):
        raise ValueError(f"{whose}: is a {type(batches).__name__}; (inputs, targets) or batches of them are needed")
    pairs: list[list[np.ndarray[Any, Any]]] = []
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(f"{whose}: a batch is a {type(batch).__name__}; (inputs, targets) is needed")
        x, y = map(_array, batch)
        if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
            raise ValueError(f"{whose}: inputs of shape {x.shape} for targets of shape {y.shape}; one each is needed")
        pairs.append([x, y])
    if not sum(len(x) for x, _ in pairs):
        raise ValueError(f"{whose}: has no samples; leave it out")
    return _together(whose, [x for x, _ in pairs]), _together(whose, [y for _, y in pairs])


def _together(whose: str, arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    shapes = list(dict.fromkeys(array.shape[1:] for array in arrays))
    if len(shapes) > 1:
        raise ValueError(f"{whose}: samples of shape {shapes[0]} and of shape {shapes[1]}; one shape is needed")
    return np.concatenate(arrays)


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _array(value: Array) -> np.ndarray[Any, Any]:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)

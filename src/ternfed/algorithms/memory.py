"""What an algorithm remembers between rounds as named tensors and back, for a checkpoint or a client's disk.

A memory is a frozen dataclass (eq=False). Its fields are tensors by name (`Weights`, {} by default) or one tensor
(`Tensor | None`, None by default), so that a memory with nothing in it is the one made without arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_origin, get_type_hints

from torch import Tensor

from ternfed.algorithms.algorithm import Weights


def tensors_of(memory: Any) -> Weights:
    """`field/name` of every tensor of a group, `field` of a single one."""
    found: Weights = {}
    for field in fields(memory):
        value = getattr(memory, field.name)
        if isinstance(value, Mapping):
            found |= {f"{field.name}/{name}": tensor for name, tensor in value.items()}
        elif value is not None:
            found[field.name] = value
    return found


def memory_of(kind: type, tensors: Mapping[str, Tensor]) -> Any:
    """The memory with these tensors; ValueError where it has no place for one."""
    groups = {name for name, hint in get_type_hints(kind).items() if get_origin(hint) is dict}
    known = {field.name for field in fields(kind)}
    values: dict[str, Any] = {}
    for key, tensor in tensors.items():
        field, slash, name = key.partition("/")
        if field not in known or bool(slash) != (field in groups):
            raise ValueError(f"{kind.__name__} has no place for {key}")
        if slash:
            values.setdefault(field, {})[name] = tensor
        else:
            values[field] = tensor
    return kind(**values)

"""A large model by some of its rows: the same tensors by name, fewer numbers, and how many times fewer of each."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

from torch import Tensor, nn

from ternfed.algorithms.algorithm import Network
from ternfed.wire import Message, Schema
from ternfed.wire.message import forms_in, locate

MOST = 1_200_000
"""Numbers that are really encoded. A larger model is judged by the first rows of its matrices and kernels."""

FEWEST = 256
"""Numbers that are left of each tensor."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A network that stands for another one."""

    network: Network
    times: Mapping[str, float]
    """How many times more numbers a tensor has in truth; 1 for those that are whole."""
    numbers: int
    """Of the whole model: parameters and buffers."""

    @property
    def share(self) -> float:
        """Of the model's numbers."""
        return _count(self.network.model) / self.numbers

    def bytes(self, message: Message, schema: Schema, data: bytes) -> int:
        """The bytes of an encoded message, had it every row."""
        if self.share == 1:
            return len(data)
        parts, total = locate(data, schema), float(len(data))
        for form in forms_in(schema):
            slots, coded = schema.of(form.kinds), parts.sections[form.name]
            costs = form.costs([message.tensors[slot.name] for slot in slots], coded)
            more = sum(cost * (self.times_of(slot.name) - 1) for slot, cost in zip(slots, costs, strict=True))
            total += len(coded.stream) * more / max(sum(costs), 1e-9)
        return round(total)

    def times_of(self, slot: str) -> float:
        """Of a slot: a tensor's own name, or one that an algorithm made of it (`NAME/codes`)."""
        return self.times.get(slot, self.times.get(slot.rpartition("/")[0], 1.0))


def sampled(network: Network, most: int = MOST) -> Sample:
    """The network itself where it is small; else a copy of its modules around the first rows of each tensor."""
    named = _named(network.model)
    numbers = sum(tensor.numel() for tensor in named.values())
    cut = {name: tensor for name, tensor in named.items() if tensor.dim() > 1}
    if numbers <= most or not cut:
        return Sample(network, {}, numbers)
    whole = numbers - sum(tensor.numel() for tensor in cut.values())
    share = max(most - whole, most // 10) / (numbers - whole)
    fewer = {name: _rows(tensor, max(int(share * len(tensor)), _fewest(tensor))) for name, tensor in cut.items()}
    # Known to the copy beforehand, so that no large tensor is copied and one that is shared stays so.
    memo: dict[int, object] = {id(cut[name]): tensor for name, tensor in fewer.items()}
    times = {name: cut[name].numel() / max(tensor.numel(), 1) for name, tensor in fewer.items()}
    return Sample(replace(network, model=deepcopy(network.model, memo)), times, numbers)


def _fewest(tensor: Tensor) -> int:
    """Rows that no sample goes below: a tensor must stay one of its kind, however an algorithm treats small ones."""
    return -(-FEWEST * len(tensor) // max(tensor.numel(), 1))


def _rows(tensor: Tensor, rows: int) -> Tensor:
    first = tensor.detach()[:rows].clone()
    return nn.Parameter(first, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else first


def _named(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _count(model: nn.Module) -> int:
    return sum(tensor.numel() for tensor in _named(model).values())

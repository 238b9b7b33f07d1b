"""Networks that are chains of linear layers, whose steps can be written by hand (`batched.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from torch import nn

from ternfed.models import Flatten


class Layer(NamedTuple):
    """One linear layer of a chain: the names of its tensors, and whether ReLU follows."""

    weight: str
    bias: str | None
    relu: bool


def chain_of(model: nn.Module, shape: Sequence[int] | None = None) -> list[Layer] | None:
    """The layers of a network of Flatten, Linear, ReLU and Identity in a row; None for every other network.

    `shape` is that of one sample: a network that cannot take it as it stands is no chain either. Whatever would make
    the hand-written pass differ from the model's own (hooks, parametrizations, shared weights) gives None.
    """
    parts = _parts(model, "")
    if parts is None or any(_is_altered(module) for module in model.modules()):
        return None
    tensors = [t for _, part in parts if isinstance(part, nn.Linear) for t in part.parameters()]
    if len({id(t) for t in tensors}) < len(tensors):
        return None
    flat, width = shape is None or len(shape) == 1, None if shape is None else prod(shape)
    layers: list[Layer] = []
    for name, part in parts:
        if isinstance(part, nn.Linear):
            if not flat or width not in (None, part.in_features):
                return None
            width = part.out_features
            layers.append(Layer(f"{name}weight", None if part.bias is None else f"{name}bias", False))
        elif isinstance(part, nn.ReLU):
            if not layers:
                return None
            layers[-1] = layers[-1]._replace(relu=True)
        elif isinstance(part, Flatten | nn.Flatten):
            if isinstance(part, Flatten) and width not in (None, part.features):
                return None
            flat = True
    return layers or None


def _parts(module: nn.Module, name: str) -> list[tuple[str, nn.Module]] | None:
    """The modules of a chain with the prefix of their tensors' names; None when one is of another kind."""
    # The exact type: a subclass may compute anything, and a parametrized layer is a subclass.
    if type(module) is nn.Sequential:
        parts = [_parts(child, f"{name}{key}.") for key, child in module._modules.items() if child is not None]
        return None if None in parts else [part for inner in parts if inner is not None for part in inner]
    if type(module) in (nn.Linear, nn.ReLU, nn.Identity, Flatten):
        return [(name, module)]
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return [(name, module)]
    return None


def _is_altered(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)

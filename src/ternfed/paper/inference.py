"""What a trained model costs when it is used: multiplications per sample, counted on shapes alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from ternfed.algorithms.algorithm import Network
from ternfed.data.sets import without_samples
from ternfed.paper.costs import network_of
from ternfed.paper.groups import Group
from ternfed.paper.model_size import light_layers


class Products(NamedTuple):
    """Multiplications of matrix products and convolutions for one sample."""

    own: int
    """A ternary or masked layer adds and subtracts, and multiplies once for each of its outputs."""
    float32: int
    """Every weight of it a float."""


def products(group: Group) -> Products | None:
    """The multiplications of a group's last model; None for a network or data set of the user's own."""
    network, data = network_of(group.settings), without_samples(group.settings["data"]["dataset"])
    if network is None or data is None or not group.length:
        return None
    inputs = data.train.inputs
    by_module, total = _counted(network, torch.empty((1, *inputs.shape[1:]), dtype=inputs.dtype, device="meta"))
    saved = 0.0
    for name in light_layers(group, network):
        weight, module = network.model.get_parameter(name), name.rpartition(".")[0]
        beside = [p.numel() for p in network.model.get_submodule(module).parameters(recurse=False) if p.dim() > 1]
        own = by_module.get(module, 0) * weight.numel() / sum(beside)
        saved += own - own / weight[0].numel()
    return Products(total - round(saved), total)


def _counted(network: Network, sample: torch.Tensor) -> tuple[dict[str, int], int]:
    """The multiplications in each module, by its name, and in all."""
    counter = FlopCounterMode(display=False)
    model = network.model.eval()
    with counter, torch.no_grad():
        model(sample)
    root = f"{type(model).__name__}."
    found = {name.removeprefix(root): sum(kinds.values()) // 2 for name, kinds in counter.get_flop_counts().items()}
    return found, counter.get_total_flops() // 2

"""What a trained model weighs on a disk, from a run's settings and records: models of finished rows are not kept."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ternfed.algorithms.algorithm import Network
from ternfed.experiment.named import about
from ternfed.paper.costs import network_of
from ternfed.paper.groups import Group
from ternfed.quantize.ternary import Ternary
from ternfed.wire.tern import tern_bytes


class ModelSize(NamedTuple):
    """Bytes of the model after the last round, at most: numbers that lie on a grid compress."""

    own: int
    """Ternary layers as a `.tern` file codes them, a bit for each number that is masked, 4 bytes for every other."""
    float32: int
    """4 bytes for every number."""


def model_size(group: Group) -> ModelSize | None:
    """The size of a group's last model; None for a network or data set of the user's own.

    The trits are drawn with the share of zeros that the last round recorded, and really coded. A model whose last
    broadcast was in full precision is one of floats.
    """
    network = network_of(group.settings)
    if network is None or not group.length:
        return None
    sizes = {name: tensor.numel() for name, tensor in network.weights().items() if name in network.floats}
    full, light = 4 * sum(sizes.values()), light_layers(group, network)
    others = 4 * sum(size for name, size in sizes.items() if name not in light)
    zeros = group.last(lambda record: record.zeros)
    if not light:
        return ModelSize(full, full)
    if zeros is None:  # a mask over random weights
        return ModelSize(-(-sum(sizes[name] for name in light) // 8) + others, full)
    source, one = torch.Generator().manual_seed(0), torch.ones(())
    shapes = {name: parameter.shape for name, parameter in network.model.named_parameters()}
    trits = {name: Ternary(_codes(shapes[name], zeros.mean, source), one, one) for name in light}
    return ModelSize(len(tern_bytes(trits)) + others, full)


def light_layers(group: Group, network: Network) -> tuple[str, ...]:
    """The weights of a group's last model that are 0 or ± one size per layer: its trits, or what its masks left."""
    known, parameters = about(group.algorithm), dict(network.model.named_parameters())
    if known is not None and known.masks:
        return tuple(name for name in network.parameters if parameters[name].dim() > 1)
    last = [run.rounds[group.length - 1] for run in group.shown]
    if any(record.zeros is None or record.is_full_precision for record in last):
        return ()
    return network.ternary


def _codes(shape: torch.Size, zeros: float, source: torch.Generator) -> torch.Tensor:
    drawn = torch.rand(shape, generator=source)
    signs = torch.randint(0, 2, shape, generator=source) * 2 - 1
    return torch.where(drawn < zeros, 0, signs).to(torch.int8)

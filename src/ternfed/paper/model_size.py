"""What a trained model weighs on a disk, from a run's settings and records: models of finished rows are not kept."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from ternfed.algorithms.algorithm import Network
from ternfed.algorithms.rest import BUFFER_BITS, FINEST, bits_of
from ternfed.experiment.named import about
from ternfed.paper.costs import network_of
from ternfed.paper.groups import Group
from ternfed.quantize.grid import BYTE
from ternfed.quantize.ternary import Ternary
from ternfed.wire.tern import tern_bytes

STEP = 2
"""Bytes of a step: the exponent of a power of two."""


class ModelSize(NamedTuple):
    """Bytes of the model after the last round, at most: numbers that lie on a grid compress."""

    own: int
    """Ternary layers as a `.tern` file codes them, a bit for each number that is masked, as many bits as a broadcast
    may need for each number that it rounds, 4 bytes for every other."""
    float32: int
    """4 bytes for every number."""


def model_size(group: Group) -> ModelSize | None:
    """The size of a group's last model; None for a network or data set of the user's own.

    The trits are drawn with the share of zeros that the last round recorded, and really coded. Where the last broadcast
    was in full precision, there are none.
    """
    network = network_of(group.settings)
    if network is None or not group.length:
        return None
    tensors = {name: tensor for name, tensor in network.weights().items() if name in network.floats}
    light = light_layers(group, network)
    zeros = group.last(lambda record: record.zeros)
    if not light:
        small = 0
    elif zeros is None:  # a mask over random weights
        small = -(-sum(tensors[name].numel() for name in light) // 8)
    else:
        source, one = torch.Generator().manual_seed(0), torch.ones(())
        small = len(
            tern_bytes({name: Ternary(_codes(tensors[name].shape, zeros.mean, source), one, one) for name in light})
        )
    others = {name: tensor for name, tensor in tensors.items() if name not in light}
    bits = _bits_of_broadcasts(others, group, network)
    full = 4 * sum(tensor.numel() for tensor in tensors.values())
    return ModelSize(small + sum(_packed(tensor, bits.get(name)) for name, tensor in others.items()), full)


def _bits_of_broadcasts(names: Collection[str], group: Group, network: Network) -> dict[str, int]:
    """What each number that is not ternary may need; floats, and codes that are no single bytes, are left out."""
    given = group.settings["algorithm"]
    settings: dict[str, int | None] = {key: None if value == "none" else value for key, value in given.items()}
    # With error feedback nothing but the finest step says how many bits a number has.
    down = settings.get("bits_down", settings.get("rest_bits_down", settings.get("finest_bits")))
    full = [name for name in names if name in network.ternary]  # came in full precision
    rest = [name for name in names if name not in full]
    bits = bits_of(rest, network, down, settings.get("buffer_bits") or BUFFER_BITS)
    bits |= bits_of(full, network, settings.get("full_bits", down))
    most = {name: max(each, settings.get("finest_bits") or FINEST) for name, each in bits.items()}
    return {name: each for name, each in most.items() if each <= BYTE.bit_length() + 1}


def _packed(tensor: Tensor, bits: int | None) -> int:
    """Bytes of a tensor whose numbers have so many bits each, with a step for each row of a matrix; none: floats."""
    if bits is None:
        return 4 * tensor.numel()
    return -(-tensor.numel() * bits // 8) + STEP * (len(tensor) if tensor.dim() > 1 else 1)


def light_layers(group: Group, network: Network) -> tuple[str, ...]:
    """The weights of a group's last model that are 0 or ± one size per layer: its trits, or what its masks left."""
    known, parameters = about(group.algorithm), dict(network.model.named_parameters())
    if known is not None and known.masks:
        return tuple(name for name in network.parameters if parameters[name].dim() > 1)
    last = [run.rounds[group.length - 1] for run in group.shown]
    if any(record.zeros is None or record.is_full_precision for record in last):
        return ()
    return network.ternary


def _codes(shape: torch.Size, zeros: float, source: torch.Generator) -> Tensor:
    drawn = torch.rand(shape, generator=source)
    signs = torch.randint(0, 2, shape, generator=source) * 2 - 1
    return torch.where(drawn < zeros, 0, signs).to(torch.int8)

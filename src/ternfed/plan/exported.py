"""Sizes of the trained model as a file, from the trits of a rehearsed broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from ternfed.algorithms.algorithm import Network
from ternfed.edge.forms import PRODUCT_FROM, pack_pairs
from ternfed.plan.costs import Rehearsed
from ternfed.wire import Message, Value, encode, schema_of, trits_of
from ternfed.wire.tern import tern_bytes
from ternfed.wire.trits import symbols


@dataclass(frozen=True)
class Exported:
    """Bytes of a file."""

    tern: int
    """At most: numbers that lie on a grid compress."""
    onnx: int
    """Its weights: trits packed, everything else float32. The graph and its metadata add some kilobytes."""
    float32: int


def exported(rehearsed: Rehearsed, network: Network) -> Exported:
    """The model as `ternfed export` writes it, its layers ternary where they are broadcast so."""
    sent = rehearsed.server.sent
    ternary = {name: value for name, value in sent.items() if trits_of(value) is not None}
    source = torch.Generator().manual_seed(0)
    floats = {name: _unrounded(tensor, source) for name, tensor in rehearsed.server.weights.items()}
    tensors: dict[str, Value] = {**floats, **ternary}
    message = Message(tensors)
    schema = schema_of(message)
    data = encode(message, schema)
    front = len(tern_bytes(tensors)) - len(data)
    parameters = dict(network.model.named_parameters())
    shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    onnx = sum(_packed(shape) if name in ternary else 4 * prod(shape) for name, shape in shapes.items())
    still = 4 * sum(tensor.numel() for tensor in network.frozen_tensors().values())
    tern = front + rehearsed.sample.bytes(message, schema, data) + still
    return Exported(tern, onnx, 4 * rehearsed.sample.numbers)


def _unrounded(tensor: Tensor, source: torch.Generator) -> Tensor:
    """The tensor with digits to its last place, as many rounds leave them."""
    if not tensor.is_floating_point():
        return tensor
    return tensor * (1 + 0.01 * torch.randn(tensor.shape, generator=source))


def _packed(shape: tuple[int, ...]) -> int:
    """A ternary weight in an ONNX file: two bits per trit in large matrices, five trits in a byte elsewhere."""
    if len(shape) == 2 and prod(shape) >= PRODUCT_FROM:
        return shape[0] * pack_pairs(np.zeros((1, shape[1]), np.int8)).nbytes
    return symbols(prod(shape))

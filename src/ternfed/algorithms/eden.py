"""EDEN: each client rotates its update at random and sends one to four bits per coordinate.

Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher: EDEN: Communication-Efficient and Robust Distributed
Mean Estimation for Federated Learning, ICML 2022; with one bit, DRIVE: One-bit Distributed Mean Estimation, NeurIPS
2021. Each client has a rotation of its own in every round, so that the errors of many cancel out; the server draws the
same one from the experiment's seed and turns the update back before it averages (`quantize/rotation.py`).

Matrices and kernels are rotated, each on its own, in blocks whose lengths are powers of two: the binary digits of its
size, so that fewer than 64 numbers per tensor are padding. Vectors (biases, BatchNorm) and anything smaller than a
block are on a grid, as are broadcasts: there it is FedPAQ.

Beyond the papers, on request: trits in place of bits, and error feedback, where a client adds to its update what its
earlier messages left out (Seide et al., 1-bit SGD, Interspeech 2014).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from ternfed.algorithms import fedpaq
from ternfed.algorithms.algorithm import UP, About, Algorithm, Client, Local, Network, Training
from ternfed.algorithms.feedback import ClientMemory
from ternfed.algorithms.network import dense_weights
from ternfed.algorithms.rest import FINEST, USUAL, bits_of, changes
from ternfed.algorithms.statistics import Statistics
from ternfed.quantize.grid import Grid
from ternfed.quantize.rotation import (
    SMALLEST,
    TRITS,
    Rotated,
    blocks_of,
    centroids,
    random_signs,
    rotated,
    turned_back,
)
from ternfed.wire import Kind, Message, Schema, Slot, Value, WrongValue, dense

ABOUT = About("EDEN", trains_ternary=False, before={"finest_bits": FINEST})


@dataclass(frozen=True)
class Settings:
    """EDEN's settings."""

    bits_up: int = 1
    """Of each coordinate of a rotated update."""
    rest_bits_up: int = 4
    """Of each number that is not rotated: its change, rounded at random."""
    bits_down: int | None = 4
    """Of each number of a broadcast: its change since the last one, rounded to nearest. "none": floats."""
    finest_bits: int = USUAL
    """No step of a broadcast is finer than this: the largest number of a row has at most so many bits."""
    first_bits: int | None = None
    """And in the first broadcast: of the number itself; none: as many."""
    trits: bool = False
    """Each coordinate of a rotated update as a trit, 1.41 bits, in place of `bits_up`."""
    error_feedback: bool = False
    """Clients keep what an upload left out and add it to the next; what is not rotated is then rounded to nearest."""
    keep_length: bool = False
    """A decoded update is as long as the update, not right in the mean over many: for a server that takes one alone.
    With error feedback it always is."""
    statistics: Statistics = Statistics.AVERAGE

    def __post_init__(self) -> None:
        if not 1 <= self.bits_up <= 4:
            raise ValueError(f"bits_up = {self.bits_up}: 1 to 4 is allowed")
        if not 1 <= self.rest_bits_up <= 8:
            raise ValueError(f"rest_bits_up = {self.rest_bits_up}: 1 to 8 is allowed")
        fedpaq.Settings(bits_down=self.bits_down, first_bits=self.first_bits, finest_bits=self.finest_bits)


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedPAQ with rotated uploads."""
    bits = TRITS if settings.trits else settings.bits_up
    small = fedpaq.Settings(
        bits_up=settings.rest_bits_up,
        bits_down=settings.bits_down,
        first_bits=settings.first_bits,
        statistics=settings.statistics,
        finest_bits=settings.finest_bits,
    )
    base = fedpaq.algorithm(network, training, small)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.weights().items()}
    turned = tuple(name for name in network.floats if len(shapes[name]) > 1 and prod(shapes[name]) >= SMALLEST)
    rest = tuple(name for name in network.floats if name not in turned)
    rest_bits = bits_of(rest, network, settings.rest_bits_up)

    def signs_of(client: Client) -> dict[str, Tensor]:
        """The rotation of each tensor: the same on the client and on the server."""
        source = client.draw("rotation")
        return {name: random_signs(prod(shapes[name]), source) for name in turned}

    def finish(local: Local, received: Message, memory: Any, client: Client) -> tuple[Message, Any]:
        moved = network.without_counters({**local.weights, **local.buffers})
        before, signs = dense_weights(received), signs_of(client)
        sent: dict[str, Value] = {name: tensor for name, tensor in moved.items() if name not in network.floats}
        if settings.error_feedback:
            moved |= {n: moved[n].float() + memory.residual[n] for n in network.floats if n in memory.residual}
        source = None if settings.error_feedback else client.draw("changes")
        sent |= changes({n: moved[n] for n in rest}, before, rest_bits, source)
        turn = partial(rotated, keep_length=settings.keep_length or settings.error_feedback)
        parts = {name: turn((moved[name].float() - before[name]).flatten(), bits, signs[name]) for name in turned}
        for name, part in parts.items():
            sent |= _slots(name, part)
        if settings.error_feedback:
            said = {n: dense(sent[n]) for n in rest} | {n: back(part, n, signs[n]) for n, part in parts.items()}
            memory = ClientMemory({n: moved[n].float() - before[n] - said[n] for n in network.floats})
        return Message(sent, {}), memory

    def back(part: Rotated, name: str, signs: Tensor) -> Tensor:
        return turned_back(part, bits, signs, prod(shapes[name])).view(shapes[name])

    def meaning(message: Message, client: Client) -> Message:
        signs = signs_of(client)
        own = {name for turn in turned for name in _names(turn)}
        tensors = {name: value for name, value in message.tensors.items() if name not in own}
        count = len(centroids(bits))
        turned_round = {n: back(_rotated(message.tensors, n, count), n, signs[n]) for n in turned}
        return Message({**tensors, **turned_round}, message.numbers)

    (plain,) = base.up
    slots = [slot for slot in plain.slots if slot.name not in turned]
    for name in turned:
        blocks = blocks_of(prod(shapes[name]))
        codes, scales = _names(name)
        slots += [Slot(codes, (sum(blocks),), Kind.GRID), Slot(scales, (len(blocks),), Kind.FLOAT32)]
    up = (Schema(tuple(slots), UP),)
    kept = ClientMemory if settings.error_feedback else base.client_memory
    return replace(base, name="eden", up=up, finish=finish, meaning=meaning, client_memory=kept)


def _names(name: str) -> tuple[str, str]:
    """The slots of a rotated tensor."""
    return f"{name}/codes", f"{name}/scales"


def _slots(name: str, value: Rotated) -> dict[str, Value]:
    codes, scales = _names(name)
    return {codes: Grid(value.codes, torch.zeros((), dtype=torch.int16)), scales: value.scales}


def _rotated(tensors: Mapping[str, Value], name: str, count: int) -> Rotated:
    """A rotated tensor from its slots; a client may have sent any codes."""
    codes, scales = (dense(tensors[slot]) for slot in _names(name))
    if not bool(((codes >= 0) & (codes < count)).all()):
        raise WrongValue(f"{name}: codes from 0 to {count - 1} are allowed")
    return Rotated(codes.int(), scales)

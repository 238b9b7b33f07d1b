"""What an algorithm is: a value made of functions, and the few values they exchange.

A round, whoever carries the bytes (`round/exchange.py` walks it):

    server: broadcast(server, held) ─▶ Message
    client: start(Message, memory, draw) ─▶ Local ─▶ training ─▶ finish(Local, Message, memory) ─▶ Message
    server: meaning(Message, client) ─▶ aggregate ─▶ Uploads ─▶ update(server, uploads, helpers) ─▶ next server
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from ternfed.aggregation import mean
from ternfed.aggregation.aggregation import Aggregation, Uploads
from ternfed.algorithms.network import Network as Network
from ternfed.algorithms.network import Weights as Weights
from ternfed.algorithms.optimizers import Optimizer, Sgd
from ternfed.quantize.ternary import Quantizer
from ternfed.wire import Message, Schema, Value

DOWN = ("round",)
"""The numbers of every broadcast; the engine fills them in."""
UP = ("round", "samples", "loss")
"""The numbers of every upload. With the task's metric among them, a client also judges the model it received."""


@dataclass(frozen=True, eq=False)
class Local:
    """What one client trains. For ternary layers `weights` holds the latent weights, `factors` their (1,) or (2,)."""

    weights: Weights
    buffers: Weights
    factors: Weights = field(default_factory=dict)
    threshold: float = 0.0
    """T_k: the threshold factor of this client, in place of the quantizer's."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """What latent weights are to be multiplied by where they are used without quantization; 1 where there is none."""


Correct = Callable[[Weights, Weights, Local], Weights]
"""(gradients, current weights, what the client started from) ─▶ the gradients that the optimizer gets.

Of weights and latent weights; the factors of ternary layers are not corrected."""

Forward = Callable[[Weights, Weights, Local, float], Weights]
"""(trained weights, trained factors, what the client started from, share of the local steps done) ─▶ the weights of a
forward pass, through which gradients reach the trained ones.

It draws from PyTorch's own generator, set by the client's seed, and may give a factor its first value in place."""


@dataclass(frozen=True)
class Training:
    """How a client trains: the paper's basic configuration, and what a ternary algorithm adds to it."""

    optimizer: Optimizer = field(default_factory=Sgd)
    rate: float = 0.01
    weight_decay: float = 0.0
    epochs: int = 5
    batch: int = 64
    quantizer: Quantizer | None = None
    """Of the layers that have factors or latent weights; None trains plain weights."""
    ternary: tuple[str, ...] = ()
    latent_optimizer: Optimizer | None = None
    """Latent weights have an optimizer of their own; None: they share the others'."""
    latent_rate: float = 1.0
    """With an optimizer of their own, the rate of the latent weights in the first round: it falls as the others' does.
    Else they learn at so many times the others' rate."""
    latent_decay: float = 1.0
    """Their own rate falls with this power of the others' decay: 0.5 is slower than they are."""
    latents_rest_at: float = 0.0
    """Latent weights stay as they are once the rates have decayed to this share."""
    factor_rate: float = 1.0
    clip: float | None = None
    """Latent weights are clipped to [-clip, clip] after each step."""
    plain_epochs: int = 0
    """So many first local epochs train without quantization."""
    precision: str = "float32"
    """`bfloat16`: linear and convolutional layers compute in it; weights, optimizer and BatchNorm do not."""
    correct: Correct | None = None
    """What is done to the gradient of each local step, before the optimizer sees it."""
    forward: Forward | None = None
    """What the network computes with in each local step, in place of the trained weights; without a quantizer alone."""
    decay: float = 1.0
    """What is left of the first round's rate."""

    @property
    def one_by_one(self) -> bool:
        """Whether steps have parts of the algorithm's own, so that clients train one after another."""
        return self.correct is not None or self.forward is not None

    @property
    def rates(self) -> tuple[float, float, float]:
        """Of ordinary weights, of latent weights and of factors, in this round."""
        shared = self.latent_optimizer is None
        latents = self.latent_rate * (self.rate if shared else self.decay**self.latent_decay)
        return self.rate, 0.0 if self.decay <= self.latents_rest_at else latents, self.rate * self.factor_rate

    def share_out(self, groups: Sequence[dict[str, Any]]) -> list[tuple[Optimizer, list[dict[str, Any]]]]:
        """Groups of ordinary weights, latent weights and factors, with the optimizer of each; empty ones left out."""
        others, latents, factors = ([group] if group["params"] else [] for group in groups)
        if self.latent_optimizer is None:
            shared = [(self.optimizer, [*others, *latents, *factors])]
        else:
            shared = [(self.optimizer, [*others, *factors]), (self.latent_optimizer, latents)]
        return [(optimizer, own) for optimizer, own in shared if own]


class Strategy(StrEnum):
    """How the model was broadcast (Algorithm 2 of the T-FedAvg paper)."""

    TERNARY = "I"
    """Its quantized layers as trits."""
    FULL = "II"
    """All of it in full precision."""


@dataclass(frozen=True, eq=False)
class Nothing:
    """The memory of whoever remembers nothing between rounds."""


@dataclass(frozen=True, eq=False)
class Server:
    """What the server knows between rounds. Everything here is saved in a checkpoint."""

    weights: Weights
    """The global model, parameters and buffers, as the clients get it."""
    sent: Mapping[str, Value] = field(default_factory=dict)
    """The same for the tensors that are broadcast in another form than plain floats: trits, or on a grid."""
    memory: Any = field(default_factory=Nothing)
    """What the algorithm itself must remember, an error residual for example: a value of its `server_memory`."""
    strategy: Strategy | None = None
    """How this model is broadcast, where the algorithm has a choice."""


Judge = Callable[[Weights], float]
"""How good a model is on data held out on the server, in the metric's units, higher always better. Never test data."""

Draw = Callable[[str], torch.Generator]
"""A fresh generator for a purpose, fixed by the experiment's seed, the round and the client."""


@dataclass(frozen=True)
class Client:
    """Who a client is, as far as an algorithm may ask."""

    index: int
    count: int
    """Of how many clients in all."""
    draw: Draw


@dataclass(frozen=True)
class FinishTogether:
    """An `Algorithm.finish` that many clients of one machine can share: a thousand small models take less time so.

    Nothing that a client sends may depend on the others. If one fails, they are asked one by one.
    """

    each: Callable[[Sequence[Local], Message, Sequence[Any], Sequence[Client]], list[tuple[Message, Any]]]

    def __call__(self, local: Local, received: Message, memory: Any, client: Client) -> tuple[Message, Any]:
        """What one client sends."""
        return self.each([local], received, [memory], [client])[0]


@dataclass(frozen=True)
class Helpers:
    """What the engine lends an algorithm's server half."""

    judge: Judge
    statistics: Callable[[Weights], Weights]
    """The weights with BatchNorm statistics recomputed on data held out on the server."""
    decays_to: Callable[[float], bool] = lambda share: False
    """Whether the learning rates fall to this share of the first ones with the round that ends."""
    reaches_share: Callable[[float], bool] = lambda share: False
    """Whether the run passes this share of its rounds with the one that ends."""


@dataclass(frozen=True)
class About:
    """What others may ask of an algorithm without running it: `ABOUT` of its module."""

    label: str
    """Its name in tables and figures."""
    trains_ternary: bool = True
    """Whether which layers are ternary (`model.ternary`) makes a difference to it."""
    sends_trits: bool = False
    """Whether trits travel, so that bits per trit can be told."""
    central: bool = False
    """All data lies in one place and nothing travels: the baseline."""
    masks: bool = False
    """Its model is a seed and a bit for each number of a matrix or kernel, which is 0 or ± one size per layer."""
    frozen: Callable[[Mapping[str, Any]], bool] = lambda settings: False
    """Of its settings as a plain table: whether they keep all trits as they are on purpose, as a control."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """What runs did that were saved before a setting was there, where that is not its default."""
    depends_on_rounds: Callable[[Any], str | None] = lambda settings: None
    """Of its settings: what depends on the number of rounds, such as "its broadcasts depend"; None: nothing does."""
    suited: Callable[[Any, Network, Training, int], Any] = lambda settings, network, training, samples: settings
    """Its settings, with what it chooses by the network, by how clients train and by how many samples one has."""


@dataclass(frozen=True)
class Algorithm:
    """A federated algorithm as a value made of functions."""

    name: str
    training: Training
    down: tuple[Schema, ...]
    """What a broadcast may look like."""
    up: tuple[Schema, ...]
    """What an upload may look like."""
    open: Callable[[Weights], Server]
    """The server before the first round."""
    broadcast: Callable[[Server], Message]
    """What every client gets; what it holds already only makes the bytes fewer."""
    start: Callable[[Message, Any, Client], tuple[Local, Any]]
    """What a client trains, from what it received and remembers; and what it remembers from then on."""
    finish: Callable[[Local, Message, Any, Client], tuple[Message, Any]]
    """What a client sends, from what it trained, received and remembers; and what it remembers from then on."""
    update: Callable[[Server, Uploads, Helpers], Server]
    """The server after a round."""
    meaning: Callable[[Message, Client], Message] = lambda message, client: message
    """Server: what an upload stands for, once what its sender's random numbers did to it is undone.

    `client` is the sender as `finish` saw it and draws the same numbers; the aggregation gets only what comes out."""
    aggregate: Aggregation[Any] = field(default_factory=mean.aggregation)
    """How the uploads of a round become one model."""
    changes: tuple[str, ...] = ()
    """Tensors of an upload that say how far a client moved; the others are its own, to be compared with those of the
    broadcast."""
    server_memory: type = Nothing
    """The dataclass of `Server.memory` (memory.py); made without arguments, it is the memory before the first round."""
    client_memory: type = Nothing
    """And that of what a client remembers between rounds, on its own disk when it is a machine of its own."""
    reference: Callable[[Message], Mapping[str, Tensor] | None] = lambda message: None
    """The named tensors, such as trits, that a broadcast gives both sides to code uploads and the next one with."""
    retries: int = 0
    """So often a client whose training diverged trains again, each time at a quarter of its rates."""
    needs_held_out: bool = False
    """The server half judges models, or recomputes statistics, on data held out on the server."""
    central: bool = False
    """All data lies in one place and nothing travels: the baseline."""

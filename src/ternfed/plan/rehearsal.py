"""A federation without data: the algorithm's own functions over made training, so that real messages come out.

The path is that of `round/exchange.py`. Instead of training, each client moves its numbers by random ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ternfed import draws
from ternfed.algorithms.algorithm import UP, Algorithm, Client, Helpers, Local, Network, Server
from ternfed.round.exchange import Broadcast, reply, send
from ternfed.wire import Message, Reference, Value, form_of, trits_of

Move = Callable[[Tensor, torch.Generator], Tensor]
"""How far the numbers of a tensor move in one client's round."""


def calm(size: float = 0.05) -> Move:
    """Normal numbers of about this share of the tensor's own size; some rows move more than others."""

    def move(tensor: Tensor, source: torch.Generator) -> Tensor:
        change = torch.randn(tensor.shape, generator=source) * (size * _size(tensor))
        if tensor.dim() > 1:
            rows = torch.randn(len(tensor), generator=source).mul(0.5).exp()
            change *= rows.view(-1, *[1] * (tensor.dim() - 1))
        return change

    return move


def loud(tensor: Tensor, source: torch.Generator) -> Tensor:
    """Every number moves about equally far, just below a power of two: codes get as large and as many as they can."""
    signs = torch.randint(2, tensor.shape, generator=source) * 2 - 1
    return signs * 2.0**-6 * (1 - 2.0**-9 * (1 + torch.rand(tensor.shape, generator=source)))


def still(tensor: Tensor, source: torch.Generator) -> Tensor:
    """Nothing moves."""
    return torch.zeros(tensor.shape)


class Encoded(NamedTuple):
    """A message and its bytes."""

    message: Message
    data: bytes


class Answer(NamedTuple):
    """A client's half of a round."""

    message: Message
    local: Local
    """What it started from."""
    memory: Any
    """What it remembers from then on."""


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """One federation of made training."""

    network: Network
    algorithm: Algorithm
    clients: int
    seed: int = 0

    def open(self) -> Server:
        """The server before the first round."""
        return self.algorithm.open(self.network.weights())

    def received(self, server: Server, keep: bool = True) -> Broadcast:
        """The broadcast as its receivers have it. Not encoded: the wire is lossless. `keep` as in `Reference`."""
        message = replace(self.algorithm.broadcast(server), numbers={"round": 1.0})
        lent = self.algorithm.reference(message)
        return Broadcast(message, None if lent is None else Reference(lent, keep))

    def broadcast(self, server: Server, given: Reference | None = None, flips: float = 0.0) -> Encoded:
        """What a client gets, coded given an older broadcast, of whose trits so many have flipped."""
        message = self.algorithm.broadcast(server)
        if given is not None:
            message = _flipped(message, given.tensors, flips, self._source("down"))
        data = send(self.algorithm, message, 1, given)
        return Encoded(message, data)

    def answer(self, broadcast: Broadcast, move: Move, client: int = 0, round: int = 1, score: float = 0.0) -> Answer:
        """What a client has to send that takes part for the first time; `score` where clients judge."""
        sender = self.client(client)
        local, memory = self.algorithm.start(broadcast.message, self.algorithm.client_memory(), sender)
        moved = self._moved(local, move, self._source("training", client, round))
        message, memory = self.algorithm.finish(moved, broadcast.message, memory, sender)
        names = {name for schema in self.algorithm.up for name in schema.numbers}
        return Answer(replace(message, numbers={n: 1.0 if n in UP else score for n in names}), local, memory)

    def upload(self, broadcast: Broadcast, answer: Answer, flips: float) -> Encoded:
        """What it sends, so many of whose trits are other than those of the broadcast."""
        message = _flipped(answer.message, broadcast.lent or {}, flips, self._source("up"))
        return Encoded(message, reply(self.algorithm, message, message.numbers, broadcast))

    def after(self, server: Server, move: Move, round: int = 1, collapses: bool = False) -> Server:
        """The server after a round with one client.

        Where it `collapses`, a server that judges finds each model better than the one before it, and clients that do
        find them better and worse in turn, ever more: so that each kind of broadcast has its reason.
        """
        broadcast, total = self.received(server), self.algorithm.aggregate.begin()
        score = 1e6 * round * (-1) ** round if collapses else 0.0
        message = self.answer(broadcast, move, round=round, score=score).message
        self.algorithm.aggregate.add(total, 0, self.algorithm.meaning(message, self.client(0)))
        scores = count(0.0, 1e6 if collapses else 0.0)
        helpers = Helpers(
            judge=lambda weights: next(scores),
            statistics=lambda weights: weights,
            decays_to=lambda share: collapses,
            reaches_share=lambda share: collapses,
        )
        reached = self.algorithm.update(server, self.algorithm.aggregate.finish(total), helpers)
        return replace(reached, weights=self.network.with_counters(reached.weights))

    def _moved(self, local: Local, move: Move, source: torch.Generator) -> Local:
        weights = {name: tensor + move(tensor, source) for name, tensor in local.weights.items()}
        buffers = {
            name: tensor + move(tensor, source) if tensor.is_floating_point() else tensor
            for name, tensor in local.buffers.items()
        }
        return replace(local, weights=weights, buffers=buffers)

    def client(self, index: int) -> Client:
        """A client as the algorithm sees it."""
        return Client(index, self.clients, partial(draws.generator, self.seed, round=1, client=index))

    def _source(self, purpose: str, client: int = 0, round: int = 1) -> torch.Generator:
        return draws.generator(self.seed, f"plan/{purpose}", round, client)


def _flipped(message: Message, held: Mapping[str, Tensor], flips: float, source: torch.Generator) -> Message:
    """The message with the trits that the receiver holds, but for so many of them: 0 becomes ±1, ±1 becomes 0."""
    tensors: dict[str, Value] = dict(message.tensors)
    for name, value in message.tensors.items():
        if trits_of(value) is None or name not in held or held[name].dtype != torch.int8:
            continue
        codes, drawn = held[name], torch.rand(held[name].shape, generator=source)
        signs = torch.where(drawn < flips / 2, -1, 1)
        other = torch.where(codes == 0, signs, 0)
        form = form_of(value)
        flipped = torch.where(drawn < flips, other, codes).to(torch.int8)
        tensors[name] = form.join({**form.parts(value), "codes": flipped})
    return replace(message, tensors=tensors)


def _size(tensor: Tensor) -> float:
    """The root of the mean square; a tenth for a tensor of zeros."""
    return float(tensor.float().square().mean().sqrt()) or 0.1 if tensor.numel() else 0.1

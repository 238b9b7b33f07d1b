"""Rank 0's side: which clients go where, and their answers as if all had been trained here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch

from ternfed.algorithms.memory import memory_of, tensors_of
from ternfed.engines.ranks.link import Link, Received
from ternfed.engines.ranks.place import shares
from ternfed.experiment.experiment import ExperimentError
from ternfed.files import save_tensors, tensors_in
from ternfed.round.crew import Answer, Crew, train_here
from ternfed.round.exchange import Broadcasts
from ternfed.round.federation import Federation
from ternfed.round.traffic import Clock

EXPERIMENT, READY, FAILED, MEMORY, ROUND, ANSWER = "experiment", "ready", "failed", "memory", "round", "answer"
"""Kinds of messages, in the order of a run: what is to be done; it can be; it cannot; what a client remembers; a round;
what a client sends."""


TELLING = 1000
"""Of the inputs of a data set, so many are compared; of the targets, all."""


class RankFailed(RuntimeError):
    """Another rank could not do its part: its own sentence."""


def check_count(federation: Federation, ranks: int, named: str) -> None:
    """Refuse more ranks than clients; `named` is what the user gave."""
    clients = len(federation.chosen(1))
    if ranks > clients:
        some = "one client takes" if clients == 1 else f"{clients} clients take"
        raise ExperimentError(f"{named}: {some} part in each round, and each rank needs one at least")


def crew_over(link: Link, federation: Federation) -> Crew:
    """The crew of an experiment over all ranks, once each of them has made it ready."""
    for rank in range(1, link.count):
        link.send(rank, EXPERIMENT, {"experiment": federation.experiment.to_table()})
    own = identity(federation)
    for message in [_next(link) for _ in range(1, link.count)]:
        for key, value in own.items():
            if message.facts[key] != value:
                raise RankFailed(f"rank {message.sender} has another {key} than rank 0; both need the same")
    return _Crew(link, federation)


def identity(federation: Federation) -> dict[str, str]:
    """What all ranks must have in common, so that it makes no difference which of them trains a client."""
    inputs, labels = federation.feed.samples.inputs, federation.feed.samples.labels
    seen = blake2b(repr((inputs.shape, federation.registered)).encode())
    for some in (inputs[:: max(1, len(inputs) // TELLING)], labels):
        seen.update(some.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return {
        "version of PyTorch": torch.__version__.partition("+")[0],
        "data set": seen.hexdigest(),
        "model": str(federation.network.digest),
    }


def memory_bytes(memory: Any) -> bytes:
    """What a client remembers, on its way to another rank; empty where that is nothing."""
    tensors = tensors_of(memory)
    return save_tensors(tensors, {"order": list(tensors)}) if tensors else b""


def memory_from(kind: type, data: bytes) -> Any:
    """What `memory_bytes` was given, its tensors in their order."""
    if not data:
        return kind()
    tensors, facts = tensors_in(data)
    return memory_of(kind, {name: tensors[name] for name in facts["order"]})


class _Crew:
    """Clients spread over ranks, longest first; one that remembers something stays where its memory lies."""

    def __init__(self, link: Link, federation: Federation) -> None:
        self._link, self._federation = link, federation
        self._kept: dict[int, tuple[int, Any]] = {}
        """The rank that keeps what a client remembers, and the memory as that rank has it."""

    def __call__(
        self, broadcasts: Broadcasts, chosen: Sequence[int], memories: Mapping[int, Any], clock: Clock
    ) -> Iterator[Answer]:
        federation, link, number = self._federation, self._link, broadcasts.round
        pinned = {client: rank for client, (rank, _) in self._kept.items()}
        own, *others = shares(chosen, federation.registered, link.count, pinned)
        for rank, share in enumerate(others, start=1):
            for client in share:
                self._remind(rank, client, memories.get(client))
            # All broadcasts of a round say the same; this one needs nothing to be read.
            link.send(rank, ROUND, {"round": number, "clients": share}, broadcasts.given(None).data)
        clock.lap("broadcast")
        got: dict[int, Answer] = {}
        with link.working():
            for answer in train_here(federation, number, broadcasts.any(), own, memories, clock):
                clock.lap("upload")
                got[answer.client] = answer
                if answer.diverged is None and tensors_of(answer.memory):
                    self._kept[answer.client] = 0, answer.memory
        for client in chosen:
            while client not in got:
                answer = self._answer()
                got[answer.client] = answer
            clock.lap("train")  # that of the others, as far as it took longer
            yield got.pop(client)

    def _remind(self, rank: int, client: int, memory: Any) -> None:
        """A rank is told what a client remembers, unless it knows: it trained the client last, and that counted."""
        keeper, kept = self._kept.get(client, (None, None))
        if keeper == rank and kept is memory:
            return
        data = b"" if memory is None else memory_bytes(memory)
        if data or keeper is not None:  # where its first upload was refused, it must forget what came of it
            self._link.send(rank, MEMORY, {"client": client}, data)
            self._kept[client] = rank, memory

    def _answer(self) -> Answer:
        """The next of another rank."""
        message = _next(self._link)
        client, size = message.facts["client"], message.facts["upload"]
        memory = memory_from(self._federation.algorithm.client_memory, message.body[size:])
        if len(message.body) > size:
            self._kept[client] = message.sender, memory
        return Answer(client, message.body[:size], memory, message.facts["diverged"])


def _next(link: Link) -> Received:
    message = link.receive()
    if message.kind == FAILED:
        raise RankFailed(f"rank {message.sender}: {message.facts['why']}")
    return message

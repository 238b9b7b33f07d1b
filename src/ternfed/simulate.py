"""The in-process engine: a whole federation on one machine, every message really encoded and decoded.

`open_federation` makes everything an experiment needs, `play` runs its rounds, `record` does so into a run folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from ternfed.algorithms.algorithm import Algorithm, Memory
from ternfed.average import Average
from ternfed.federation import Clock, Federation, Handed, Traffic, conclude, open_federation, prepare, upload
from ternfed.rounds import Broadcast, collect, receive, send
from ternfed.runs import Round, RunFolder, Saved
from ternfed.state import State, pack, unpack
from ternfed.training import train

__all__ = ["Federation", "open_federation", "play", "play_round", "record"]

CHUNK = 256
"""So many clients are trained, and their models held, at a time."""

CHECKPOINT_SECONDS = 10.0
"""A run that is killed loses at most so much work, and a round."""


def play(federation: Federation, state: State | None = None) -> Iterator[tuple[State, Round]]:
    """The rounds that are left, one after another."""
    state = state or federation.open()
    while state.round < federation.experiment.federation.rounds:
        state, outcome = play_round(federation, state)
        yield state, outcome


def record(federation: Federation, folder: RunFolder, saved: Saved | None = None) -> Iterator[Round]:
    """The rounds that are left, each written to the run folder; checkpoints every few seconds and at the end."""
    before = None if saved is None else unpack(federation.algorithm, saved.round, saved.tensors, saved.facts)
    last = time.monotonic()
    for state, outcome in play(federation, before):
        folder.append(outcome)
        is_best = state.best_round == state.round
        is_last = state.round == federation.experiment.federation.rounds
        if is_best or is_last or time.monotonic() - last > CHECKPOINT_SECONDS:
            folder.save_checkpoint(outcome, *pack(state), is_best=is_best)
            last = time.monotonic()
        yield outcome


def play_round(federation: Federation, state: State) -> tuple[State, Round]:
    """One round: broadcast, local training, uploads, average, update, evaluation."""
    number, clock, traffic = state.round + 1, Clock(), Traffic()
    chosen = federation.chosen(number)
    received = _download(federation.algorithm, state, number, chosen, traffic)
    clock.lap("broadcast")
    memories = dict(state.memories)
    average = Average()
    waiting = iter(chosen)
    while chunk := list(islice(waiting, CHUNK)):
        _train_and_upload(federation, number, chunk, received, memories, average, traffic, clock)
    after = Handed(received[chosen[0]], tuple(chosen), memories)
    return conclude(federation, state, average.uploads(), traffic, clock, after)


def _download(
    algorithm: Algorithm, state: State, number: int, chosen: Sequence[int], traffic: Traffic
) -> dict[int, Broadcast]:
    """What each client receives: coded given the last broadcast for its holders, without reference for the others."""
    last = None if state.broadcast is None else state.broadcast.reference
    kinds: dict[bool, tuple[bytes, Broadcast]] = {}
    for held in {client in state.holders for client in chosen}:
        data = send(algorithm, state.server, number, held, last)
        kinds[held] = data, receive(algorithm, data, last if held else None)
    received = {}
    for client in chosen:
        data, received[client] = kinds[client in state.holders]
        traffic.add_download(data)
    return received


def _train_and_upload(
    federation: Federation,
    number: int,
    chunk: Sequence[int],
    received: Mapping[int, Broadcast],
    memories: dict[int, Memory],
    average: Average,
    traffic: Traffic,
    clock: Clock,
) -> None:
    """The clients' halves: start, local training, finish; their uploads go into the average as they arrive."""
    sites = [federation.site(index) for index in chunk]
    works = []
    for site in sites:
        broadcast = received[site.index]
        work, memories[site.index] = prepare(site, number, broadcast, memories.get(site.index, {}))
        works.append(work)
    clock.lap("prepare")
    training = sites[0].training(number)
    for site, work, trained in zip(
        sites, works, train(federation.network, training, federation.feed, works), strict=True
    ):
        clock.lap("train")
        broadcast = received[site.index]
        data, memories[site.index] = upload(site, number, broadcast, memories[site.index], work, trained)
        traffic.add_upload(data, federation.algorithm)
        average.add(collect(federation.algorithm, data, broadcast))
        clock.lap("upload")

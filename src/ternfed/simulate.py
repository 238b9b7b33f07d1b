"""The in-process engine: a whole federation on one machine, every message really encoded and decoded.

`open_federation` makes everything an experiment needs, `play` runs its rounds, `record` does so into a run folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice

from torch import Tensor, nn

from ternfed import draws
from ternfed.algorithms.algorithm import Algorithm, Client, Helpers, Memory, Network, Server, Uploads, dense_weights
from ternfed.average import Average
from ternfed.data.values import DataSet
from ternfed.evaluation import Examiner
from ternfed.experiment import Experiment, ExperimentError
from ternfed.rounds import Broadcast, collect, receive, reply, send, trit_bytes
from ternfed.runs import Round, RunFolder, Saved
from ternfed.state import State, pack, unpack
from ternfed.training import Feed, Trained, Work, train
from ternfed.wire import Message

CHUNK = 256
"""So many clients are trained, and their models held, at a time."""

CHECKPOINT_SECONDS = 10.0
"""A run that is killed loses at most so much work, and a round."""


@dataclass(frozen=True)
class Federation:
    """An experiment made ready to run: the network, the algorithm, and who holds which data."""

    experiment: Experiment
    network: Network
    algorithm: Algorithm
    feed: Feed
    parts: Sequence[Tensor]
    """The samples of each client, as indices into the feed."""
    test: Examiner
    held_out: Examiner | None
    """Data kept on the server, taken from the training set."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Elements of each tensor of the model."""
        return {name: tensor.numel() for name, tensor in self.network.weights().items()}

    @cached_property
    def fp32_bytes(self) -> int:
        """What the whole model costs as raw numbers: float32, and counters in eight bytes."""
        return sum(t.numel() * (4 if t.is_floating_point() else 8) for t in self.network.weights().values())

    def client(self, index: int, round: int) -> Client:
        """A client as the algorithm sees it in a round."""
        draw = partial(draws.generator, self.experiment.seed, round=round, client=index)
        return Client(index, len(self.parts), draw)


def open_federation(
    experiment: Experiment, data: DataSet, device: str = "cpu", model: nn.Module | None = None
) -> Federation:
    """Model, partition and examiners of an experiment, all drawn from its seed; or with a model of the caller's own."""
    experiment.check_with(data)
    network = experiment.make_network(data) if model is None else Network.of(model)
    algorithm = experiment.make_algorithm(network)
    held, parts = experiment.make_partition(data.train.labels)
    held_out = Examiner.of(network, data, data.train.take(held), device) if len(held) else None
    if algorithm.needs_held_out and held_out is None:
        raise ExperimentError(f"data.hold_out = 0: {algorithm.name} judges models on data held out on the server")
    test = Examiner.of(network, data, data.test, device)
    return Federation(experiment, network, algorithm, Feed.of(data, device), parts, test, held_out)


def play(federation: Federation, state: State | None = None) -> Iterator[tuple[State, Round]]:
    """The rounds that are left, one after another."""
    state = state or State(0, federation.algorithm.open(federation.network.weights()))
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
    number, clock, traffic = state.round + 1, _Clock(), _Traffic()
    experiment = federation.experiment
    chosen = draws.participants(experiment.seed, number, len(federation.parts), experiment.federation.participation)

    received = _download(federation.algorithm, state, number, chosen, traffic)
    clock.lap("broadcast")
    memories = dict(state.memories)
    average = Average()
    waiting = iter(chosen)
    while chunk := list(islice(waiting, CHUNK)):
        _train_and_upload(federation, number, chunk, received, memories, average, traffic, clock)
    uploads = average.uploads()
    server = federation.algorithm.update(state.server, uploads, _helpers(federation))
    clock.lap("aggregate")
    accuracy, loss = federation.test.evaluate(server.weights)
    validation = None if federation.held_out is None else federation.held_out.accuracy(server.weights)
    clock.lap("evaluate")

    broadcast = received[chosen[0]]
    judged = -1.0 if validation is None else validation
    best = (judged, number) if judged >= state.best else (state.best, state.best_round)
    kept = {index: memory for index, memory in memories.items() if memory}
    after = State(number, server, kept, tuple(chosen), broadcast, *best)
    outcome = _outcome(federation, after, uploads, traffic, accuracy, loss, validation)
    return after, replace(outcome, seconds=clock.seconds)


def _download(
    algorithm: Algorithm, state: State, number: int, chosen: Sequence[int], traffic: _Traffic
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
        traffic.down += len(data)
    return received


def _train_and_upload(
    federation: Federation,
    number: int,
    chunk: Sequence[int],
    received: Mapping[int, Broadcast],
    memories: dict[int, Memory],
    average: Average,
    traffic: _Traffic,
    clock: _Clock,
) -> None:
    """The clients' halves: start, local training, finish; their uploads go into the average as they arrive."""
    algorithm, experiment, feed = federation.algorithm, federation.experiment, federation.feed
    training = replace(algorithm.training, rate=experiment.rate_at(number))
    clients = [federation.client(index, number) for index in chunk]
    works = []
    for client in clients:
        message = received[client.index].message
        local, memories[client.index] = algorithm.start(message, memories.get(client.index, {}), client)
        own = federation.parts[client.index]
        seed, index = experiment.seed, client.index
        works.append(Work.draw(local, own, training, feed.augment, seed=seed, round=number, client=index))
    clock.lap("prepare")
    for client, work, trained in zip(clients, works, train(federation.network, training, feed, works), strict=True):
        clock.lap("train")
        broadcast = received[client.index]
        message, memory = algorithm.finish(trained.local, broadcast.message, memories[client.index], client)
        memories[client.index] = memory
        data = reply(algorithm, message, _numbers(federation, broadcast.message, number, work, trained), broadcast)
        traffic.add_upload(data, algorithm)
        average.add(collect(algorithm, data, broadcast))
        clock.lap("upload")


def _numbers(federation: Federation, received: Message, number: int, work: Work, trained: Trained) -> dict[str, float]:
    """The numbers that go with an upload."""
    numbers = {"round": float(number), "samples": float(work.order.shape[1]), "loss": trained.loss}
    if any("accuracy" in schema.numbers for schema in federation.algorithm.up):
        model = {**federation.network.weights(), **dense_weights(received)}
        numbers["accuracy"] = Examiner(federation.network, federation.feed.plain(work.order[0])).accuracy(model)
    return numbers


def _helpers(federation: Federation) -> Helpers:
    examiner = federation.held_out
    if examiner is None:  # and so the algorithm asks for neither, or open_federation had refused
        return Helpers(judge=lambda weights: 0.0, statistics=lambda weights: weights)
    return Helpers(judge=examiner.accuracy, statistics=examiner.statistics)


def _outcome(
    federation: Federation,
    after: State,
    uploads: Uploads,
    traffic: _Traffic,
    accuracy: float,
    loss: float,
    validation: float | None,
) -> Round:
    """The record of a round, without its seconds."""
    algorithm = federation.algorithm
    before = None if after.broadcast is None else after.broadcast.codes
    codes = algorithm.reference(algorithm.broadcast(after.server, False))
    travels = 0 if algorithm.central else 1
    return Round(
        round=after.round,
        accuracy=accuracy,
        loss=loss,
        train_loss=uploads.numbers.get("loss"),
        validation=validation,
        bytes_up=traffic.up * travels,
        bytes_down=traffic.down * travels,
        bytes_up_fp32=federation.fp32_bytes * len(after.holders) * travels,
        bytes_down_fp32=federation.fp32_bytes * len(after.holders) * travels,
        bits_per_weight_up=traffic.bits_per_weight(federation) if travels else None,
        clients=len(after.holders),
        skipped=uploads.skipped,
        strategy=_strategy(after.server),
        changed=_changed(before, codes),
        zeros=_zeros(codes),
    )


def _strategy(server: Server) -> str | None:
    return str(server.facts["strategy"]) if "strategy" in server.facts else None


def _changed(before: Mapping[str, Tensor] | None, after: Mapping[str, Tensor] | None) -> float | None:
    """The share of trits that differ between two broadcasts."""
    if before is None or after is None:
        return None
    different = sum(int((before[name] != after[name]).sum()) for name in after)
    return different / sum(codes.numel() for codes in after.values())


def _zeros(codes: Mapping[str, Tensor] | None) -> float | None:
    if codes is None:
        return None
    return sum(int((part == 0).sum()) for part in codes.values()) / sum(part.numel() for part in codes.values())


@dataclass
class _Traffic:
    """Bytes of a round: lengths of what was encoded."""

    down: int = 0
    up: int = 0
    trits: int = 0
    """The part of `up` that is trits."""
    uploads: int = 0

    def add_upload(self, data: bytes, algorithm: Algorithm) -> None:
        self.up += len(data)
        self.trits += trit_bytes(algorithm, data)
        self.uploads += 1

    def bits_per_weight(self, federation: Federation) -> float:
        """Bits of the trit section a ternary weight; of the whole message a parameter where nothing is ternary."""
        names = federation.network.ternary if self.trits else federation.network.parameters
        weights = sum(federation.sizes[name] for name in names)
        return 8 * (self.trits or self.up) / (weights * self.uploads)


@dataclass
class _Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.last
        self.last = now

"""An experiment made ready to run, and the two halves of a round that every engine shares.

The client's half is `prepare`, training, `upload`; the server's is `conclude`. Who calls them and who carries the bytes
between them, is the engine's business: `simulate.py` on one machine, `flower/` over a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ternfed import draws
from ternfed.aggregation.aggregation import Uploads
from ternfed.algorithms.algorithm import Algorithm, Client, FinishTogether, Helpers, Network, Training
from ternfed.algorithms.network import dense_weights
from ternfed.data.partitions import histogram
from ternfed.data.values import DataSet, Outline
from ternfed.experiment.accountant import need_accounting
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.quantize.ternary import NonFiniteError
from ternfed.round.checks import check_batches, check_device, check_fit, check_task
from ternfed.round.exchange import Broadcast, Broadcasts, numbered, reply_each
from ternfed.round.heap import give_memory_back
from ternfed.round.state import State, keep
from ternfed.round.traffic import Clock, Traffic
from ternfed.runs.folder import Round
from ternfed.task import Task
from ternfed.training.choose import Trainer, train_recovering, trainer_for
from ternfed.training.evaluation import Evaluator
from ternfed.training.work import Trained, TrainingData, Work
from ternfed.wire import Message

LARGE_MODEL = 1 << 23
"""Weights from which on freed memory goes back to the system at once: pages cost less than models that nobody uses."""


@dataclass(frozen=True, eq=False)
class Site:
    """One client's place of work: the network, the algorithm, and the samples that are its own."""

    experiment: Experiment
    network: Network
    algorithm: Algorithm
    feed: TrainingData
    own: Tensor
    """Its samples, as indices into the feed."""
    index: int
    count: int
    """Of how many clients in all."""

    def client(self, round: int) -> Client:
        """The client as the algorithm sees it in a round."""
        draw = partial(draws.generator, self.experiment.seed, round=round, client=self.index)
        return Client(self.index, self.count, draw)

    def training(self, round: int) -> Training:
        """How it trains in a round."""
        rate = self.experiment.rate_at(round)
        return replace(self.algorithm.training, rate=rate, decay=rate / self.experiment.rate_at(1))

    @cached_property
    def trainer(self) -> Trainer:
        """Trains this client alone, in every round."""
        return trainer_for(self.network, self.algorithm.training, self.feed)


@dataclass(frozen=True, eq=False)
class Federation:
    """An experiment made ready to run: the network, the algorithm, and who holds which data."""

    experiment: Experiment
    network: Network
    algorithm: Algorithm
    feed: TrainingData
    parts: Sequence[Tensor]
    """The samples of each client, as indices into the feed."""
    test: Evaluator
    held_out: Evaluator | None
    """Data kept on the server, taken from the training set."""
    data_name: str
    """What the data set calls itself."""
    outline: Outline
    """What clients with data of their own must know of it."""

    @cached_property
    def parameter_count(self) -> int:
        """Numbers that are trained."""
        return sum(slot.size for slot in self.network.schema().slots if slot.name in self.network.parameters)

    @cached_property
    def told(self) -> Experiment:
        """The experiment as clients are told it: with what the algorithm chose by data that each of them has not."""
        return self.experiment.suited(self.network, _samples_each(self.parts))

    @cached_property
    def registered(self) -> tuple[int, ...]:
        """How many samples each client has, by the partition."""
        return tuple(len(part) for part in self.parts)

    @cached_property
    def fp32_bytes(self) -> int:
        """What a message with all that is trained costs as raw numbers: float32, and whole numbers in eight bytes."""
        floats = set(self.network.floats)
        return sum(slot.size * (4 if slot.name in floats else 8) for slot in self.network.schema().slots)

    @cached_property
    def trainer(self) -> Trainer:
        """Trains all clients, in every round; what it holds on a GPU goes with the federation."""
        return trainer_for(self.network, self.algorithm.training, self.feed)

    def site(self, index: int) -> Site:
        """A client's place of work."""
        return Site(self.experiment, self.network, self.algorithm, self.feed, self.parts[index], index, len(self.parts))

    def chosen(self, round: int) -> list[int]:
        """The clients of a round."""
        return draws.participants(
            self.experiment.seed, round, len(self.parts), self.experiment.federation.participation
        )

    def class_counts(self) -> list[list[int]]:
        """How many samples of each class each client holds; where there are no classes, how many samples."""
        labels = self.network.task.strata_or_one(self.feed.samples.labels.cpu())
        counts: list[list[int]] = histogram(labels, self.parts, int(labels.max()) + 1).tolist()
        return counts

    def open(self) -> State:
        """Before the first round."""
        return State(0, self.algorithm.open(self.network.weights()))


def open_federation(
    experiment: Experiment,
    data: DataSet,
    device: str = "cpu",
    model: nn.Module | None = None,
    task: Task | None = None,
) -> Federation:
    """Model, partition and evaluators of an experiment, drawn from its seed; or with a caller's own model and task."""
    check_device(device)
    experiment = experiment.counted(data)
    network = experiment.make_network(data) if model is None else experiment.network_of(model, data)
    network = network if task is None else replace(network, task=task)
    if sum(parameter.numel() for parameter in network.model.parameters()) >= LARGE_MODEL:
        give_memory_back()
    check_task(network.task, data)
    experiment.check_with(data, network.task)
    check_fit(network, data)
    if experiment.privacy.clip is not None:
        need_accounting()  # before anybody trains
    held, parts = experiment.make_partition(data.train.labels, network.task, data.clients)
    algorithm = experiment.suited(network, _samples_each(parts)).make_algorithm(network)
    if algorithm.central:
        parts = [torch.cat(parts)]
    check_batches(network, data, parts, experiment.training.batch)
    held_out = Evaluator.of(network, data, data.train.take(held), device) if len(held) else None
    if algorithm.needs_held_out and held_out is None:
        raise ExperimentError(f"data.hold_out = 0: {algorithm.name} judges models on data held out on the server")
    test = Evaluator.of(network, data, data.test, device)
    feed = TrainingData.of(data, device)
    return Federation(experiment, network, algorithm, feed, parts, test, held_out, data.name, data.outline)


def _samples_each(parts: Sequence[Tensor]) -> int:
    return sum(map(len, parts)) // max(len(parts), 1)


def let_go(network: Network, algorithm: Algorithm) -> None:
    """Free the values of the model's own tensors that every broadcast brings; names, shapes and dtypes stay.

    For who has opened the state, or waits for the first broadcast: nobody reads them any more.
    """
    brought = set.intersection(*({slot.name for slot in schema.slots} for schema in algorithm.down))
    for name, tensor in (*network.model.named_parameters(), *network.model.named_buffers()):
        if name in brought and name not in network.frozen:
            tensor.data = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def prepare(site: Site, round: int, broadcast: Broadcast, memory: Any) -> tuple[Work, Any]:
    """Client: what it will train, from what it received and what it remembers."""
    local, memory = site.algorithm.start(broadcast.message, memory, site.client(round))
    seed, augment = site.experiment.seed, site.feed.augment
    work = Work.draw(local, site.own, site.training(round), augment, seed=seed, round=round, client=site.index)
    return work, memory


def upload(
    site: Site, round: int, broadcast: Broadcast, memory: Any, order: Tensor, trained: Trained
) -> tuple[bytes, Any]:
    """Client: the bytes it sends, and what it will remember; `order` is that of its work."""
    message, memory = finish(site, round, broadcast, memory, order, trained)
    return reply_each(site.algorithm, [message], broadcast)[0], memory


def finish(
    site: Site, round: int, broadcast: Broadcast, memory: Any, order: Tensor, trained: Trained
) -> tuple[Message, Any]:
    """Client: what it sends, before it is bytes, and what it will remember."""
    message, memory = site.algorithm.finish(trained.local, broadcast.message, memory, site.client(round))
    return numbered(site.algorithm, message, _numbers(site, broadcast, round, order, trained)), memory


def finish_each(
    sites: Sequence[Site],
    round: int,
    broadcast: Broadcast,
    memories: Sequence[Any],
    orders: Sequence[Tensor],
    trained: Sequence[Trained],
) -> list[tuple[Message, Any] | NonFiniteError]:
    """Clients that share a machine: `finish` of each, or why it has nothing to send."""
    together = sites[0].algorithm.finish
    if isinstance(together, FinishTogether) and len(sites) > 1:
        locals_, clients = [own.local for own in trained], [site.client(round) for site in sites]
        try:
            ended = together.each(locals_, broadcast.message, memories, clients)
        except NonFiniteError:
            pass  # one by one, to see whose it is
        else:
            return [
                (numbered(site.algorithm, message, _numbers(site, broadcast, round, order, own)), memory)
                for site, order, own, (message, memory) in zip(sites, orders, trained, ended, strict=True)
            ]
    out: list[tuple[Message, Any] | NonFiniteError] = []
    for site, memory, order, own in zip(sites, memories, orders, trained, strict=True):
        try:
            out.append(finish(site, round, broadcast, memory, order, own))
        except NonFiniteError as error:
            out.append(error)
    return out


def answer(site: Site, round: int, broadcast: Broadcast, memory: Any) -> tuple[bytes, Any]:
    """Client: its whole half of a round."""
    before = memory

    def again(_: int) -> Work:
        return prepare(site, round, broadcast, before)[0]

    work, memory = prepare(site, round, broadcast, before)
    order, works = work.order, [work]
    del work  # where it starts from: the message says that too
    (trained,) = train_recovering(site.trainer, works, site.algorithm.retries, again)
    broadcast.message.forget_weights()
    message, memory = finish(site, round, broadcast, memory, order, trained)
    del trained  # the message says how far it came
    return reply_each(site.algorithm, [message], broadcast)[0], memory


def conclude(
    federation: Federation, state: State, uploads: Uploads, traffic: Traffic, clock: Clock, after: RoundOutcome
) -> tuple[State, Round]:
    """Server: the next state and the round's record, from what arrived."""
    number = state.round + 1
    # What it makes of a large layer's mean may take the mean's place: nobody asks for that again.
    server = federation.algorithm.update(state.server, replace(uploads, spent=True), helpers_of(federation, number))
    server = replace(server, weights=federation.network.with_counters(server.weights))
    clock.lap("aggregate")
    measure = federation.network.task.metric.measure
    score, loss = federation.test.evaluate(server.weights)
    validation = None if federation.held_out is None else federation.held_out.score(server.weights)
    clock.lap("evaluate")
    is_best = validation is None or state.best is None or measure.goodness(validation) > measure.goodness(state.best)
    best = (validation, number) if is_best else (state.best, state.best_round)
    broadcast, packed = after.broadcasts.any(), after.broadcasts.packed()
    holders, broadcasts = keep(state, after.holders, packed, federation.fp32_bytes)
    reached = State(number, server, after.memories, holders, broadcasts, *best)
    algorithm = federation.algorithm
    # What a broadcast without trits lends would be one more model.
    codes = _trits(algorithm.reference(algorithm.broadcast(server)), algorithm) if sends_trits(algorithm) else None
    travels = 0 if algorithm.central else 1
    outcome = Round(
        round=number,
        score=score,
        metric=measure.name,
        higher_is_better=measure.higher_is_better,
        percent=measure.percent,
        loss=loss,
        train_loss=uploads.numbers.get("loss"),
        validation=validation,
        bytes_up=traffic.up * travels,
        bytes_down=traffic.down * travels,
        bytes_up_fp32=federation.fp32_bytes * traffic.uploads * travels,
        bytes_down_fp32=federation.fp32_bytes * traffic.downloads * travels,
        bits_per_weight_up=traffic.bits_per_weight(federation.parameter_count) if travels else None,
        clients=len(after.holders) + len(after.missing),
        skipped=uploads.skipped,
        dropped=after.dropped,
        capped=tuple(uploads.notes.values()),
        strategy=server.strategy,
        changed=_changed(_trits(broadcast.lent, algorithm), codes),
        zeros=_zeros(codes),
        layer_bits=traffic.layer_bits(),
        seconds=clock.seconds,
    )
    return reached, outcome


@dataclass(frozen=True, eq=False)
class RoundOutcome:
    """What a round leaves behind beside the average."""

    broadcasts: Broadcasts
    holders: tuple[int, ...]
    """Who holds its broadcast now."""
    memories: Mapping[int, Any] = field(default_factory=dict)
    """What each client remembers, where clients are no machines of their own."""
    missing: tuple[int, ...] = ()
    """Who was asked and did not answer."""
    dropped: tuple[str, ...] = ()
    """One reason for each upload that did not count."""


def _numbers(site: Site, broadcast: Broadcast, round: int, order: Tensor, trained: Trained) -> dict[str, float]:
    """The numbers that go with an upload."""
    numbers = {"round": float(round), "samples": float(order.shape[1]), "loss": trained.loss}
    metric = site.network.task.metric.measure.name
    if any(metric in schema.numbers for schema in site.algorithm.up):
        model = dense_weights(broadcast.message)
        numbers[metric] = Evaluator(site.network, site.feed.plain(order[0])).score(model)
    return numbers


def helpers_of(federation: Federation, number: int) -> Helpers:
    """What an algorithm's server half may ask in a round."""
    experiment, evaluator = federation.experiment, federation.held_out

    def decays_to(share: float) -> bool:
        first, this, following = (experiment.rate_at(round) for round in (1, number, number + 1))
        return following <= share * first < this

    def reaches_share(share: float) -> bool:
        return number - 1 < share * experiment.federation.rounds <= number

    if evaluator is None:  # and so the algorithm asks for neither, or open_federation had refused
        judge, statistics = (lambda weights: 0.0), (lambda weights: weights)
    else:
        judge, statistics = evaluator.goodness, evaluator.statistics
    return Helpers(judge, statistics, decays_to, reaches_share)


def sends_trits(algorithm: Algorithm) -> bool:
    """Whether a broadcast may hold trits."""
    return any(schema.trits for schema in algorithm.down)


def _trits(lent: Mapping[str, Tensor] | None, algorithm: Algorithm) -> Mapping[str, Tensor] | None:
    """Those of the tensors that a broadcast gives both sides which are trits of its model; None where none are."""
    own = {slot.name for schema in algorithm.down for slot in schema.slots}
    return {name: codes for name, codes in (lent or {}).items() if name in own and codes.dtype == torch.int8} or None


def _changed(before: Mapping[str, Tensor] | None, after: Mapping[str, Tensor] | None) -> float | None:
    """The share of trits that differ between two broadcasts."""
    if before is None or after is None:
        return None
    # PyTorch sums truth values as numbers of eight bytes; it counts them as they are.
    different = sum(int(torch.count_nonzero(before[name] != after[name])) for name in after)
    return different / sum(codes.numel() for codes in after.values())


def _zeros(codes: Mapping[str, Tensor] | None) -> float | None:
    if codes is None:
        return None
    total = sum(part.numel() for part in codes.values())
    return sum(part.numel() - int(torch.count_nonzero(part)) for part in codes.values()) / total

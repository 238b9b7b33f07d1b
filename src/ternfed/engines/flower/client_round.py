"""The client's half of a round over a network: bytes in, bytes out, what must last on the disk in between."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ternfed.algorithms.memory import memory_of, tensors_of
from ternfed.data.sets import Source
from ternfed.data.values import DataSet, Outline
from ternfed.engines.flower.envelope import WrongRound
from ternfed.engines.flower.memory import Kept, Store
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.experiment.settings import shown
from ternfed.named_function import code_in
from ternfed.round.checks import check_fit, check_task
from ternfed.round.exchange import receive
from ternfed.round.federation import Site, answer, let_go
from ternfed.training.work import TrainingData
from ternfed.wire import MissingReference, Reference

HELD = "/held-"
END = "end"
HELLO = "hello"
"""The group of a message that asks who a client is, where the server does not know by its key."""


class RoundRequest(NamedTuple):
    """What the server asks for, as the group of a Flower message says it."""

    round: int
    held: int | None = None
    """The older broadcast that the message was coded given, by its round; None: none."""

    @property
    def group(self) -> str:
        return str(self.round) if self.held is None else f"{self.round}{HELD}{self.held}"

    @staticmethod
    def of(group: str) -> RoundRequest:
        numbers = group.split(HELD)
        if len(numbers) > 2 or not all(n.isascii() and n.isdigit() and len(n) < 10 for n in numbers):
            raise WrongRound(f"{group!r} names no round")
        round, held = int(numbers[0]), int(numbers[1]) if len(numbers) == 2 else None
        if held is not None and held >= round:
            raise WrongRound(f"{group!r}: what a message is coded given must be older than the message")
        return RoundRequest(round, held)


@dataclass(frozen=True, eq=False)
class ClientSetup:
    """What a client machine brings along."""

    index: int
    count: int
    data: DataSet | Source | None = None
    """Samples of its own, all of them; None: its part of the experiment's data set."""
    allowed: tuple[str, ...] = ()
    """Modules and files that an experiment may name. The server must not choose what code runs or is read here."""
    device: str = "cpu"
    loaded: Mapping[str, DataSet] = field(default_factory=dict)
    """Data sets by name that need not be loaded again: clients of a local try have them from their parent."""

    @property
    def unread(self) -> tuple[str, ...]:
        """Settings of an experiment that this client does not follow: with data of its own, where the server's lie."""
        return () if self.data is None else ("data.dataset",)


def read_experiment(text: str, allowed: Collection[str] = (), unread: Collection[str] = ()) -> Experiment:
    """The experiment that a server sent. `module:function` names are code: only modules that this client named run.

    The files that it names are looked at before, in `told.read_terms`, which tells what the arguments mean.
    """
    table = tomllib.loads(text)
    for key, name, module in code_in(table):
        if module not in allowed and key not in unread:
            raise ExperimentError(
                f"{key} = {shown(name)}: the server names code that this client was not told to run; "
                f"start it with --allow {module} where you trust that module"
            )
    return Experiment.from_table(table)


def find_data(experiment: Experiment, setup: ClientSetup, outline: Outline | None = None) -> DataSet:
    """A client's own data, or the experiment's data set: one that is loaded already, else from where it lies.

    `outline` is that of the server's data: letters mean the same on both sides, and so do classes.
    """
    letters = None if outline is None else outline.characters
    if setup.data is None:
        ready = setup.loaded.get(experiment.data.dataset)
        return experiment.load_data(characters=letters) if ready is None else ready
    own = setup.data if isinstance(setup.data, DataSet) else experiment.load_data(source=setup.data, characters=letters)
    if outline is None:
        return own
    if own.characters not in (None, letters):
        raise ExperimentError(
            f"{own.name}: is text of characters, and the server does not say which token id stands for which of them; "
            "its own data must be text of characters too, or both sides need the same data.tokenizer"
        )
    return own.within(outline)


def open_site(experiment: Experiment, setup: ClientSetup, data: DataSet, frozen: str = "") -> Site:
    """A client's place of work in an experiment, on the data that `find_data` found.

    `frozen` is the server's digest of the weights that do not travel: this client must have the same.
    """
    network = experiment.make_network(data)
    if frozen and network.digest != frozen:
        raise ExperimentError(
            f"model.trainable: the frozen weights of this client ({str(network.digest)[:8]}) are not those of the "
            f"server ({frozen[:8]}); both need the same file (model.weights), or the same version of the model"
        )
    algorithm = experiment.make_algorithm(network)
    if setup.data is not None:
        check_task(network.task, data)
        check_fit(network, data)
        samples = torch.arange(len(data.train))
    else:
        if setup.count != experiment.federation.clients:
            raise ExperimentError(
                f"--data-partition {setup.index}/{setup.count}: the experiment divides its data among "
                f"{experiment.federation.clients} clients"
            )
        samples = experiment.make_partition(data.train.labels, network.task, data.clients)[1][setup.index]
    let_go(network, algorithm)
    return Site(experiment, network, algorithm, TrainingData.of(data, setup.device), samples, setup.index, setup.count)


def work(site: Site, store: Store, run: str, request: RoundRequest, data: bytes) -> bytes:
    """The upload to a broadcast; MissingReference where it needs a broadcast that this client does not hold."""
    kept = store.load(run, request.round)
    given = held = None
    if request.held is not None:
        # One older than the last where the server knows nothing of the last: the upload came too late.
        held = kept if kept is not None and kept.round == request.held else store.after(run, request.held)
        if held is None:
            have = "nothing" if kept is None else f"that of round {kept.round}"
            raise MissingReference(f"coded given the broadcast of round {request.held}; {have} is held")
        given = None if held.lent is None else Reference(held.lent, keep=False)
    broadcast = receive(site.algorithm, data, given)
    del given
    if broadcast.message.numbers["round"] != request.round:
        raise WrongRound(f"a broadcast of round {broadcast.message.numbers['round']:g} came in round {request.round}")
    memory = memory_of(site.algorithm.client_memory, {} if kept is None else kept.memory)
    start = 0 if kept is None else kept.round
    del kept, held  # the memory has what is needed of them, and what they lent is as large as a model
    upload, memory = answer(site, request.round, broadcast, memory)
    lent = None if broadcast.lent is None else dict(broadcast.lent)
    store.save(run, Kept(request.round, tensors_of(memory), lent), start=start)
    return upload

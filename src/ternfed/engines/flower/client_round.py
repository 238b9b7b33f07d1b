"""The client's half of a round over a network: bytes in, bytes out, what must last on the disk in between."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.engines.flower.memory import Kept, Store
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.experiment.settings import shown
from ternfed.round.exchange import receive, reference_from
from ternfed.round.federation import Site, answer
from ternfed.training.work import TrainingData
from ternfed.wire import MissingReference, WireError

HELD = "/held"
END = "end"


class WrongRound(WireError):
    """A message of another round than the one it came in."""


class Task(NamedTuple):
    """What the server asks for, as the group of a Flower message says it."""

    round: int
    held: bool
    """The server takes it that this client holds the broadcast of the round before."""

    @property
    def group(self) -> str:
        return f"{self.round}{HELD if self.held else ''}"

    @staticmethod
    def of(group: str) -> Task:
        number, held = group.removesuffix(HELD), group.endswith(HELD)
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise WrongRound(f"{group!r} names no round")
        return Task(int(number), held)


@dataclass(frozen=True)
class ClientSetup:
    """What a client machine brings along."""

    index: int
    count: int
    data: DataSet | None = None
    """Samples of its own, all of them; None: its part of the experiment's data set."""
    modules: tuple[str, ...] = ()
    """Modules of its own that an experiment may name. The server must not choose what code runs here."""
    device: str = "cpu"
    folder: Path | None = None
    """Where data sets lie; else TERNFED_DATA says so."""


def read_experiment(text: str, modules: tuple[str, ...] = ()) -> Experiment:
    """The experiment that a server sent. `module:function` names are code: only modules that this client named run."""
    table = tomllib.loads(text)
    for section, key in (("data", "dataset"), ("model", "name"), ("algorithm", "name")):
        name = str(table.get(section, {}).get(key, ""))
        if ":" in name and name.partition(":")[0] not in modules:
            raise ExperimentError(
                f"{section}.{key} = {shown(name)}: the server names code that this client was not told to run; "
                f"start it with --allow {name.partition(':')[0]} where you trust that module"
            )
    return Experiment.from_table(table)


@lru_cache(maxsize=1)
def known_data(name: str, folder: Path | None = None) -> DataSet:
    """A data set by name, loaded once a process; what a local try loads, its clients have by being forked from it."""
    return load(name, folder)


def open_site(experiment: Experiment, own: ClientSetup) -> Site:
    """A client's place of work in an experiment."""
    data = own.data if own.data is not None else known_data(experiment.data.dataset, own.folder)
    network = experiment.make_network(data)
    algorithm = experiment.make_algorithm(network)
    if own.data is not None:
        mine = torch.arange(len(data.train))
    else:
        if own.count != experiment.federation.clients:
            raise ExperimentError(
                f"--data-partition {own.index}/{own.count}: the experiment divides its data among "
                f"{experiment.federation.clients} clients"
            )
        mine = experiment.make_partition(data.train.labels, network.task)[1][own.index]
    return Site(experiment, network, algorithm, TrainingData.of(data, own.device), mine, own.index, own.count)


def work(site: Site, store: Store, run: str, task: Task, data: bytes) -> bytes:
    """The upload to a broadcast; MissingReference where it needs a broadcast that this client does not hold."""
    kept = store.load(run, task.round)
    if task.held and (kept is None or kept.round != task.round - 1):
        have = "nothing" if kept is None else f"round {kept.round}"
        raise MissingReference(f"coded given the broadcast of round {task.round - 1}; {have} is held")
    codes = kept.codes if task.held and kept is not None else None
    last = None if codes is None else reference_from(site.algorithm, codes)
    broadcast = receive(site.algorithm, data, last)
    if broadcast.message.numbers["round"] != task.round:
        raise WrongRound(f"a broadcast of round {broadcast.message.numbers['round']:g} came in round {task.round}")
    upload, memory = answer(site, task.round, broadcast, {} if kept is None else kept.memory)
    codes = None if broadcast.codes is None else dict(broadcast.codes)
    store.save(run, Kept(task.round, memory, codes), start=0 if kept is None else kept.round)
    return upload

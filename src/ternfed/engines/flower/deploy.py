"""A server's whole run: the run folder, the network, the clients of a local try, the rounds, the summary."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ternfed.engines.flower import adapter, processes
from ternfed.engines.flower.certs import make_certificates
from ternfed.engines.flower.connected import ListenAddress, SharedSuperLink, attach, open_connections
from ternfed.engines.flower.local import local_clients
from ternfed.engines.flower.server import Terms, known_run, new_run, record, wait_for_clients
from ternfed.experiment.experiment import Experiment
from ternfed.experiment.settings import need
from ternfed.round.federation import open_federation
from ternfed.round.heap import give_memory_back
from ternfed.runs.folder import Round, RunFolder, leaving_nothing, summarise
from ternfed.runs.live import LiveFile, Tell, both, tell_nobody


@dataclass(frozen=True)
class Plan:
    """What a server is to do."""

    experiment: Experiment
    out: Path
    listen: ListenAddress | SharedSuperLink | None
    """None: a try on this machine alone, with temporary certificates and clients of its own."""
    terms: Terms = field(default_factory=Terms)
    wait_for: int | None = None
    """Clients that must be there before the first round; None: all."""
    resume: bool = False
    overwrite: bool = False
    data: Path | None = None
    """Where data sets lie; else TERNFED_DATA says so."""


def serve(
    plan: Plan, say: Callable[[str], None], tell: Tell = tell_nobody, opened: Callable[[], None] = lambda: None
) -> Iterator[Round]:
    """The rounds that are left, as they are done; the run folder holds them, the model, and `network/`.

    `tell` hears what clients are doing. `opened` is called when the server listens: from then on this process may have
    other threads.
    """
    adapter.need_flower()
    give_memory_back()
    clients = plan.experiment.federation.clients
    need(clients > 0, "federation.clients", clients, "a deployment needs to know how many there are: --clients N")
    with ExitStack() as stack:
        started = stack.enter_context(leaving_nothing(plan.out))
        adapter.set_up(plan.out / "network" / "flower")
        if plan.resume:
            folder, _, past, saved = RunFolder.resume(plan.out, plan.experiment)
        else:
            folder = RunFolder.create(plan.out, plan.experiment, overwrite=plan.overwrite)
            past, saved = [], None
            shutil.rmtree(plan.out / "network", ignore_errors=True)
        stack.enter_context(folder)
        run = known_run(plan.out) if plan.resume else new_run(plan.out)
        network = plan.out / "network"
        listen = plan.listen
        if listen is None:
            torch.set_num_threads(1)  # before its clients are forked from this process
        data = plan.experiment.load_data(plan.data)
        if listen is None:
            shutil.rmtree(network / "certs", ignore_errors=True)
            certificates = make_certificates(network / "certs", [], clients)
            listen = ListenAddress(certificates, "127.0.0.1", processes.free_port())
            stack.enter_context(local_clients(plan.experiment, listen, network / "clients", data))
        federation = open_federation(plan.experiment, data)
        if isinstance(listen, SharedSuperLink):
            connections = stack.enter_context(attach(federation, listen, network, run, say))
        else:
            connections = stack.enter_context(open_connections(federation, listen, network, run))
        connections.tell = both(LiveFile(plan.out).tell, tell)
        say = _both(say, connections.link.log)
        opened()
        started()
        say(connections.place)
        if len(past) < plan.experiment.federation.rounds:
            wanted = clients if plan.wait_for is None else plan.wait_for
            wait_for_clients(connections, wanted, plan.terms, say, len(past) + 1)
        rounds = [*past]
        for outcome in record(federation, connections, folder, saved, plan.terms, say):
            rounds.append(outcome)
            yield outcome
        folder.finish(summarise(rounds, plan.experiment, plan.out.name, federation.class_counts()))


def _both(first: Callable[[str], None], second: Callable[[str], None]) -> Callable[[str], None]:
    def say(text: str) -> None:
        first(text)
        second(text)

    return say

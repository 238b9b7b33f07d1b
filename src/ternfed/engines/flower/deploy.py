"""A server's whole run: the run folder, the network, the clients of a local try, the rounds, the summary."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ternfed.engines.flower import processes
from ternfed.engines.flower.certs import make_certificates
from ternfed.engines.flower.client_round import known_data
from ternfed.engines.flower.local import local_clients
from ternfed.engines.flower.runtime import need_flower
from ternfed.engines.flower.server import (
    ListenAddress,
    Terms,
    known_run,
    new_run,
    open_network,
    record,
    wait_for_clients,
)
from ternfed.experiment.experiment import Experiment
from ternfed.experiment.settings import Table
from ternfed.round.federation import open_federation
from ternfed.runs.folder import Round, RunFolder, summarise


@dataclass(frozen=True)
class Plan:
    """What a server is to do."""

    experiment: Experiment
    out: Path
    door: ListenAddress | None
    """None: a try on this machine alone, with temporary certificates and clients of its own."""
    terms: Terms = field(default_factory=Terms)
    wait_for: int | None = None
    """Clients that must be there before the first round; None: all."""
    resume: bool = False
    overwrite: bool = False
    data: Path | None = None


def serve(plan: Plan, say: Callable[[str], None]) -> Iterator[Round]:
    """The rounds that are left, as they are done; the run folder holds them, the model, and `network/`."""
    processes.set_up_flower(plan.out / "network" / "flower")
    need_flower()
    with ExitStack() as stack:
        if plan.resume:
            folder, _, past, saved = RunFolder.resume(plan.out, plan.experiment)
        else:
            folder = RunFolder.create(plan.out, plan.experiment, overwrite=plan.overwrite)
            past, saved = [], None
            shutil.rmtree(plan.out / "network", ignore_errors=True)
        stack.enter_context(folder)
        run = known_run(plan.out) if plan.resume else new_run(plan.out)
        place = plan.out / "network"
        clients = plan.experiment.federation.clients
        door = plan.door
        if door is None:
            shutil.rmtree(place / "certs", ignore_errors=True)
            door = ListenAddress(make_certificates(place / "certs", [], clients), "127.0.0.1", processes.free_port())
            stack.enter_context(local_clients(plan.experiment, door, place / "clients", plan.data))
        data = known_data(plan.experiment.data.dataset, plan.data)
        federation = open_federation(plan.experiment, data)
        network = stack.enter_context(open_network(plan.experiment, door, place, run))
        say(f"listening on {door.host}:{network.gate.port}")
        if len(past) < plan.experiment.federation.rounds:
            wait_for_clients(network, clients if plan.wait_for is None else plan.wait_for, plan.terms, say)
        rounds = [*past]
        for outcome in record(federation, network, folder, saved, plan.terms, say):
            rounds.append(outcome)
            yield outcome
        folder.finish(summary(rounds, plan))


def summary(rounds: list[Round], plan: Plan) -> Table:
    """What the run comes to."""
    return summarise(rounds, plan.experiment, plan.out.name)

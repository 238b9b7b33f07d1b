"""A whole federation on one machine, for a first try: temporary certificates, clients as processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ternfed.data.values import DataSet
from ternfed.engines.flower import adapter
from ternfed.engines.flower.client import ClientConfig, run_client
from ternfed.engines.flower.client_round import ClientSetup
from ternfed.engines.flower.connected import ListenAddress
from ternfed.engines.flower.processes import write_private
from ternfed.engines.flower.told import named_in
from ternfed.experiment.experiment import Experiment

AT_ONCE = 4
"""So many clients per core start at once; the next one starts when one of them has started. Where fifty SuperNodes
start at once on two cores, the SuperLink has no time to answer, and they give up and start again. How long a start
takes, nobody knows beforehand: 3 s of a core, and other programs run too."""
PATIENCE = 60.0
"""Seconds that those who start together may take, until the next ones no longer wait for them."""


@contextmanager
def local_clients(
    experiment: Experiment, listen: ListenAddress, folder: Path, data: DataSet
) -> Iterator[list[BaseProcess]]:
    """The clients of a server on this machine; ended with it.

    On Linux they are forked from this process, which has loaded PyTorch and the data, so that five start as fast as
    one. A fork has only the thread that called it, so this process must have no other until then: PyTorch must have
    been told to compute with one thread before the data was loaded.
    """
    adapter.load_ahead()
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    count, loaded = experiment.federation.clients, {experiment.data.dataset: data}
    server = f"{listen.host}:{listen.port}"
    # They are the same user's on the same machine: what the server's command line may name, they may.
    allowed = named_in(experiment.to_table())
    setups = [ClientSetup(index, count, allowed=allowed, loaded=loaded) for index in range(count)]
    configs = [ClientConfig(server, listen.certificates, setup, folder / str(setup.index)) for setup in setups]
    places = AT_ONCE * (os.cpu_count() or 1)
    turns = context.Semaphore(places)
    processes = [
        context.Process(target=_client, args=(config, turns, patience_of(config.setup.index, places)), daemon=True)
        for config in configs
    ]
    for process in processes:
        process.start()
    try:
        yield list(processes)
    finally:
        for process in processes:
            process.join(4.0)
            if process.is_alive():
                process.terminate()
        for process in processes:
            process.join(3.0)
            if process.is_alive():
                process.kill()


def patience_of(index: int, places: int) -> float:
    """Seconds that a client waits for its turn to start at most: as long as it and all before it may take."""
    return PATIENCE * (1 + index // places)


@contextmanager
def a_turn(turns: Any, patience: float) -> Iterator[Callable[[], None]]:
    """Wait for a turn to start, at most so many seconds. Whoever has started says so, and another has its turn."""
    held = [turns.acquire(timeout=patience)]

    def started() -> None:
        if held and held.pop():
            turns.release()

    try:
        yield started
    finally:
        started()


def _client(config: ClientConfig, turns: Any, patience: float) -> None:
    config.state.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its clients
    with a_turn(turns, patience) as started:
        write_private(config.state / "client.log")
        with (config.state / "client.log").open("a", encoding="utf-8", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            run_client(config, lambda text: print(text, file=log), started)


def _leave(number: int, frame: object) -> None:
    """Through the `finally` blocks, so that the SuperNode goes too."""
    raise SystemExit(0)

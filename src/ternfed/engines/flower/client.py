"""A client machine: a SuperNode as a child process, and this process, which does the work that it brings.

The SuperNode speaks TLS with the server and signs with the client's key. This process takes each task from it over
loopback, trains, and hands the upload back. It runs ternfed's own code and never the app that Flower delivers.
"""

from __future__ import annotations

import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ternfed.data.values import DataSet
from ternfed.engines.flower import adapter, processes
from ternfed.engines.flower.certs import Certificates
from ternfed.engines.flower.client_round import (
    END,
    HELLO,
    ClientSetup,
    RoundRequest,
    find_data,
    open_site,
    read_experiment,
    work,
)
from ternfed.engines.flower.envelope import content, unwrap
from ternfed.engines.flower.errors import InUse, NetworkError
from ternfed.engines.flower.knock import knock
from ternfed.engines.flower.link import Place
from ternfed.engines.flower.memory import Store
from ternfed.engines.flower.reachable import reason_away, telling
from ternfed.engines.flower.signatures import read_private_key
from ternfed.engines.flower.told import plain, read_terms
from ternfed.round.federation import Site
from ternfed.round.heap import give_memory_back

POLL = 0.2
"""Seconds between two looks for a task."""
AGAIN = 2.0
"""Seconds before a SuperNode that ended is started again."""
ANOTHER = 30.0
"""Seconds that another process with the same key is given to end; the server notices one that is dead in 25."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class ClientConfig:
    """Where a client connects to, and with what."""

    server: str
    """HOST:PORT"""
    certificates: Certificates
    setup: ClientSetup
    state: Path
    """Its folder: what it must not forget, and the SuperNode's log."""
    stay: bool = False
    """Wait for another run when one is over."""
    threads: int = 1
    """That PyTorch computes with; results repeat bit for bit with one."""


class _Work:
    """The run that this client takes part in, made ready once, and the data that it owns."""

    def __init__(self, setup: ClientSetup, state: Path) -> None:
        self.setup = setup
        self.store = Store(state / "runs")
        self.rounds = 0
        self._data: tuple[object, DataSet] | None = None
        self._open: tuple[str, Site] | None = None

    def site_of(self, run_config: dict[str, Any]) -> tuple[str, Site]:
        allowed, unread = self.setup.allowed, self.setup.unread
        terms = read_terms(run_config, allowed, unread)
        if self._open is None or self._open[0] != terms.run:
            experiment = read_experiment(terms.experiment, allowed, unread)
            key = (experiment.data_key, terms.outline)
            if self._data is None or self._data[0] != key:
                self._data = key, find_data(experiment, self.setup, terms.outline)
            self._open = terms.run, open_site(experiment, self.setup, self._data[1], terms.frozen)
        return self._open


def run_client(config: ClientConfig, speak: Say, started: Callable[[], None] = lambda: None) -> int:
    """Serve until the server says that the run is over; how often it took part. Refused where it may not.

    `started` is called whenever a SuperNode of its has started.
    """
    _begin(config.state, config.threads)
    certificates, key = config.certificates, config.certificates.client_key(config.setup.index)
    certificates.need_from_server(certificates.authority, key)
    private_key, context = read_private_key(key), certificates.client_context()
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    adapter.quiet()
    working = _Work(config.setup, config.state)

    def say(text: str) -> None:
        speak(plain(text))

    say(f"connecting to {config.server}")
    while True:
        away = _knock(config.server, context, private_key, say)
        with _supernode(config, key) as node, telling(config.server, say, away):  # a SuperNode keeps trying
            is_over = _serve(working, node.place, node.is_there, say, started=started)
            ended = adapter.how_it_ended(node.report)
        if is_over and not config.stay:
            return working.rounds
        if not is_over:
            if ended.end is adapter.End.FAILED:
                raise NetworkError(f"the SuperNode could not start: {plain(ended.reason)}")
            # A server that was started again turns connections to its predecessor away.
            was = "turned away" if ended.end is adapter.End.TURNED_AWAY else "lost"
            say(f"the connection was {was}; trying again in {AGAIN:g} s")
        time.sleep(AGAIN)


@dataclass(frozen=True)
class AttachedConfig:
    """A SuperNode of somebody else's whose tasks a client takes."""

    supernode: Place
    setup: ClientSetup
    state: Path
    """Its folder: what it must not forget."""
    stay: bool = False
    """Wait for another run when one is over."""
    threads: int = 1
    others: bool = False
    """Whether tasks of other apps are given to Flower's own program; else they are answered by an error."""


def run_attached(config: AttachedConfig, speak: Say) -> int:
    """Serve the tasks of a SuperNode until a ternfed run is over; how often this client took part."""
    _begin(config.state, config.threads)
    config.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    adapter.quiet()
    working, place = _Work(config.setup, config.state), config.supernode

    def say(text: str) -> None:
        speak(plain(text))

    others = config.state / "others.log" if config.others else None
    with telling(place.address, say, reason_away(place.address)):
        while not _serve(working, place, lambda: True, say, others) or config.stay:
            continue
    return working.rounds


def _begin(state: Path, threads: int) -> None:
    """What comes before anything of Flower's."""
    adapter.need_flower()
    adapter.set_up(state / "flower")
    torch.set_num_threads(threads)
    give_memory_back()


def _knock(server: str, context: ssl.SSLContext, key: Any, say: Say) -> str | None:
    """Knock; where another process has this client's key, wait for it: it may be this one, before its power was cut."""
    end = time.monotonic() + ANOTHER
    while True:
        try:
            return knock(server, context, key)
        except InUse as error:
            if time.monotonic() > end:
                raise
            say(f"{error}; waiting for its end")
            time.sleep(ANOTHER / 6)


class _SuperNode(NamedTuple):
    process: subprocess.Popen[bytes]
    place: Place
    """Where it hands out tasks."""
    report: Path

    def is_there(self) -> bool:
        return self.process.poll() is None


@contextmanager
def _supernode(config: ClientConfig, key: Path) -> Iterator[_SuperNode]:
    port = processes.free_port()
    secret_file, log, report = (config.state / name for name in ("secret", "supernode.log", "supernode.json"))
    secret = processes.write_secret(secret_file)
    processes.write_private(log)
    report.unlink(missing_ok=True)
    authority = config.certificates.authority
    command = adapter.supernode_command(config.server, port, authority, key, secret_file, report)
    process = processes.start(command, log)
    try:
        yield _SuperNode(process, Place(f"127.0.0.1:{port}", None, secret), report)
    finally:
        processes.stop(process, patience=2.0)
        secret_file.unlink(missing_ok=True)


def _serve(
    working: _Work,
    place: Place,
    is_there: Callable[[], bool],
    say: Say,
    others: Path | None = None,
    started: Callable[[], None] = lambda: None,
) -> bool:
    """Take tasks while the SuperNode lives; True when the server says that the run is over.

    `others` is the log of Flower's own program where it is to do what is not ours; None: that is answered by an error.
    """
    queue = adapter.open_queue(place.address, place.secret, place.authority)
    adapter.load_ahead()  # while the SuperNode starts

    answers = False
    while is_there():
        try:
            taken = adapter.take(queue, adapter.CLIENT_APP)
        except adapter.CallFailed:  # the SuperNode is still starting, or gone for a while
            taken = None
        else:
            if not answers:
                started()
            answers = True
        if taken is None:
            time.sleep(POLL)
        elif others is not None and taken.app not in ("", adapter.stand_in()[0]):
            adapter.hand_on(taken, adapter.CLIENT_APP, place.address, place.authority, others)
        elif _do_task(working, adapter.open_task(place.address, taken.token, adapter.CLIENT_APP, place.authority), say):
            time.sleep(1.5)  # the SuperNode looks for replies every half second
            return True
    return False


def _do_task(working: _Work, task: Any, say: Say) -> bool:
    """One message answered; True when it was the last."""
    from flwr.app import ConfigRecord, RecordDict

    answer: Any
    with adapter.heartbeats(task):
        try:
            message, context = adapter.read_task(task)
        except adapter.CallFailed as error:
            say(f"a message could not be read: {' '.join(str(error).split()).partition(' For more')[0]}")
            return False
        group = message.metadata.group_id
        is_over = bool(group == END)
        try:
            if is_over:
                answer = RecordDict()
            elif group == HELLO:
                answer = RecordDict({HELLO: ConfigRecord({"client": working.setup.index, "of": working.setup.count})})
            else:
                answer = content(_work_on(working, group, message.content, context, say))
        except Exception as error:  # whatever it is, the server must hear of it and this client lives on
            answer = f"{type(error).__name__}: {error}"
            say(f"round {group}: {answer}")
        try:
            adapter.send_reply(task, message, context, answer)
        except adapter.CallFailed as error:
            say(f"round {group}: the reply could not be handed on: {error}")
    return is_over


def _work_on(working: _Work, group: str, records: Any, context: Any, say: Say) -> bytes:
    start = time.perf_counter()
    request = RoundRequest.of(group)
    run, site = working.site_of(context.run_config)
    data = unwrap(records)
    upload = work(site, working.store, run, request, data)
    working.rounds += 1
    seconds = time.perf_counter() - start
    say(f"round {request.round}: {len(data):,} bytes came, {len(upload):,} went, {seconds:.2f} s")
    return upload

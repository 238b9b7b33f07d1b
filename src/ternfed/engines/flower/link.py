"""The server's end of Flower: a SuperLink, our own or somebody else's, a run in it, and its grid for our own loop."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternfed.engines.flower import adapter, processes
from ternfed.engines.flower.certs import Certificates, public_bytes
from ternfed.engines.flower.errors import NetworkError

START = 60.0
"""Seconds that a SuperLink may take to answer."""


Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where a SuperLink or a SuperNode hands out tasks."""

    address: str
    """HOST:PORT"""
    authority: Path | None = None
    """Whose certificate it has; None: it is spoken to without TLS."""
    secret: bytes | None = None
    """What who takes tasks signs with; None: nobody has to."""


@dataclass(frozen=True)
class Link:
    """A running SuperLink with a run in it."""

    address: tuple[str, int]
    grid: Any
    task: Any
    """Of the run itself, which this process has taken."""
    nodes: dict[int, int]
    """The SuperNode of each client."""
    log: Say
    """A line for `flwr log`."""

    def push(self, clients: Sequence[int], group: str, content: Any, seconds: float) -> list[str]:
        """Put a message in the queues of clients, to be answered within so many seconds; the id of each."""
        from flwr.app import Message

        messages = [Message(content, self.nodes[one], "train", ttl=seconds, group_id=group) for one in clients]
        return [str(identity) for identity in self.grid.push_messages(messages)] if messages else []

    def pull(self, identities: Sequence[str]) -> list[Any]:
        """The replies that have come to these messages."""
        return list(self.grid.pull_messages(identities)) if identities else []

    def discard(self, identities: Sequence[str]) -> None:
        """Let the SuperLink forget messages and replies that nobody waits for any more."""
        adapter.discard(self.task, self.grid.run.run_id, identities)


@contextmanager
def open_link(certificates: Certificates, clients: int, config: dict[str, str], folder: Path) -> Iterator[Link]:
    """A SuperLink for a run: started on loopback, with TLS and SuperNode authentication; stopped at the end.

    Flower must be set up by then.
    """
    certificates.need(certificates.authority, certificates.server, certificates.server_key)
    keys = [certificates.public_key(index) for index in range(clients)]
    certificates.need(*keys)
    adapter.quiet()
    port = processes.free_port()
    secret_file, log = folder / "secret", folder / "superlink.log"
    secret = processes.write_secret(secret_file)
    processes.write_private(log)
    authority = certificates.authority
    command = adapter.superlink_command(port, authority, certificates.server, certificates.server_key, secret_file)
    process = processes.start(command, log)
    try:
        place = Place(f"127.0.0.1:{port}", authority, secret)
        control = adapter.open_control(place.address, authority)
        nodes = {index: _register(control, key, process, log) for index, key in enumerate(keys)}
        run = adapter.start_run(control, config)
        control.close()
        with _taken(place, run, nodes) as link:
            yield link
    finally:
        processes.stop(process, patience=3.0)
        secret_file.unlink(missing_ok=True)


@contextmanager
def attach_link(place: Place, config: dict[str, str], others: Path | None = None) -> Iterator[Link]:
    """A run in a SuperLink that somebody else runs, which hears how it ended; no client is known yet.

    `others` is the log of Flower's own programs where they are to run what is not ours; None: that is a failure.
    """
    adapter.quiet()
    control = adapter.open_control(place.address, place.authority)
    try:
        run = adapter.start_run(control, config)
    except adapter.CallFailed as error:
        raise NetworkError(f"{place.address}: the SuperLink took no run ({error})") from error
    finally:
        control.close()
    with _taken(place, run, {}, others) as link:
        try:
            yield link
        except BaseException as error:
            adapter.finish_run(link.task, str(error) or type(error).__name__)
            raise
        adapter.finish_run(link.task)


@contextmanager
def _taken(place: Place, run: int, nodes: dict[int, int], others: Path | None = None) -> Iterator[Link]:
    """The run's own task, taken by this process."""
    adapter.load_grid()
    token = _take(place, run, others)
    task = adapter.open_task(place.address, token, adapter.SERVER_APP, place.authority)
    host, _, port = place.address.rpartition(":")
    with ExitStack() as stack:  # a SuperLink waits for open connections before it ends
        stack.callback(task.close)
        stack.enter_context(adapter.heartbeats(task))
        grid = adapter.open_grid(task, place.address, token, place.authority)
        stack.callback(grid.close)
        log = stack.enter_context(adapter.logging_to(task, run))
        yield Link((host, int(port)), grid, task, nodes, log)


def _register(control: Any, key: Path, process: subprocess.Popen[bytes], log: Path) -> int:
    """Register a client's key, waiting for the SuperLink to come up; the id of its node."""
    end = time.monotonic() + START
    while True:
        try:
            return adapter.register(control, public_bytes(key))
        except adapter.Unreachable as error:
            if process.poll() is not None or time.monotonic() > end:
                lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
                why = lines[-1] if lines else str(error)
                raise NetworkError(f"Flower's SuperLink did not start: {why}; its log is {log}") from error
            time.sleep(0.1)


def _take(place: Place, run: int, others: Path | None) -> str:
    """The token of a run's own task, which this process takes on."""
    queue = adapter.open_queue(place.address, place.secret, place.authority)
    end = time.monotonic() + START
    try:
        while time.monotonic() < end:
            taken = adapter.take(queue, adapter.SERVER_APP)
            if taken is None:
                time.sleep(0.05)
            elif taken.run == run:
                return taken.token
            elif others is None:
                raise NetworkError(
                    f"the SuperLink handed out run {taken.run}, which is not ours and now needs to be started again; "
                    "with --others such a run is given to Flower's own program"
                )
            else:
                adapter.hand_on(taken, adapter.SERVER_APP, place.address, place.authority, others)
    except adapter.CallFailed as error:
        raise NetworkError(f"{place.address}: the SuperLink hands out no tasks ({error}); --secret?") from error
    finally:
        queue.close()
    raise NetworkError("the SuperLink did not hand out its run; it must have been started with --isolation process")

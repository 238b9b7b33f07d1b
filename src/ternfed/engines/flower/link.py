"""The server's end of Flower: a SuperLink as a child, the clients' keys registered, and its grid for our own loop."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ternfed.engines.flower import adapter, processes
from ternfed.engines.flower.certs import Certificates, public_bytes
from ternfed.engines.flower.errors import NetworkError

START = 60.0
"""Seconds that a SuperLink may take to answer."""


@dataclass(frozen=True)
class Link:
    """A running SuperLink with a run in it."""

    address: tuple[str, int]
    grid: Any
    task: Any
    """Of the run itself, which this process has taken."""
    nodes: dict[int, int]
    """The SuperNode of each client."""

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
        address = f"127.0.0.1:{port}"
        control = adapter.open_control(address, authority)
        nodes = {index: _register(control, key, process, log) for index, key in enumerate(keys)}
        adapter.start_run(control, config)
        control.close()
        token = _take(address, secret, authority)
        task = adapter.open_task(address, token, adapter.SERVER_APP, authority)
        grid = adapter.open_grid(task, address, token, authority)
        try:
            with adapter.heartbeats(task):
                yield Link(("127.0.0.1", port), grid, task, nodes)
        finally:  # a SuperLink waits for open connections before it ends
            grid.close()
            task.close()
    finally:
        processes.stop(process, patience=3.0)
        secret_file.unlink(missing_ok=True)


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


def _take(address: str, secret: bytes, authority: Path) -> str:
    """The token of the run's own task, which this process takes on."""
    queue = adapter.open_queue(address, secret, authority)
    end = time.monotonic() + START
    while time.monotonic() < end:
        token = adapter.take(queue, adapter.SERVER_APP)
        if token is not None:
            queue.close()
            return token
        time.sleep(0.05)
    raise NetworkError("Flower's SuperLink did not hand out its run")

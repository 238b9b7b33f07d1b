"""A client machine: a SuperNode as a child process, and this process, which does the work that it brings.

The SuperNode speaks TLS with the server and signs with the client's key. This process takes each task from it over
loopback, trains, and hands the upload back. It runs ternfed's own code and never the app that Flower delivers.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ternfed.engines.flower import processes, runtime
from ternfed.engines.flower.certs import Certificates
from ternfed.engines.flower.client_round import END, ClientSetup, Task, open_site, read_experiment, work
from ternfed.engines.flower.envelope import content, unwrap
from ternfed.engines.flower.errors import NetworkError, Refused
from ternfed.engines.flower.memory import Store
from ternfed.round.federation import Site

POLL = 0.2
"""Seconds between two looks for a task."""
AGAIN = 2.0
"""Seconds before a SuperNode that ended is started again."""
GAVE_UP = (b"Giving up reconnection", b"handshake error detected")
"""What a SuperNode says when it stops asking for messages. Its process may stay, and does nothing any more."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class ClientConfig:
    """Where a client connects to, and with what."""

    server: str
    """HOST:PORT"""
    certificates: Certificates
    own: ClientSetup
    state: Path
    """Its folder: what it must not forget, and the SuperNode's log."""
    stay: bool = False
    """Wait for another run when one is over."""
    threads: int = 1
    """That PyTorch computes with; results repeat bit for bit with one."""


@dataclass
class _Work:
    """The run that this client takes part in, made ready once."""

    place: ClientConfig
    run: str | None = None
    site: Site | None = None
    rounds: int = field(default=0)

    def site_of(self, config: dict[str, Any]) -> tuple[str, Site]:
        run = str(config["run"])
        if self.site is None or self.run != run:
            self.site = open_site(read_experiment(str(config["experiment"]), self.place.own.modules), self.place.own)
            self.run = run
        return run, self.site


def run_client(place: ClientConfig, say: Say) -> int:
    """Serve until the server says that the run is over; how often it took part. Refused where it may not."""
    processes.set_up_flower(place.state / "flower")
    runtime.need_flower()
    torch.set_num_threads(place.threads)
    place.certificates.need(place.certificates.authority, place.certificates.client_key(place.own.index))
    place.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    runtime.quiet()
    working = _Work(place)
    was_connected = False
    while True:
        with _supernode(place) as (node, address, secret, log):
            end = _serve(working, lambda: node.poll() is None and not _gave_up(log), address, secret, say)
            text = log.read_text(encoding="utf-8", errors="replace")
        if end and not place.stay:
            return working.rounds
        was_connected = was_connected or "SuperNode ID" in text
        if not end:
            _check_refused(text, was_connected)
            say("the connection ended; connecting again")
        time.sleep(AGAIN)


@contextmanager
def _supernode(place: ClientConfig) -> Iterator[tuple[subprocess.Popen[bytes], str, bytes, Path]]:
    port = processes.free_port()
    secret_file, log = place.state / "secret", place.state / "supernode.log"
    secret = processes.write_secret(secret_file)
    log.write_bytes(b"")
    arguments = [
        "--root-certificates", str(place.certificates.authority),
        "--auth-supernode-private-key", str(place.certificates.client_key(place.own.index)),
        "--superlink", place.server,
        "--isolation", "process", "--superexec-auth-secret-file", str(secret_file),
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    node = processes.start("flower-supernode", arguments, log)
    try:
        yield node, f"127.0.0.1:{port}", secret, log
    finally:
        processes.stop(node, patience=2.0)
        secret_file.unlink(missing_ok=True)


def _gave_up(log: Path) -> bool:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        text = stream.read()
    return any(words in text for words in GAVE_UP)


def _serve(working: _Work, is_alive: Callable[[], bool], address: str, secret: bytes, say: Say) -> bool:
    """Take tasks while the SuperNode lives; True when the server says that the run is over."""
    import httpx

    client = runtime.acquirer(address, secret)
    runtime.load_ahead()  # while the SuperNode starts

    while is_alive():
        try:
            token = runtime.acquire(client, "flwr-clientapp")
        except httpx.HTTPError:  # the SuperNode is still starting
            token = None
        if token is None:
            time.sleep(POLL)
        elif _do_task(working, runtime.task_client(address, token, "flwr-clientapp"), say):
            time.sleep(1.5)  # the SuperNode looks for replies every half second
            return True
    return False


def _do_task(working: _Work, client: Any, say: Say) -> bool:
    """One message answered; True when it was the last."""
    import httpx
    from flwr.app import Error, Message, RecordDict
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    with runtime.heartbeats(client):
        try:
            message, context, _, _ = pull_task_input(client)
        except (httpx.HTTPError, RuntimeError) as error:
            say(f"a message could not be read: {error}")
            return False
        group, end = message.metadata.group_id, message.metadata.group_id == END
        try:
            reply = RecordDict() if end else content(_work_on(working, group, message.content, context, say))
            answer = Message(reply, reply_to=message)
        except Exception as error:  # whatever it is, the server must hear of it and this client lives on
            reason = f"{type(error).__name__}: {error}"
            say(f"round {group}: {reason}")
            answer = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        try:
            push_message(client, answer, context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        except httpx.HTTPError as error:
            say(f"round {group}: the reply could not be handed on: {error}")
    return end


def _work_on(working: _Work, group: str, records: Any, context: Any, say: Say) -> bytes:
    start = time.perf_counter()
    task = Task.of(group)
    run, site = working.site_of(context.run_config)
    data = unwrap(records)
    upload = work(site, Store(working.place.state / "runs"), run, task, data)
    working.rounds += 1
    seconds = time.perf_counter() - start
    say(f"round {task.round}: {len(data):,} bytes came, {len(upload):,} went, {seconds:.2f} s")
    return upload


def _check_refused(log: str, was_connected: bool) -> None:
    """Why a SuperNode ended, where trying again would not help. A handshake that broke off is no refusal."""
    lower = log.lower()
    if "certificate verify failed" in lower or "certificate_verify_failed" in lower:
        raise Refused("the server's certificate is not from the authority in ca.crt, or not for this host name")
    if was_connected:
        return
    if "Exit Code" not in log and "terminated gracefully" in lower:  # how Flower ends at a 401
        raise Refused("the server does not know this client's key; register its .pub file there")
    if "Traceback" in log:
        last = [line for line in log.splitlines() if line.strip()][-1]
        raise NetworkError(f"the SuperNode could not start: {last}")

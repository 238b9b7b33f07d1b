"""The server's end of Flower: a SuperLink as a child, the clients' keys registered, and its grid for our own loop."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from ternfed.engines.flower import processes, runtime
from ternfed.engines.flower.certs import Certificates, public_bytes
from ternfed.engines.flower.errors import NetworkError

START = 60.0
"""Seconds that a SuperLink may take to answer."""
APP = b'''"""Stands for ternfed, which must be installed where this runs: the app that a run of Flower needs to have."""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()
'''


@dataclass(frozen=True)
class Link:
    """A running SuperLink with a run in it."""

    address: tuple[str, int]
    grid: Any
    nodes: dict[int, int]
    """The SuperNode of each client."""
    process: subprocess.Popen[bytes]

    def push(self, clients: Sequence[int], group: str, content: Any, seconds: float) -> list[str]:
        """Put a message in the queues of clients, to be answered within so many seconds; the id of each."""
        from flwr.app import Message

        messages = [Message(content, self.nodes[one], "train", ttl=seconds, group_id=group) for one in clients]
        return [str(identity) for identity in self.grid.push_messages(messages)] if messages else []

    def pull(self, identities: Sequence[str]) -> list[Any]:
        """The replies that have come to these messages."""
        return list(self.grid.pull_messages(identities)) if identities else []


@contextmanager
def open_link(certificates: Certificates, clients: int, config: dict[str, str], folder: Path) -> Iterator[Link]:
    """A SuperLink for a run: started on loopback, with TLS and SuperNode authentication; stopped at the end."""
    processes.set_up_flower(folder / "flower")
    runtime.need_flower()
    certificates.need(certificates.authority, certificates.server, certificates.server_key)
    keys = [certificates.public_key(index) for index in range(clients)]
    certificates.need(*keys)
    runtime.quiet()
    port = processes.free_port()
    secret_file, log = folder / "secret", folder / "superlink.log"
    secret = processes.write_secret(secret_file)
    log.write_bytes(b"")
    arguments = [
        "--ssl-ca-certfile", str(certificates.authority),
        "--ssl-certfile", str(certificates.server),
        "--ssl-keyfile", str(certificates.server_key),
        "--enable-supernode-auth",
        "--isolation", "process", "--superexec-auth-secret-file", str(secret_file),
        "--host", "127.0.0.1", "--port", str(port),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    process = processes.start("flower-superlink", arguments, log)
    try:
        address = f"127.0.0.1:{port}"
        control = _control(address, certificates)
        nodes = {index: _register(control, key, process, log) for index, key in enumerate(keys)}
        _start_run(control, config)
        control.close()
        token = _take(address, secret, certificates)
        client = runtime.task_client(address, token, "flwr-serverapp", certificates.authority)
        grid = _grid(client, address, token, certificates)
        try:
            with runtime.heartbeats(client):
                yield Link(("127.0.0.1", port), grid, nodes, process)
        finally:  # a SuperLink waits for open connections before it ends
            grid.close()
            client.close()
    finally:
        processes.stop(process, patience=3.0)
        secret_file.unlink(missing_ok=True)


def _control(address: str, certificates: Certificates) -> Any:
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return ControlHttpClient.from_server_address(
        server_address=address,
        insecure=False,
        root_certificates=certificates.authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )


def _register(control: Any, key: Path, process: subprocess.Popen[bytes], log: Path) -> int:
    """Register a client's key, waiting for the SuperLink to come up; the id of its node."""
    import httpx
    from flwr.proto.control_pb2 import RegisterNodeRequest

    end = time.monotonic() + START
    while True:
        try:
            return int(control.RegisterNode(RegisterNodeRequest(public_key=public_bytes(key))).node_id)
        except httpx.TransportError as error:
            if process.poll() is not None or time.monotonic() > end:
                lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
                why = lines[-1] if lines else str(error)
                raise NetworkError(f"Flower's SuperLink did not start: {why}; its log is {log}") from error
            time.sleep(0.1)


def _start_run(control: Any, config: dict[str, str]) -> None:
    import hashlib

    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    project = {
        "project": {"name": "ternfed-run", "version": "1.0.0", "description": "", "license": "Apache-2.0"},
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "ternfed",
                    "fab-include": ["app.py"],
                    "components": {"serverapp": "app:server", "clientapp": "app:client"},
                    "config": config,
                }
            }
        },
    }
    data, _ = build_fab_from_files({"pyproject.toml": tomli_w.dumps(project).encode(), "app.py": APP})
    fab = fab_to_proto(Fab(hashlib.sha256(data).hexdigest(), data, {}))
    if not control.StartRun(StartRunRequest(fab=fab)).HasField("run_id"):
        raise NetworkError("Flower's SuperLink refused the run")


def _take(address: str, secret: bytes, certificates: Certificates) -> str:
    """The token of the run's own task, which this process takes on."""
    client = runtime.acquirer(address, secret, certificates.authority)
    end = time.monotonic() + START
    while time.monotonic() < end:
        token = runtime.acquire(client, "flwr-serverapp")
        if token is not None:
            client.close()
            return token
        time.sleep(0.05)
    raise NetworkError("Flower's SuperLink did not hand out its run")


def _grid(client: Any, address: str, token: str, certificates: Certificates) -> Any:
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    task = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    grid = HttpGrid(
        runtime_api_address=address,
        root_certificates=certificates.authority.read_bytes(),
        token=token,
    )
    grid.set_run(run_from_proto(task.run))
    return grid

"""What both sides need of Flower that is not its public interface, in one place.

Flower starts a process for each message, which imports PyTorch and loads the data each time: seconds. Its setting
`--isolation process` lets another program take the tasks instead. Ours keeps everything loaded. `AcquireTask` gives a
task's token to whoever signs with the secret that this process shares with its own SuperLink or SuperNode.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ternfed.engines.flower.errors import NetworkError

HEARTBEAT = 10.0
"""Seconds between signs of life of a task; Flower gives one up after 60."""


def need_flower() -> None:
    """NetworkError where Flower is missing or is another minor version than the one this was made for."""
    try:
        from flwr.supercore.version import package_version
    except ImportError as error:
        raise NetworkError("Flower is missing; install the extra [flower]: pip install 'ternfed[flower]'") from error
    if not package_version.startswith("1.41."):
        raise NetworkError(f"Flower {package_version} is installed; 1.41 is needed: pip install 'ternfed[flower]'")


def acquirer(address: str, secret: bytes, authority: Path | None = None) -> Any:
    """A client of the Runtime API that may take tasks."""
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    signing = SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
    )
    return _client(address, authority, "SuperExec", signing)


def acquire(client: Any, kind: str) -> str | None:
    """The token of a task of a kind, if one is waiting."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return str(found.token) if found.HasField("task") and found.token else None


def task_client(address: str, token: str, program: str, authority: Path | None = None) -> Any:
    """A client of the Runtime API for one task."""
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

    return _client(address, authority, program, RuntimeTokenHttpInterceptor(token))


@contextmanager
def heartbeats(client: Any) -> Iterator[None]:
    """Signs of life of a task while it is worked on. One that fails is followed by the next."""
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except httpx.HTTPError:
                continue

    thread = threading.Thread(target=beat, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=1.0)


def load_ahead() -> None:
    """Flower's own imports take seconds: better while nothing waits for them."""
    from flwr.supernode.runtime import run_clientapp  # noqa: F401


def quiet() -> None:
    """Flower's messages about its own doings stay away from the terminal."""
    import logging

    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _client(address: str, authority: Path | None, program: str, *interceptors: Any) -> Any:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=authority is None,
        root_certificates=None if authority is None else authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name=program), *interceptors],
    )

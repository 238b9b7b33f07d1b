"""Tasks of a SuperLink or a SuperNode, taken by our own processes through Flower's Runtime API.

Flower starts a process for each message, which imports PyTorch and loads the data each time: seconds. Its setting
`--isolation process` lets another program take the tasks instead. Ours keeps everything loaded. `AcquireTask` gives a
task's token to whoever signs with the secret that this process shares with its own SuperLink or SuperNode.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ternfed.engines.flower.adapter.programs import program
from ternfed.engines.flower.errors import NetworkError

CLIENT_APP, SERVER_APP = "flwr-clientapp", "flwr-serverapp"
"""Kinds of tasks; also the names of the programs that Flower itself would start for them."""
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
"""The call that is signed with the shared secret."""
HEARTBEAT = 10.0
"""Seconds between signs of life of a task; Flower gives one up after 60."""


class CallFailed(NetworkError):
    """A call to a SuperLink or SuperNode that was not answered as it should be."""


class Unreachable(CallFailed):
    """Nobody answered at all: it is still starting, or gone."""


class Taken(NamedTuple):
    """A task that this process has taken."""

    token: str
    run: int
    app: str
    """The hash of the app that Flower would run for it; empty where it does not say."""


def open_queue(address: str, secret: bytes | None, authority: Path | None = None) -> Any:
    """A client of the Runtime API that may take tasks; without a secret where none is asked for."""
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    if secret is None:
        return _client(address, authority, "SuperExec")
    signing = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=frozenset({ACQUIRE}))
    return _client(address, authority, "SuperExec", signing)


def take(queue: Any, kind: str) -> Taken | None:
    """A task of a kind, if one is waiting."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    with calling():
        found = queue.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    if not found.HasField("task") or not found.token:
        return None
    return Taken(str(found.token), int(found.task.run_id), str(found.task.fab_hash))


def hand_on(taken: Taken, kind: str, address: str, authority: Path | None, log: Path) -> subprocess.Popen[bytes]:
    """Somebody else's task, given to the program that Flower itself would have started for it."""
    trust = ["--insecure"] if authority is None else ["--root-certificates", str(authority)]
    with log.open("ab") as output:
        return subprocess.Popen(
            [program(kind), "--runtime-api-address", address, "--token", taken.token, *trust],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip


def open_task(address: str, token: str, kind: str, authority: Path | None = None) -> Any:
    """A client of the Runtime API for one task."""
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

    return _client(address, authority, kind, RuntimeTokenHttpInterceptor(token))


def read_task(task: Any) -> tuple[Any, Any]:
    """A SuperNode's task: the message and the context of its run."""
    from flwr.supernode.runtime.run_clientapp import pull_task_input

    try:
        with calling():
            message, context, _, _ = pull_task_input(task)
    except CallFailed:
        raise
    except RuntimeError as error:  # how Flower says that there is no message
        raise CallFailed(str(error)) from error
    return message, context


def send_reply(task: Any, message: Any, context: Any, answer: Any) -> None:
    """Answer a SuperNode's task: `answer` is the content of the reply, or a str that says why there is none."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

    said = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, answer) if isinstance(answer, str) else answer
    with calling():
        push_message(task, Message(said, reply_to=message), context)
        push_task_output(task, context, SubStatus.COMPLETED, "")


def is_from_flower(reply: Any) -> bool:
    """An error that Flower itself gives in a client's stead: it is gone, or the time is over."""
    from flwr.common.constant import ErrorCode

    return bool(reply.has_error() and reply.error.code != ErrorCode.CLIENT_APP_RAISED_EXCEPTION)


@contextmanager
def heartbeats(task: Any) -> Iterator[None]:
    """Signs of life of a task while it is worked on. One that fails is followed by the next."""
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT):
            try:
                with calling():
                    task.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except CallFailed:
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


@contextmanager
def calling() -> Iterator[None]:
    """Errors of the library that carries Flower's calls, as ours."""
    import httpx

    try:
        yield
    except httpx.TransportError as error:
        raise Unreachable(str(error)) from error
    except httpx.HTTPError as error:
        raise CallFailed(str(error)) from error


def _client(address: str, authority: Path | None, component: str, *interceptors: Any) -> Any:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=authority is None,
        root_certificates=None if authority is None else authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), *interceptors],
    )

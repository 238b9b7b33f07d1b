"""A SuperLink's Control API (keys and runs), and the grid by which a server's task sends messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from queue import Queue
from typing import Any

import tomli_w

from ternfed.engines.flower.adapter.fleet import SUPERLINK_NODE
from ternfed.engines.flower.adapter.tasks import calling
from ternfed.engines.flower.errors import NetworkError

APP = b'''"""Stands for ternfed, which must be installed where this runs: the app that a run of Flower needs to have."""

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()
'''
CONFIG = ("run", "experiment", "frozen", "outline")
"""What the configuration of a run says."""


def open_control(address: str, authority: Path | None) -> Any:
    """A client of a SuperLink's Control API; without TLS where there is no authority."""
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    return ControlHttpClient.from_server_address(
        server_address=address,
        insecure=authority is None,
        root_certificates=None if authority is None else authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )


def register(control: Any, public_key: bytes) -> int:
    """Register a client's public key (PEM); the id of its node. Unreachable while the SuperLink starts."""
    from flwr.proto.control_pb2 import RegisterNodeRequest

    with calling():
        return int(control.RegisterNode(RegisterNodeRequest(public_key=public_key)).node_id)


@cache
def stand_in() -> tuple[str, bytes]:
    """(hash, bytes) of the app that stands for ternfed: the same in every run, so that its tasks can be told."""
    from flwr.cli.build import build_fab_from_files

    project = {
        "project": {"name": "ternfed-run", "version": "1.0.0", "description": "", "license": "Apache-2.0"},
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "ternfed",
                    "fab-include": ["app.py"],
                    "components": {"serverapp": "app:server", "clientapp": "app:client"},
                    "config": dict.fromkeys(CONFIG, ""),
                }
            }
        },
    }
    data, _ = build_fab_from_files({"pyproject.toml": tomli_w.dumps(project).encode(), "app.py": APP})
    return hashlib.sha256(data).hexdigest(), data


def start_run(control: Any, config: Mapping[str, str]) -> int:
    """Start a run whose clients find `config` in their context; its id."""
    from flwr.common.serde import fab_to_proto, user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.fab import Fab

    with calling():
        started = control.StartRun(
            StartRunRequest(fab=fab_to_proto(Fab(*stand_in(), {})), override_config=user_config_to_proto(dict(config)))
        )
    if not started.HasField("run_id"):
        raise NetworkError("Flower's SuperLink refused the run")
    return int(started.run_id)


def discard(task: Any, run: int, messages: Sequence[str]) -> None:
    """Delete the objects of messages that nobody waits for any more; the SuperLink would keep them."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
    from flwr.proto.node_pb2 import Node

    for message in messages:
        with calling():
            task.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=Node(node_id=SUPERLINK_NODE), run_id=run, message_object_id=message)
            )


def load_grid() -> None:
    """Flower's own imports take seconds on a busy machine: better before a task is taken, which must then be begun."""
    from flwr.supercore.logger import start_log_uploader  # noqa: F401
    from flwr.superlink.grid import HttpGrid  # noqa: F401


def open_grid(task: Any, address: str, token: str, authority: Path | None) -> Any:
    """The grid of the run whose task this process has taken."""
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    with calling():
        given = task.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
    TaskIdentity.node_id = given.context.node_id
    certificates = None if authority is None else authority.read_bytes()
    grid = HttpGrid(address, authority is None, certificates, token=token)
    grid.set_run(run_from_proto(given.run))
    return grid


def finish_run(task: Any, failed: str = "") -> None:
    """Tell a SuperLink that the run whose task this process has taken is over, or why it failed."""
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    status = SubStatus.FAILED if failed else SubStatus.COMPLETED
    with calling():
        task.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=failed))


@contextmanager
def logging_to(task: Any, run: int) -> Iterator[Callable[[str], None]]:
    """Lines that `flwr log` shows, sent every now and then while this lasts."""
    from flwr.supercore.logger import flush_logs, start_log_uploader, stop_log_uploader

    lines: Queue[str | None] = Queue()
    uploader = start_log_uploader(lines, 0, run, task)
    try:
        yield lambda text: lines.put(f"{text}\n")
    finally:
        flush_logs(lines)
        stop_log_uploader(lines, uploader)

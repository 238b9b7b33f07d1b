"""What ternfed relies on in Flower beyond its public interface, one test for each thing.

When a new version of Flower breaks one of these, its name says what must be found anew in `engines/flower/adapter`.
"""

from __future__ import annotations

import ast
import base64
import inspect
import logging
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

pytest.importorskip("flwr")

import httpx
from harness import wait

from ternfed.engines.flower import adapter, door, gate, processes
from ternfed.engines.flower.adapter import programs, superlink, tasks
from ternfed.engines.flower.adapter.programs import End, Ended
from ternfed.engines.flower.certs import make_certificates, public_bytes
from ternfed.engines.flower.signatures import read_private_key, sign, verify

SOURCES = Path(adapter.__file__).parents[3]
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation")


def calls_of(client_class: Any) -> dict[str, dict[str, Any]]:
    """Path and name of each call that a client of Flower's makes."""
    client = object.__new__(client_class)
    client._unary_unary = client._unary_stream = lambda **call: call
    found = {name: method for name, method in vars(client_class).items() if name[0].isupper()}
    return {name: method(client, None) for name, method in found.items()}


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def fields(message: Any) -> set[str]:
    return {each.name for each in message.DESCRIPTOR.fields}


# Our own side of the wall


def test_private_parts_of_flower_are_imported_in_the_adapter_alone() -> None:
    found = []
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = getattr(node, "module", None)
                names = [module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                private = [n for n in names if n.split(".")[0] == "flwr" and not n.startswith(PUBLIC)]
                found += [(file.relative_to(SOURCES).parent.as_posix(), name) for name in private]
    assert found
    assert {folder for folder, _ in found} == {"engines/flower/adapter"}


def test_every_module_but_the_strategy_and_the_mod_can_be_imported_without_flower() -> None:
    folder = SOURCES / "engines" / "flower"
    names = [file.stem for file in folder.glob("*.py") if file.stem not in ("__init__", "strategy", "mod")]
    code = "import sys, importlib\nsys.modules['flwr'] = None\n"
    code += f"for name in {[*names, 'adapter.supernode']}: importlib.import_module('ternfed.engines.flower.' + name)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    "start", ["import ternfed", "from ternfed.cli import app; sys.argv = ['ternfed', '--help']; app.main()"]
)
def test_flower_is_loaded_when_it_is_used_and_not_before(start: str) -> None:
    code = f"import sys\ntry:\n    {start}\nexcept SystemExit: pass\n"
    code += "assert not {'flwr', 'torch'} & set(sys.modules)\n"
    code += "import ternfed; ternfed.ternary_mod, ternfed.TernaryStrategy\nassert 'flwr' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_supernode_process_loads_no_pytorch() -> None:
    code = "import sys, ternfed.engines.flower.adapter.supernode; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "False"


# Settings


def test_flower_takes_its_settings_from_these_environment_variables(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from ternfed.engines.flower import adapter
adapter.set_up(Path({str(tmp_path)!r}))
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION
from flwr.supercore.constant import FLWR_DISABLE_UPDATE_CHECK
from flwr.supercore.telemetry import FLWR_TELEMETRY_ENABLED
from flwr.supercore.utils import get_flwr_home
assert FLWR_TELEMETRY_ENABLED == "0", "telemetry is on"
assert FLWR_DISABLE_UPDATE_CHECK in adapter.OFFLINE, "the update check has another switch"
assert FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION in adapter.OFFLINE, "installation has another switch"
assert FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE == {programs.CHUNK}, "messages are cut into other pieces"
assert get_flwr_home() == Path({str(tmp_path)!r}), "files go to another place"
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_flower_logs_under_one_name_that_can_be_quieted() -> None:
    from flwr.supercore.logger import FLOWER_LOGGER

    assert FLOWER_LOGGER is logging.getLogger("flwr")


def test_the_superlink_knows_the_options_that_it_is_started_with(tmp_path: Path) -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    command = adapter.superlink_command(1234, *(tmp_path / name for name in "abcd"))
    given = _parse_args_run_superlink().parse_args(command[1:])
    assert (given.host, given.port, given.isolation) == ("127.0.0.1", 1234, "process")
    assert given.enable_supernode_auth


def test_the_supernode_knows_the_options_that_it_is_started_with(tmp_path: Path) -> None:
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    command = adapter.supernode_command("server:1", 1234, *(tmp_path / name for name in "abcd"))
    given = _parse_args_run_supernode().parse_args(command[command.index(str(tmp_path / "d")) + 1 :])
    assert (given.superlink, given.host, given.port, given.isolation) == ("server:1", "127.0.0.1", 1234, "process")


# The calls that pass through the gate


def test_the_door_has_a_list_of_all_calls_that_supernodes_with_keys_make() -> None:
    from flwr.supernode.fleet_http_client import FleetHttpClient

    paths = {call["path"] for call in calls_of(FleetHttpClient).values()}
    # A SuperNode with a key of its own neither registers nor unregisters itself.
    assert set(adapter.CALLS) == paths - {f"{adapter.FLEET}register-node", f"{adapter.FLEET}unregister-node"}


def test_a_supernode_sends_its_public_key_in_this_header_as_our_certificates_write_it(tmp_path: Path) -> None:
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes

    made = make_certificates(tmp_path / "certs", [], 1)
    key = public_bytes(made.public_key(0))
    assert FLEET_HTTP_PUBLIC_KEY_HEADER.encode() == adapter.PUBLIC_KEY_HEADER
    assert public_key_to_bytes(bytes_to_public_key(key)) == key


def test_a_supernodes_signature_holds_at_the_door_and_ours_holds_at_the_superlink(tmp_path: Path) -> None:
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    made = make_certificates(tmp_path / "certs", [], 1)
    public, private = public_bytes(made.public_key(0)), read_private_key(made.client_key(0))
    call: Any = SimpleNamespace(request=httpx.Request("POST", "https://x/"))
    NodeAuthHttpInterceptor(private, private.public_key()).intercept(call, lambda context: call)
    theirs = {name.lower(): value for name, value in call.request.headers.raw}
    found = verify(theirs, {public: 7})
    assert found is not None
    assert found.client == 7
    assert {name.encode(): value.encode() for name, value in found.fields.items()}.items() <= theirs.items()
    ours = sign(private)
    time = ours[adapter.TIMESTAMP_HEADER.decode()].encode()
    signature = base64.b64decode(ours[adapter.SIGNATURE_HEADER.decode()])
    assert verify_signature(bytes_to_public_key(public), time, signature)


def test_a_supernode_of_ours_follows_no_redirection(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.protobuf.client import ProtobufClient

    from ternfed.engines.flower.adapter.supernode import stay_at_the_server

    monkeypatch.setattr(ProtobufClient, "__init__", ProtobufClient.__init__)
    assert ProtobufClient("https://x")._client.follow_redirects, "Flower no longer follows: nothing to do any more"
    stay_at_the_server()
    assert not ProtobufClient("https://x")._client.follow_redirects


def test_calls_are_of_this_media_type_and_the_server_is_named_by_this_node_id() -> None:
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

    assert adapter.MEDIA_TYPE == PROTOBUF_MEDIA_TYPE
    assert adapter.SUPERLINK_NODE == SUPERLINK_NODE_ID


def test_signatures_are_accepted_within_these_seconds() -> None:
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

    assert adapter.MOST_AHEAD == SYSTEM_TIME_TOLERANCE
    assert adapter.MOST_BEHIND == TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE


def test_a_supernode_waits_longer_for_an_answer_than_the_gate_holds_its_question() -> None:
    from flwr.supercore.protobuf.client import ProtobufClient

    assert inspect.signature(ProtobufClient).parameters["timeout"].default >= door.HOLD + 10


def test_a_supernode_asks_again_sooner_than_the_gate_takes_it_for_gone() -> None:
    from flwr.supernode import start_client_internal

    source = inspect.getsource(start_client_internal.start_client_internal)
    assert "time.sleep(3)" in source, "its pause between two questions is another"
    assert door.READY > 3


def test_an_unused_connection_to_the_superlink_outlives_the_time_that_the_gate_keeps_it() -> None:
    import uvicorn

    assert inspect.signature(uvicorn.Config).parameters["timeout_keep_alive"].default > gate.KEPT


def test_a_supernode_that_lives_has_a_connection_open_because_heartbeats_come_sooner_than_the_door_closes_it() -> None:
    from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL

    assert gate.KEEP > 2 * HEARTBEAT_DEFAULT_INTERVAL


def test_a_node_is_deactivated_by_its_id() -> None:
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest

    assert DeactivateNodeRequest.FromString(adapter.deactivation(7)).node_id == 7


# Tasks and messages


def test_tasks_are_of_these_kinds() -> None:
    from flwr.supercore.constant import TaskType

    assert (TaskType.CLIENT_APP, TaskType.SERVER_APP) == (adapter.CLIENT_APP, adapter.SERVER_APP)


def test_a_task_is_taken_by_a_call_of_this_name_and_comes_with_a_token() -> None:
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, AcquireTaskResponse
    from flwr.supercore.runtime import RuntimeHttpClient

    assert calls_of(RuntimeHttpClient)["AcquireTask"]["rpc_method"] == tasks.ACQUIRE
    assert "supported_task_types" in fields(AcquireTaskRequest)
    assert {"task", "token"} <= fields(AcquireTaskResponse)


def test_clients_of_the_runtime_api_are_made_with_these_arguments() -> None:
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    wanted = {"server_address", "insecure", "root_certificates", "interceptors"}
    assert wanted <= set(parameters(RuntimeHttpClient.from_server_address))
    assert {"master_secret", "protected_methods"} <= set(parameters(SuperExecAuthHttpInterceptor))
    assert parameters(RuntimeTokenHttpInterceptor)[0] == "token"
    assert parameters(RuntimeVersionHttpInterceptor)[0] == "component_name"
    assert {"SendTaskHeartbeat", "PullTaskInput"} <= set(calls_of(RuntimeHttpClient))


def test_a_nodes_task_is_read_and_answered_by_these_functions() -> None:
    from flwr.supernode.runtime import run_clientapp

    assert parameters(run_clientapp.pull_task_input) == ["client"]
    given = [each.__name__ for each in get_args(get_type_hints(run_clientapp.pull_task_input)["return"])]
    assert given == ["Message", "Context", "Run", "Fab"]
    assert parameters(run_clientapp.push_message) == ["client", "message", "context"]
    assert parameters(run_clientapp.push_task_output) == ["client", "context", "sub_status", "details"]


def test_an_error_of_ours_can_be_told_from_one_of_flowers(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.app import Error, Message, RecordDict
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supercore.task_identity import TaskIdentity

    assert SubStatus.COMPLETED
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    asked = Message(RecordDict(), 1, "train")
    ours = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "mine"), reply_to=asked)
    theirs = Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=asked)
    assert adapter.is_from_flower(theirs)
    assert not adapter.is_from_flower(ours)
    assert not adapter.is_from_flower(Message(RecordDict(), reply_to=asked))


# The SuperLink


def test_keys_and_runs_are_registered_by_these_messages() -> None:
    from flwr.proto.control_pb2 import RegisterNodeRequest, RegisterNodeResponse, StartRunRequest, StartRunResponse
    from flwr.supercore.control import ControlHttpClient

    assert {"RegisterNode", "StartRun"} <= set(calls_of(ControlHttpClient))
    assert "public_key" in fields(RegisterNodeRequest)
    assert "node_id" in fields(RegisterNodeResponse)
    assert "fab" in fields(StartRunRequest)
    assert "run_id" in fields(StartRunResponse)


def test_the_app_is_the_same_in_every_run_and_the_config_comes_beside_it() -> None:
    class Control:
        def StartRun(self, request: Any) -> Any:
            from flwr.proto.control_pb2 import StartRunResponse

            self.request = request
            return StartRunResponse(run_id=1)

    from flwr.common.config import get_fab_config
    from flwr.common.serde import user_config_from_proto

    control, config = Control(), {"run": "0123", "experiment": 'name = "x"\n', "frozen": "", "outline": ""}
    assert superlink.start_run(control, config) == 1
    assert user_config_from_proto(control.request.override_config) == config
    fab = control.request.fab
    assert get_fab_config(fab.content)["tool"]["flwr"]["app"]["config"].keys() == config.keys()  # others are refused
    assert (fab.hash_str, fab.content) == superlink.stand_in()


def test_a_task_says_which_run_and_app_it_is_of_before_it_is_begun() -> None:
    from flwr.proto.runtime_pb2 import AcquireTaskResponse
    from flwr.proto.task_pb2 import Task

    assert {"task", "token"} <= fields(AcquireTaskResponse)
    assert {"run_id", "fab_hash"} <= fields(Task)


def test_lines_for_flwr_log_go_through_a_queue() -> None:
    from flwr.supercore.logger import flush_logs, start_log_uploader, stop_log_uploader
    from flwr.supercore.runtime import RuntimeHttpClient

    assert parameters(start_log_uploader) == ["log_queue", "node_id", "run_id", "client"]
    assert parameters(flush_logs)[0] == parameters(stop_log_uploader)[0] == "log_queue"
    assert {"PushLogs", "PushTaskOutput"} <= set(calls_of(RuntimeHttpClient))


def test_the_grid_is_opened_with_a_token_for_the_run_of_its_task() -> None:
    from flwr.proto.runtime_pb2 import PullTaskInputResponse
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    assert {"runtime_api_address", "root_certificates", "token"} <= set(parameters(HttpGrid))
    assert parameters(HttpGrid.set_run) == ["run"]
    assert {"task_id", "run", "context"} <= fields(PullTaskInputResponse)
    assert {"task_id", "run_id", "node_id"} <= set(dir(type(TaskIdentity)))


# How a SuperNode ends: real processes against a server that answers as it is told to


@dataclass
class Superlink:
    """Answers calls of the Fleet API by a status each; everything not named is found and empty."""

    context: ssl.SSLContext
    statuses: dict[str, int]
    asked: list[str] = field(default_factory=list)

    def __enter__(self) -> str:
        told = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from flwr.proto.fleet_pb2 import ActivateNodeResponse

                self.rfile.read(int(self.headers["content-length"]))
                call = self.path.rpartition("/")[2]
                told.asked.append(call)
                body = ActivateNodeResponse(node_id=5).SerializeToString() if call == "activate-node" else b""
                self.send_response(told.statuses.get(call, 200))
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.server.socket = self.context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


ENDS = {
    "a connection that cannot be made": ({"activate-node": 404}, "client-0"),
    "a signature that is not accepted": ({"activate-node": 401}, "client-0"),
    "a connection that was made and then lost": ({"pull-messages": 404}, "client-0"),
    "a key that is none": ({}, "ca.crt"),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Ended, list[str]]]]:
    """How SuperNodes ended, each after another answer; all at once, because each takes seconds to start."""
    place = tmp_path_factory.mktemp("supernodes")
    made = make_certificates(place / "certs", [], 1)
    secret = place / "secret"
    processes.write_secret(secret)
    links = {name: Superlink(made.server_context(), statuses) for name, (statuses, _) in ENDS.items()}
    running = {}
    before = dict(os.environ)
    adapter.set_up(place / "flower")
    try:
        for number, (name, (_, key)) in enumerate(ENDS.items()):
            report, port = place / f"{number}.json", processes.free_port()
            files = made.authority, made.folder / key, secret, report
            command = adapter.supernode_command(links[name].__enter__(), port, *files)
            running[name] = processes.start(command, place / f"{number}.log"), report
        for name, (process, _) in running.items():
            wait(lambda process=process: process.poll() is not None, 60, f"the end of a SuperNode: {name}")  # type: ignore[misc]
        yield {name: (adapter.how_it_ended(report), links[name].asked) for name, (_, report) in running.items()}
    finally:
        for process, _ in running.values():
            processes.stop(process, patience=1.0)
        for link in links.values():
            link.__exit__()
        os.environ.clear()
        os.environ.update(before)


def test_a_supernode_that_cannot_connect_ends_and_another_try_may_succeed(ended: Any) -> None:
    how, asked = ended["a connection that cannot be made"]
    assert how == Ended(End.LOST, "")
    assert asked == ["activate-node"]


def test_a_supernode_whose_signature_is_not_accepted_stops_itself(ended: Any) -> None:
    how, asked = ended["a signature that is not accepted"]
    assert how == Ended(End.TURNED_AWAY, "")
    assert set(asked) == {"activate-node"}


def test_a_supernode_that_gives_its_connection_up_does_not_stay_as_an_idle_process(ended: Any) -> None:
    how, asked = ended["a connection that was made and then lost"]
    assert how == Ended(End.LOST, "")
    assert "pull-messages" in asked


def test_a_supernode_that_can_never_start_says_why_with_flowers_own_code(ended: Any) -> None:
    from flwr.supercore.exit import ExitCode

    how, asked = ended["a key that is none"]
    assert how.end is End.FAILED
    assert f"(exit code {ExitCode.SUPERNODE_NODE_AUTH_KEY_INVALID} of Flower)" in how.reason
    assert asked == []


def test_a_supernode_that_was_killed_has_left_no_report(tmp_path: Path) -> None:
    assert adapter.how_it_ended(tmp_path / "none") == Ended(End.LOST, "")

"""What the door lets through of what clients send: their own, within bounds, and nothing in another's name."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import stat
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("flwr")

import httpx
from behind import MOST, NODES, Caller, Opened, open_door, pull_of
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from harness import wait

from ternfed.engines.flower import adapter
from ternfed.engines.flower.adapter import (
    ACTIVATE,
    CONFIRM,
    DEACTIVATE,
    HEARTBEAT,
    PULL,
    PULL_OBJECT,
    PUSH,
    PUSH_OBJECT,
)
from ternfed.engines.flower.certs import Certificates, make_certificates, public_bytes
from ternfed.engines.flower.connections import OWN
from ternfed.engines.flower.errors import InUse
from ternfed.engines.flower.knock import knock
from ternfed.engines.flower.signatures import read_private_key, sign

RUN = 77


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("door") / "certs", [], 3)


@pytest.fixture(scope="module")
def door(made: Certificates) -> Iterator[Opened]:
    with open_door(made, log=made.folder / "door.log") as door:
        yield door


@pytest.fixture
def opened(door: Opened) -> Opened:
    """The door as if nobody had ever come."""
    door.reset()
    return door


def node(client: int) -> Node:
    return Node(node_id=NODES[client])


def tree(root: str, *children: str) -> ObjectTree:
    return ObjectTree(object_id=root, children=[ObjectTree(object_id=child) for child in children])


def reply(client: int, to: str = "m0", source: int | None = None, message: str = "r0", *parts: str) -> bytes:
    said = Metadata(run_id=RUN, message_id=message, reply_to_message_id=to, dst_node_id=adapter.SUPERLINK_NODE)
    said.src_node_id = NODES[client] if source is None else source
    request = PushMessagesRequest(node=node(client), messages_list=[Message(metadata=said)])
    request.message_object_trees.append(tree(message, *(parts or ("a", "b"))))
    return request.SerializeToString()


def give(opened: Opened, client: int, message: str, *objects: str) -> None:
    """Let a client pull a message, as it would from a SuperLink."""
    found = PullMessagesResponse(messages_list=[Message(metadata=Metadata(run_id=RUN, message_id=message))])
    found.message_object_trees.append(tree(message, *objects))
    opened.behind.answers[PULL] = lambda body: found.SerializeToString()
    assert opened.caller(client).call(PULL, pull_of(client)) == 200


def want(opened: Opened, session: str, *objects: str) -> None:
    """Let what is behind the door ask for objects of the next reply."""
    asked = PushMessagesResponse(session_id=session, objects_to_push=objects)
    opened.behind.answers[PUSH] = lambda body: asked.SerializeToString()


def part(client: int, object_id: str, size: int = 10, session: str = "s") -> PushObjectRequest:
    content = b"x" * size
    return PushObjectRequest(
        node=node(client), run_id=RUN, object_id=object_id, object_content=content, session_id=session
    )


def log_of(opened: Opened) -> str:
    assert opened.gate.log is not None
    return opened.gate.log.read_text(encoding="utf-8")


# Who calls


@pytest.mark.parametrize("late", [timedelta(seconds=6), timedelta(seconds=-310), timedelta(days=-1000)])
def test_a_signature_of_another_time_does_not_hold(opened: Opened, late: timedelta) -> None:
    key = read_private_key(opened.certificates.client_key(0))
    old = sign(key, datetime.now(UTC) + late)
    assert opened.caller(0).call(PULL, pull_of(0), **old) == 401
    assert opened.behind.arrived == []


def test_a_key_of_nobody_and_a_signature_by_another_key_are_refused_before_the_body_is_read(opened: Opened) -> None:
    name = adapter.PUBLIC_KEY_HEADER.decode()
    assert opened.caller(2).call(PUSH_OBJECT, b"x" * (1 << 20)) == 401
    assert opened.caller(1).call(PULL, pull_of(0), **{name: opened.signed(0)[name]}) == 401
    assert opened.behind.arrived == []


def test_a_caller_that_has_gone_before_its_address_was_asked_for_is_no_error(opened: Opened) -> None:
    door, said = opened.gate._door, list[object]()
    assert door is not None

    async def unused(*event: object) -> None:
        said.append(event)

    for ends in ({"client": None, "server": ("127.0.0.1", 1)}, {"client": ("127.0.0.1", 1), "server": None}):
        asyncio.run(door({"type": "http", **ends}, unused, unused))  # type: ignore[arg-type]
    assert not said


def test_a_connection_belongs_to_one_client(opened: Opened) -> None:
    first = opened.caller(0)
    assert first.call(HEARTBEAT, SendNodeHeartbeatRequest(node=node(0), heartbeat_interval=30)) == 200
    second = first._replace(client=1)
    assert second.call(HEARTBEAT, SendNodeHeartbeatRequest(node=node(1), heartbeat_interval=30)) == 401


def test_a_client_has_no_more_than_some_connections_and_its_oldest_go(opened: Opened) -> None:
    beat = SendNodeHeartbeatRequest(node=node(0), heartbeat_interval=30)
    other = opened.caller(1)
    assert other.call(HEARTBEAT, SendNodeHeartbeatRequest(node=node(1), heartbeat_interval=30)) == 200
    greedy = [opened.caller(0) for _ in range(OWN + 5)]
    assert {each.call(HEARTBEAT, beat) for each in greedy} == {200}
    wait(lambda: len(opened.gate.connections) == OWN + 1, 10, "the oldest to go")
    assert other.call(HEARTBEAT, SendNodeHeartbeatRequest(node=node(1), heartbeat_interval=30)) == 200


def test_a_call_in_the_name_of_another_node_is_refused(opened: Opened) -> None:
    assert opened.caller(0).call(PULL, pull_of(1)) == 401
    assert opened.caller(0).call(DEACTIVATE, DeactivateNodeRequest(node_id=NODES[1])) == 401
    key = public_bytes(opened.certificates.public_key(1))
    assert opened.caller(0).call(ACTIVATE, ActivateNodeRequest(public_key=key, heartbeat_interval=30)) == 401
    assert opened.behind.arrived == []
    assert "client 0: /v1/fleet/pull-messages in the name of another node" in log_of(opened)


def test_the_bytes_of_a_client_are_all_that_passed_on_its_sockets(opened: Opened) -> None:
    caller = opened.caller(0)
    for _ in range(3):
        assert caller.call(HEARTBEAT, SendNodeHeartbeatRequest(node=node(0), heartbeat_interval=30)) == 200
    wait(lambda: opened.gate.bytes_of(0).up > 3 * 600, 5, "bytes to be counted")
    down, up = opened.gate.bytes_of(0)
    # A handshake of TLS 1.3 with a P-384 certificate is some 1.5 kB down and 0.5 kB up; a call's head is 0.6 kB.
    assert 1_000 < down < 8_000
    assert 1_800 < up < 8_000
    assert opened.gate.bytes_of(1) == (0, 0)


# How much


@pytest.mark.parametrize(("path", "most"), list(adapter.CALLS.items()))
def test_no_body_is_larger_than_its_call_needs(opened: Opened, path: str, most: int) -> None:
    assert most <= (2 << 20 if path == PUSH_OBJECT else 256 << 10 if path == PUSH else 4 << 10)
    try:
        status = opened.caller(0).call(path, b"\0" * (most + 1))
    except OSError:  # the connection is closed before all of it was sent
        status = 413
    assert status == 413
    assert opened.behind.arrived == []


def test_a_body_that_is_no_message_is_refused(opened: Opened) -> None:
    assert opened.caller(0).call(PULL, b"\xff\xff\xff") == 400
    assert opened.behind.arrived == []


def test_fields_that_flower_does_not_know_are_not_handed_on(opened: Opened) -> None:
    unknown = b"\xfa\x3f\x03abc"
    assert opened.caller(0).call(PULL, pull_of(0) + unknown) == 200
    assert opened.behind.arrived[0].body == pull_of(0)


# Whose it is


def test_a_client_answers_only_messages_that_it_was_given_and_as_itself(opened: Opened) -> None:
    give(opened, 0, "m0", "x")
    give(opened, 1, "m1", "y")
    opened.behind.arrived.clear()
    caller = opened.caller(1)
    for attempt in (
        reply(1, "m0"),  # in answer to another's message, whose id it has learnt
        reply(1, "m0", NODES[0]),  # as another
        reply(1, "m1", NODES[0]),
        reply(1, "", adapter.SUPERLINK_NODE),  # a new message, as if the server had sent it
        reply(1, "m9"),
    ):
        assert caller.call(PUSH, attempt) == 403
    assert opened.behind.arrived == []
    assert log_of(opened).count("client 1: /v1/fleet/push-messages") == 5
    assert caller.call(PUSH, reply(1, "m1")) == 200
    assert caller.call(PUSH, reply(1, "m1", None, "r1")) == 403, "another answer to the same message"
    assert caller.call(PUSH, reply(1, "m1")) == 200, "the same answer again, because the first was not heard"


def test_a_client_reads_and_deletes_only_what_it_was_sent(opened: Opened) -> None:
    give(opened, 0, "m0", "x")
    opened.behind.arrived.clear()
    thief, owner = opened.caller(1), opened.caller(0)
    assert thief.call(PULL_OBJECT, PullObjectRequest(node=node(1), run_id=RUN, object_id="x")) == 403
    assert thief.call(CONFIRM, ConfirmMessageReceivedRequest(node=node(1), run_id=RUN, message_object_id="m0")) == 403
    assert opened.behind.arrived == []
    assert owner.call(PULL_OBJECT, PullObjectRequest(node=node(0), run_id=RUN, object_id="x")) == 200
    assert owner.call(CONFIRM, ConfirmMessageReceivedRequest(node=node(0), run_id=RUN, message_object_id="m0")) == 200


def test_what_a_client_may_park_is_bounded(opened: Opened) -> None:
    give(opened, 0, "m0")
    parts = [f"p{i}" for i in range(18)]
    caller = opened.caller(0)
    assert caller.call(PUSH, reply(0, "m0", None, "r0", *[f"p{i}" for i in range(40)])) == 403, "too many objects"
    want(opened, "s", *parts)
    assert caller.call(PUSH, reply(0, "m0", None, "r0", *parts)) == 200
    assert caller.call(PUSH_OBJECT, part(0, "q")) == 403, "an object that nobody asked for"
    assert caller.call(PUSH_OBJECT, part(0, "p0", session="")) == 403
    assert opened.caller(1).call(PUSH_OBJECT, part(1, "p0")) == 403, "into another's reply"
    sent = 0
    while caller.call(PUSH_OBJECT, part(0, parts.pop(), 1 << 20)) == 200:
        sent += 1 << 20
    assert sent == MOST
    assert f"sends more than {MOST} bytes" in log_of(opened)


def test_what_was_not_taken_is_not_counted(opened: Opened) -> None:
    give(opened, 0, "m0")
    want(opened, "s", "a", "b")
    caller = opened.caller(0)
    assert caller.call(PUSH, reply(0)) == 200
    opened.behind.answers[PUSH_OBJECT] = lambda body: PushObjectResponse(stored=False).SerializeToString()
    for _ in range(5):
        assert caller.call(PUSH_OBJECT, part(0, "a", 1 << 20)) == 200


def test_a_reply_is_coming_from_the_moment_that_it_is_begun_until_all_of_it_is_there(opened: Opened) -> None:
    """Whoever asks Flower for one that is not whole waits for it, and one that breaks off would stop the round."""
    give(opened, 0, "m0")
    want(opened, "s", "a", "b")
    caller, seen = opened.caller(0), list[bool]()
    taken = opened.behind.answers[PUSH]
    opened.behind.answers[PUSH] = lambda body: seen.append(opened.gate.is_coming(0, "m0")) or taken(body)
    assert not opened.gate.is_coming(0, "m0")
    assert caller.call(PUSH, reply(0)) == 200
    assert seen == [True], "the SuperLink knew of it before the server did"
    assert opened.gate.is_coming(0, "m0")
    opened.behind.answers[PUSH_OBJECT] = lambda body: PushObjectResponse(stored=False).SerializeToString()
    assert caller.call(PUSH_OBJECT, part(0, "a")) == 200
    opened.behind.answers[PUSH_OBJECT] = lambda body: PushObjectResponse(stored=True).SerializeToString()
    assert caller.call(PUSH_OBJECT, part(0, "b")) == 200
    assert opened.gate.is_coming(0, "m0"), "a was not taken"
    assert caller.call(PUSH_OBJECT, part(0, "a")) == 200
    assert not opened.gate.is_coming(0, "m0")
    assert not opened.gate.is_coming(1, "m0")


def test_replies_that_nobody_waits_for_are_turned_away_and_named(opened: Opened) -> None:
    give(opened, 0, "m0")
    want(opened, "s", "a", "b")
    caller = opened.caller(0)
    assert caller.call(PUSH, reply(0)) == 200
    assert opened.gate.forget(0) == ["r0"]
    assert caller.call(PUSH_OBJECT, part(0, "a")) == 403
    assert caller.call(PUSH, reply(0)) == 403


# Two processes with one key


def test_a_second_process_with_a_key_is_told_so_and_it_is_logged(opened: Opened) -> None:
    key = public_bytes(opened.certificates.public_key(0))
    activation = ActivateNodeRequest(public_key=key, heartbeat_interval=30)
    first, second = opened.caller(0), opened.caller(0)
    assert first.call(ACTIVATE, activation) == 200
    assert second.call(ACTIVATE, activation) == 409
    address, private = f"127.0.0.1:{opened.gate.port}", read_private_key(opened.certificates.client_key(0))
    with pytest.raises(InUse, match="another process is connected with this client's key"):
        knock(address, opened.certificates.client_context(), private)
    assert "client 0: a second process with its key was turned away" in log_of(opened)
    first.http.close()  # as when the first is killed
    wait(lambda: len(opened.gate.connections) == 0, 10, "the end of the connections")
    assert knock(address, opened.certificates.client_context(), private) is None
    assert opened.caller(0).call(ACTIVATE, activation) == 200


def test_one_that_was_killed_is_deactivated_for_its_successor(opened: Opened) -> None:
    key = public_bytes(opened.certificates.public_key(0))
    opened.behind.statuses[ACTIVATE] = 409
    opened.caller(0).call(ACTIVATE, ActivateNodeRequest(public_key=key, heartbeat_interval=30))
    assert [each.path for each in opened.behind.arrived] == [ACTIVATE, DEACTIVATE, ACTIVATE]


# Questions that wait


def test_a_question_for_messages_is_held_until_there_is_one(opened: Opened) -> None:
    opened.behind.answers[PULL] = lambda body: b""
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(opened.caller(0).call(PULL, pull_of(0))))
    asking.start()
    wait(lambda: opened.gate.is_ready(0), 10, "the question")
    time.sleep(0.3)
    assert statuses == []
    opened.behind.answers[PULL] = lambda body: PullMessagesResponse(
        messages_list=[Message(metadata=Metadata(run_id=RUN, message_id="m"))], message_object_trees=[tree("m")]
    ).SerializeToString()
    opened.gate.wake()
    asking.join(10)
    assert statuses == [200]
    assert not opened.gate.is_ready(0), "it has something to do now"


def test_a_client_that_goes_while_its_question_is_held_is_not_ready(opened: Opened) -> None:
    opened.behind.answers[PULL] = lambda body: b""
    caller = opened.caller(0)
    asking = threading.Thread(target=lambda: _quietly(caller), daemon=True)
    asking.start()
    wait(lambda: opened.gate.is_ready(0), 10, "the question")
    for connection in opened.gate.connections.all():
        connection.leave()  # as when its cable is cut
    wait(lambda: not opened.gate.is_ready(0), 10, "the end of the question")


def test_a_door_that_closes_on_held_questions_leaves_no_task_behind(
    made: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("ERROR", "asyncio"), open_door(made) as opened:
        opened.behind.answers[PULL] = lambda body: b""
        askers = [threading.Thread(target=_quietly, args=(opened.caller(0),), daemon=True) for _ in range(3)]
        for each in askers:
            each.start()
        wait(lambda: opened.gate.callers[0].asking == 3, 20, "the questions")
        opened.gate.close()
        gc.collect()
        assert not [record for record in caplog.records if "was destroyed" in record.getMessage()]


def _quietly(caller: Caller) -> None:
    with contextlib.suppress(httpx.TransportError):
        caller.call(PULL, pull_of(0))


def test_the_doors_log_is_for_its_owner_alone(opened: Opened) -> None:
    opened.caller(2).call(PULL, b"")
    assert opened.gate.log is not None
    assert stat.S_IMODE(opened.gate.log.stat().st_mode) == 0o600

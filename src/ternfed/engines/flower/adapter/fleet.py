"""Flower's Fleet API, the calls of SuperNodes: which may come in, how large they may be, and what each one names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

FLEET = "/v1/fleet/"
"""Where the calls of SuperNodes begin."""
ACTIVATE, DEACTIVATE, HEARTBEAT = f"{FLEET}activate-node", f"{FLEET}deactivate-node", f"{FLEET}send-node-heartbeat"
PULL, PUSH = f"{FLEET}pull-messages", f"{FLEET}push-messages"
PULL_OBJECT, PUSH_OBJECT = f"{FLEET}pull-object", f"{FLEET}push-object"
CONFIRM, GET_RUN, GET_FAB = f"{FLEET}confirm-message-received", f"{FLEET}get-run", f"{FLEET}get-fab"

SUPERLINK_NODE = 1
"""The id by which messages name the server."""
SMALL = 4 << 10
CALLS = {
    **dict.fromkeys((ACTIVATE, DEACTIVATE, HEARTBEAT, PULL, PULL_OBJECT, CONFIRM, GET_RUN, GET_FAB), SMALL),
    PUSH: 256 << 10,
    PUSH_OBJECT: 2 << 20,
}
"""The calls that come in, and the most bytes of each. A push names a message's objects; an object has 1 MiB of it."""
MEDIA_TYPE = "application/protobuf"
PUBLIC_KEY_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"
"""A SuperNode's public key (PEM, in base64), the time, and the time's signature (in base64)."""
VERSION_HEADERS = (b"flwr-package-name", b"flwr-package-version", b"flwr-component-name")
MOST_AHEAD, MOST_BEHIND = 5, 305
"""Seconds by which a SuperNode's clock may differ from the SuperLink's; else its signature is not accepted."""


class Malformed(ValueError):
    """A body that is no message of its call."""


class Delivered(NamedTuple):
    """A message that a client was given."""

    message: str
    run: int
    objects: frozenset[str]


class Reply(NamedTuple):
    """A message that a client wants to send."""

    message: str
    run: int
    source: int
    destination: int
    answers: str
    """The message that it replies to."""
    objects: frozenset[str]
    root: str


class Part(NamedTuple):
    """An object of a message, sent or asked for."""

    run: int
    id: str
    session: str = ""
    size: int = 0


class Session(NamedTuple):
    """What a SuperLink still wants of a reply."""

    id: str
    objects: frozenset[str]


def read_call(path: str, body: bytes) -> Any:
    """The request in the body of a call; Malformed where there is none. What Flower does not know is left out."""
    from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
    from google.protobuf.message import DecodeError

    kinds: dict[str, Callable[[], Any]] = {
        ACTIVATE: fleet_pb2.ActivateNodeRequest,
        DEACTIVATE: fleet_pb2.DeactivateNodeRequest,
        HEARTBEAT: heartbeat_pb2.SendNodeHeartbeatRequest,
        PULL: fleet_pb2.PullMessagesRequest,
        PUSH: fleet_pb2.PushMessagesRequest,
        PULL_OBJECT: message_pb2.PullObjectRequest,
        PUSH_OBJECT: message_pb2.PushObjectRequest,
        CONFIRM: message_pb2.ConfirmMessageReceivedRequest,
        GET_RUN: run_pb2.GetRunRequest,
        GET_FAB: fab_pb2.GetFabRequest,
    }
    request = kinds[path]()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise Malformed(str(error)) from error
    request.DiscardUnknownFields()
    return request


def write_call(request: Any) -> bytes:
    return bytes(request.SerializeToString())


def sender_of(request: Any) -> int | bytes:
    """Who a request says it is from: a node's id, or in an activation the public key."""
    if hasattr(request, "public_key"):
        return bytes(request.public_key)
    return int(request.node.node_id if hasattr(request, "node") else request.node_id)


def part_of(request: Any) -> Part:
    """The object that is pushed, pulled, or confirmed."""
    if hasattr(request, "message_object_id"):
        return Part(request.run_id, request.message_object_id)
    if hasattr(request, "object_content"):
        return Part(request.run_id, request.object_id, request.session_id, len(request.object_content))
    return Part(request.run_id, request.object_id)


def reply_of(request: Any) -> Reply:
    """The one message of a push; Malformed where there are more or none."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise Malformed("one message and one tree of objects are needed")
    said, tree = request.messages_list[0].metadata, request.message_object_trees[0]
    return Reply(
        said.message_id,
        said.run_id,
        said.src_node_id,
        said.dst_node_id,
        said.reply_to_message_id,
        frozenset(_objects(tree)),
        tree.object_id,
    )


def read_delivered(answer: bytes) -> list[Delivered]:
    """The messages in the answer to a pull."""
    from flwr.proto.fleet_pb2 import PullMessagesResponse

    found = PullMessagesResponse.FromString(answer)
    pairs = zip(found.messages_list, found.message_object_trees, strict=True)
    return [Delivered(m.metadata.message_id, m.metadata.run_id, frozenset(_objects(tree))) for m, tree in pairs]


def read_session(answer: bytes) -> Session:
    """What the answer to a push asks for."""
    from flwr.proto.fleet_pb2 import PushMessagesResponse

    found = PushMessagesResponse.FromString(answer)
    return Session(found.session_id, frozenset(found.objects_to_push))


def is_stored(answer: bytes) -> bool:
    """Whether the SuperLink has taken a pushed object."""
    from flwr.proto.message_pb2 import PushObjectResponse

    return bool(PushObjectResponse.FromString(answer).stored)


def deactivation(node: int) -> bytes:
    """The body of the call by which a SuperNode says that it is gone."""
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest

    return bytes(DeactivateNodeRequest(node_id=node).SerializeToString())


def _objects(tree: Any) -> Iterator[str]:
    """The ids in a tree of objects, without recursion: protobuf allows a hundred levels."""
    left = [tree]
    while left:
        one = left.pop()
        yield str(one.object_id)
        left.extend(one.children)

"""A door with something behind it that writes down what arrives, in the place of a SuperLink."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesResponse, Reconnect
from flwr.proto.message_pb2 import PushObjectResponse
from flwr.proto.node_pb2 import Node
from harness import wait

from ternfed.engines.flower import adapter, processes
from ternfed.engines.flower.certs import Certificates, public_bytes
from ternfed.engines.flower.gate import Gate
from ternfed.engines.flower.signatures import read_private_key, sign

NODES = {0: 1000, 1: 1001}
"""The nodes of the clients that the door knows."""
MOST = 3 << 20
"""Bytes that a client's message may have."""


ANSWERS: dict[str, Callable[[bytes], bytes]] = {
    adapter.PULL: lambda body: PullMessagesResponse(reconnect=Reconnect(reconnect=1)).SerializeToString(),
    adapter.PUSH: lambda body: PushMessagesResponse(session_id="s").SerializeToString(),
    adapter.PUSH_OBJECT: lambda body: PushObjectResponse(stored=True).SerializeToString(),
}


class Arrived(NamedTuple):
    """A request, as the server behind the door read it."""

    method: str
    path: str
    fields: dict[str, str]
    body: bytes


class Behind:
    """An HTTPS server of uvicorn's, with either of its parsers."""

    def __init__(self, certificates: Certificates, parser: str) -> None:
        self.arrived: list[Arrived] = []
        self.answers = dict(ANSWERS)
        self.statuses: dict[str, int] = {}
        self.address = "127.0.0.1", processes.free_port()
        self.server = uvicorn.Server(
            uvicorn.Config(
                self.answer,
                http=parser,  # type: ignore[arg-type]
                host=self.address[0],
                port=self.address[1],
                ssl_certfile=certificates.server,
                ssl_keyfile=certificates.server_key,
                interface="asgi3",
                ws="none",
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=1,
            )
        )
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.arrived.append(Arrived(scope["method"], scope["path"], fields, body))
        content = self.answers.get(scope["path"], lambda body: b"")(body)
        head = [(b"content-type", adapter.MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(content))]
        status = self.statuses.get(scope["path"], 200)
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": content})


class Opened(NamedTuple):
    """A door, what is behind it, and the certificates of both."""

    gate: Gate
    behind: Behind
    certificates: Certificates

    def signed(self, client: int) -> dict[str, str]:
        return sign(read_private_key(self.certificates.client_key(client)))

    def reset(self) -> None:
        """Forget everybody."""
        for connection in self.gate.connections.all():
            connection.leave()
        wait(lambda: len(self.gate.connections) == 0, 10, "connections to end")
        for caller in self.gate.callers.values():
            caller.custody.forget()
            caller.bytes.down, caller.bytes.up, caller.asked = 0, 0, 0.0
        self.behind.arrived.clear()
        self.behind.statuses.clear()
        self.behind.answers = dict(ANSWERS)
        if self.gate.log is not None and self.gate.log.exists():
            os.truncate(self.gate.log, 0)

    def caller(self, client: int, **options: Any) -> Caller:
        return Caller(self, client, httpx.Client(verify=self.certificates.client_context(), timeout=30, **options))


class Caller(NamedTuple):
    """A client with a key of its own, that sends whatever it likes."""

    opened: Opened
    client: int
    http: httpx.Client

    def call(self, path: str, request: Any, **fields: str) -> int:
        """The status of the answer to a call."""
        content = request if isinstance(request, bytes) else request.SerializeToString()
        url = f"https://127.0.0.1:{self.opened.gate.port}{path}"
        head = {**self.opened.signed(self.client), **fields}
        return self.http.post(url, content=content, headers=head).status_code


@contextmanager
def open_door(certificates: Certificates, parser: str = "h11", log: Path | None = None) -> Iterator[Opened]:
    """A door for two clients."""
    behind = Behind(certificates, parser)
    behind.thread.start()
    keys = {public_bytes(certificates.public_key(index)): index for index in NODES}
    gate = Gate(certificates, "127.0.0.1", 0, behind.address, keys, NODES, MOST, log)
    gate.open()
    try:
        yield Opened(gate, behind, certificates)
    finally:
        gate.close()
        behind.server.should_exit = True
        behind.thread.join(10)


def pull_of(client: int) -> bytes:
    return PullMessagesRequest(node=Node(node_id=NODES[client])).SerializeToString()


def filled(head: bytes, fields: dict[str, str], body: bytes) -> bytes:
    """A request of the corpus, with a signature in it."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()
    return head.replace(b"{SIGNED}", lines).replace(b"{LENGTH}", b"%d" % len(body)).replace(b"{BODY}", body)


def forged(fields: dict[str, str]) -> dict[str, str]:
    """The same fields with a signature that is none."""
    name = adapter.SIGNATURE_HEADER.decode()
    return {**fields, name: base64.b64encode(os.urandom(102)).decode()}


async def send_raw(port: int, context: ssl.SSLContext, data: bytes, seconds: float = 3.0) -> bytes:
    """What comes back to bytes that are sent over TLS, until the connection is closed or for so long."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    answer = b""
    try:
        writer.write(data)
        while part := await asyncio.wait_for(reader.read(1 << 16), seconds):
            answer += part
    except (TimeoutError, OSError):
        pass
    finally:
        writer.transport.abort()
    return answer

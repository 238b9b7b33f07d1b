"""The one port that clients reach, in front of a SuperLink that only this machine reaches.

It speaks TLS, lets through the calls of Flower's Fleet API and nothing else (a SuperLink's port also takes run and key
management from whoever reaches it), counts the bytes of each client on the socket, and holds a client's question for
messages until there is one, which saves Flower's three seconds between two questions.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import NamedTuple, cast

from ternfed.engines.flower.adapter import FLEET, deactivation
from ternfed.engines.flower.certs import Certificates
from ternfed.engines.flower.http1 import Closed, Head, read_answer, read_request, readdressed
from ternfed.engines.flower.knock import KNOCK

CALL = re.compile(FLEET + rb"[a-z-]+")
PULL = FLEET + b"pull-messages"
ACTIVATE = FLEET + b"activate-node"
DEACTIVATE = FLEET + b"deactivate-node"
QUIET = (PULL, FLEET + b"send-node-heartbeat")
"""Calls after which there is nothing new for the server to look at."""
HOLD = 15.0
"""Seconds that a question for messages may wait; Flower's client gives up after 30."""
IDLE = 120.0
"""Seconds after which a connection without a request is closed."""
HANDSHAKE = 20.0
HEAD = 32 << 10
"""Bytes of the head of a request, at most."""
BODY = 64 << 20
"""Bytes of a request, at most; Flower cuts arrays at 5 MiB."""
CONNECTIONS = 1024
KEPT = 3.0
"""Seconds that an unused connection to the SuperLink is kept; it closes them after 5."""
READY = 5.0
"""A client that asked for messages no longer ago than this is waiting for one; Flower asks every 3 s."""


@dataclass
class Counter:
    """Bytes of one client on the socket, TLS and all, as the server sees them."""

    down: int = 0
    up: int = 0
    asked: float = 0.0
    """When it last asked for messages."""
    asking: int = 0
    """Questions that are being held."""
    call: bytes = b""
    """What it last asked for."""


class Bytes(NamedTuple):
    """A client's bytes up to a moment."""

    down: int
    up: int


@dataclass
class Gate:
    """Runs in a thread of its own from `open` to `close`."""

    certificates: Certificates
    host: str
    port: int
    inner: tuple[str, int]
    """Where the SuperLink listens."""
    clients: Mapping[bytes, int]
    """The registered public keys (PEM) and whose they are."""
    nodes: Mapping[int, int]
    """Each client's node in Flower."""
    counters: dict[int, Counter] = field(default_factory=dict)
    refused: int = 0
    """Requests that were turned away: of a key that is not registered, or for what no client may ask."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _server: asyncio.Server | None = None
    _news: threading.Event = field(default_factory=threading.Event)
    _mail: int = 0
    """Goes up with every message that the server pushes."""
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)
    _connections: set[_Connection] = field(default_factory=set)

    def open(self) -> None:
        """Listen; OSError where the port is taken."""
        self.counters = {index: Counter() for index in self.clients.values()}
        self._outside, self._inside = self.certificates.server_context(), self.certificates.client_context()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gate", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def close(self) -> None:
        """Stop listening and end every connection."""
        if self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._thread = None

    def wake(self) -> None:
        """There are new messages: answer the questions that are held."""
        self._loop.call_soon_threadsafe(self._wake)

    def wait(self, seconds: float) -> None:
        """Until a client has sent something, or so long."""
        self._news.wait(seconds)
        self._news.clear()

    def is_ready(self, client: int) -> bool:
        """Whether a client is there and waits for a message."""
        counter = self.counters[client]
        return counter.asking > 0 or time.monotonic() - counter.asked < READY

    def is_uploading(self, client: int) -> bool:
        """Whether a client is sending its upload: for who watches, nothing depends on it."""
        return self.counters[client].call.startswith(FLEET + b"push-")

    def bytes_of(self, client: int) -> Bytes:
        return Bytes(self.counters[client].down, self.counters[client].up)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), self.host, self.port, backlog=CONNECTIONS)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wake(self) -> None:
        self._mail += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def mail(self, seen: int, seconds: float) -> None:
        """Until messages were pushed after the `seen`-th time, or so long."""
        if self._mail != seen:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, seconds)
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(future)


class _Connection(asyncio.Protocol):
    """TLS over one socket, by hand, so that every byte that passes is counted."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.counter: Counter | None = None
        self.early = Counter()
        """What passed before the client was known."""
        self.task: asyncio.Task[None] | None = None
        self._reader = asyncio.StreamReader(limit=HEAD)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = gate._outside.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self.gate._connections) >= CONNECTIONS:
            self._transport.abort()
            return
        self.gate._connections.add(self)
        self._reader.set_transport(self._transport)
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def connection_lost(self, error: Exception | None) -> None:
        self._may_write.set()
        self._reader.feed_eof()
        self.gate._connections.discard(self)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        (self.counter or self.early).up += len(data)
        self._incoming.write(data)
        try:
            if not self._is_open:
                self._tls.do_handshake()
                self._is_open = True
            while plain := self._tls.read(1 << 16):
                self._reader.feed_data(plain)
            self._reader.feed_eof()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # plain HTTP, or a client that does not trust this certificate
            self._flush()
            self._transport.close()
            return
        self._flush()

    def eof_received(self) -> None:
        self._reader.feed_eof()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._transport.is_closing():
            (self.counter or self.early).down += len(data)
            self._transport.write(data)

    async def _write(self, data: bytes) -> None:
        if self._transport.is_closing():
            raise Closed
        self._tls.write(data)
        self._flush()
        await self._may_write.wait()

    def _is_gone(self) -> bool:
        return self._transport.is_closing() or self._reader.at_eof()

    def _known_as(self, client: int) -> None:
        """From now on these are the bytes of a client that the SuperLink has recognised."""
        counter = self.gate.counters[client]
        if self.counter is None:
            counter.down += self.early.down
            counter.up += self.early.up
        self.counter = counter

    async def _inner(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection to the SuperLink; a new one where the SuperLink may have closed it."""
        if self._upstream is not None and time.monotonic() - self._used > KEPT:
            self._upstream[1].close()
            self._upstream = None
        if self._upstream is None:
            self._upstream = await asyncio.open_connection(*self.gate.inner, ssl=self.gate._inside, limit=HEAD)
        self._used = time.monotonic()
        return self._upstream

    async def _serve(self) -> None:
        try:
            wait = HANDSHAKE
            while True:
                head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), wait)
                wait = IDLE
                request = read_request(head)
                client = self.gate.clients.get(request.key)
                call = CALL.fullmatch(request.path)
                if client is not None:
                    self.gate.counters[client].call = request.path
                if request.path == KNOCK or client is None or call is None or request.length > BODY:
                    await self._answer_itself(request, client)
                    break
                if request.path == PULL:
                    await self._pull(request, head, client)
                elif request.path == ACTIVATE:
                    await self._activate(request, head, client)
                else:
                    await self._pass(request, head, client)
        except (Closed, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError, ssl.SSLError):
            pass
        finally:
            if self._upstream is not None:
                self._upstream[1].close()
            self._transport.close()

    async def _answer_itself(self, request: Head, client: int | None) -> None:
        """What does not concern the SuperLink: whether a key is registered, and requests that are turned away."""
        status = b"200 OK" if request.path == KNOCK else b"404 Not Found"
        if client is None and (request.path == KNOCK or CALL.fullmatch(request.path)):
            status = b"401 Unauthorized"
        self.gate.refused += not status.startswith(b"200")
        date = formatdate(usegmt=True).encode()
        head = b"HTTP/1.1 %s\r\ndate: %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        await self._write(head % (status, date))

    async def _ask(self, head: bytes, body: bytes) -> tuple[int, bytes, bytes]:
        """A whole request to the SuperLink: status, head and content of the answer."""
        reader, upstream = await self._inner()
        upstream.write(head + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status, length = read_answer(answer)
        content = await reader.readexactly(length)
        self._used = time.monotonic()
        return status, answer, content

    async def _activate(self, request: Head, head: bytes, client: int) -> None:
        """A client that starts. Flower takes one that was killed for alive for a minute, and refuses its successor.

        Its owner has signed this request, so the gate lets Flower know that the earlier one is gone, and asks again.
        """
        body = await asyncio.wait_for(self._reader.readexactly(request.length), IDLE)
        status, answer, content = await self._ask(head, body)
        if status != 200:
            earlier = deactivation(self.gate.nodes[client])
            await self._ask(readdressed(head, DEACTIVATE, len(earlier)), earlier)
            status, answer, content = await self._ask(head, body)
        if status == 200:
            self._known_as(client)
        await self._write(answer + content)

    async def _pass(self, request: Head, head: bytes, client: int) -> None:
        """Hand a request on as it comes, and the answer back."""
        reader, upstream = await self._inner()
        upstream.write(head)
        left = request.length
        while left:
            part = await asyncio.wait_for(self._reader.read(min(left, 1 << 16)), IDLE)
            if not part:
                raise Closed
            upstream.write(part)
            await upstream.drain()
            left -= len(part)
        answer = await reader.readuntil(b"\r\n\r\n")
        status, length = read_answer(answer)
        if status == 200:
            self._known_as(client)
        await self._write(answer)
        while length:
            part = await reader.read(min(length, 1 << 16))
            if not part:
                raise Closed
            await self._write(part)
            length -= len(part)
        self._used = time.monotonic()
        if request.path not in QUIET:
            self.gate._news.set()

    async def _pull(self, request: Head, head: bytes, client: int) -> None:
        """A question for messages: answered when there is one, or after a while with none."""
        body = await asyncio.wait_for(self._reader.readexactly(request.length), IDLE)
        counter, end = self.gate.counters[client], time.monotonic() + HOLD
        held = False
        try:
            while True:
                seen = self.gate._mail
                status, answer, content = await self._ask(head, body)
                if status == 200:
                    self._known_as(client)
                    counter.asked = time.monotonic()
                if status != 200 or content or time.monotonic() >= end or self._is_gone():
                    break
                if not held:
                    counter.asking, held = counter.asking + 1, True
                await self._mail_or_gone(seen, end - time.monotonic())
                if self._is_gone():
                    raise Closed
            if content:
                counter.asked = 0.0  # it has something to do now
        finally:
            counter.asking -= held
            if self._is_gone():
                counter.asked = 0.0
        await self._write(answer + content)

    async def _mail_or_gone(self, seen: int, seconds: float) -> None:
        mail = asyncio.ensure_future(self.gate.mail(seen, max(seconds, 0.0)))
        gone = asyncio.ensure_future(self._reader.read(1))  # nothing is said before the answer: only an end comes
        try:
            await asyncio.wait({mail, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                self._transport.close()
        finally:
            for each in (mail, gone):
                each.cancel()
            await asyncio.gather(mail, gone, return_exceptions=True)

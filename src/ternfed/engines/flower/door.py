"""The door: an ASGI application that lets the calls of registered clients through to a SuperLink, each one made anew.

A request is read by uvicorn. Here its call must be on the list, its signature must hold, its body must be no larger
than the call needs, and what it names must be the caller's. Then another request is written for the SuperLink from
what was understood; nothing of the first is passed on as it came.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ternfed.engines.flower import adapter
from ternfed.engines.flower.adapter import ACTIVATE, CALLS, CONFIRM, DEACTIVATE, PULL, PULL_OBJECT, PUSH, PUSH_OBJECT
from ternfed.engines.flower.connections import Bytes, Connection, Connections
from ternfed.engines.flower.custody import Custody
from ternfed.engines.flower.knock import KNOCK
from ternfed.engines.flower.signatures import Signed, verify

if TYPE_CHECKING:
    import httpx

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

QUIET = (PULL, adapter.HEARTBEAT)
"""Calls after which there is nothing new for the server to look at."""
HOLD = 15.0
"""Seconds that a question for messages may wait; Flower's client gives up after 30."""
IDLE = 120.0
"""Seconds after which a client's connection is closed when nothing comes: the rest of a body, or another call."""
READY = 5.0
"""A client that asked for messages no longer ago than this is waiting for one; Flower asks every 3 s."""
SECOND = "a second process with its key was turned away"
VERSION = re.compile(rb"[\w.+-]{1,64}")
OF_OURS = (
    *(adapter.PUBLIC_KEY_HEADER, adapter.TIMESTAMP_HEADER, adapter.SIGNATURE_HEADER),
    *(b"content-length", b"transfer-encoding", *adapter.VERSION_HEADERS),
)
"""The fields of a request that are read; no other one matters."""

log = logging.getLogger("ternfed.door")


class Gone(Exception):
    """The client has left before its answer."""


class Answer(NamedTuple):
    status: int
    content: bytes = b""
    kind: str = "text/plain"
    closes: bool = False


class Refusal(Exception):
    """A request that is turned away: its status, and why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass
class Caller:
    """A registered client, as the door sees it."""

    index: int
    node: int
    custody: Custody
    bytes: Bytes = field(default_factory=Bytes)
    asked: float = 0.0
    """When it last asked for messages."""
    asking: int = 0
    """Questions that are being held."""
    is_uploading: bool = False
    """Its last call sent a part of a reply."""
    replied: float = 0.0
    """When it last sent a part of a reply, until it asks for messages again."""
    between: float = 0.0
    """Seconds from the end of a reply to its next question: the longest of late, half forgotten with each reply."""

    def is_ready(self) -> bool:
        """Whether it is there and waits for a message."""
        return self.asking > 0 or time.monotonic() - self.asked < READY

    def asks(self) -> None:
        """It asks for messages."""
        now = time.monotonic()
        if self.replied:
            self.between, self.replied = max(now - self.replied, self.between / 2), 0.0
        self.asked = now


@dataclass
class Mail:
    """Tells held questions that there are new messages."""

    count: int = 0
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)

    def came(self) -> None:
        self.count += 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def after(self, seen: int) -> asyncio.Future[None]:
        """Done when messages have come after the `seen`-th time."""
        future = asyncio.get_running_loop().create_future()
        if self.count != seen:
            future.set_result(None)
        else:
            self._waiting.add(future)
        return future

    def give_up(self, future: asyncio.Future[None]) -> None:
        self._waiting.discard(future)
        future.cancel()


@dataclass
class Door:
    """The application."""

    keys: Mapping[bytes, int]
    """The registered public keys (PEM) and whose they are."""
    callers: Mapping[int, Caller]
    connections: Connections
    superlink: httpx.AsyncClient
    news: Callable[[], None]
    """To be called when a client has sent something that the server may wait for."""
    mail: Mail = field(default_factory=Mail)
    is_closing: bool = False
    refused: int = 0
    """Requests that were turned away."""

    def close(self) -> None:
        """Answer the questions that are held: there will be no messages."""
        self.is_closing = True
        self.mail.came()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        ends = scope.get("client"), scope.get("server")
        if scope["type"] != "http" or None in ends:  # who had gone before the system was asked for its address
            return
        connection = self.connections.of((*scope["client"][:2], scope["server"][0]))
        if connection is None:
            return
        try:
            answer = await self._answer(scope, receive, connection)
        except Gone:
            return
        except Refusal as refusal:
            self.refused += 1
            log.warning("%s: %d, %s", connection.ends[0], refusal.status, refusal)
            answer = Answer(refusal.status, closes=True)
        except Exception:  # whatever a client sends, the door stays open for the others
            log.exception("%s: an error of the door's own", connection.ends[0])
            answer = Answer(500, closes=True)
        if connection.client is not None:
            connection.until = time.monotonic() + IDLE
        fields = [(b"content-type", answer.kind.encode("latin-1")), (b"content-length", b"%d" % len(answer.content))]
        fields += [(b"connection", b"close")] * answer.closes
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})
        await send({"type": "http.response.body", "body": answer.content})

    def recognise(self, connection: Connection, caller: Caller) -> None:
        """A connection is a client's: the SuperLink has accepted a call on it."""
        if connection.client is None:
            connection.known_as(caller.index, caller.bytes)
            self.connections.bound(caller.index)

    async def _answer(self, scope: Mapping[str, Any], receive: Receive, connection: Connection) -> Answer:
        path, fields = read_head(scope)
        signed = verify(fields, self.keys)
        if signed is None or connection.client not in (None, signed.client):
            raise Refusal(401, f"{path} without a signature that holds")
        caller = self.callers[signed.client]
        if path == KNOCK:
            if self.connections.others_of(caller.index, connection):
                raise Refusal(409, f"client {caller.index}: {SECOND}")
            return Answer(200, closes=True)
        caller.is_uploading = path in (PUSH, PUSH_OBJECT)
        length = read_length(fields, CALLS[path])
        connection.until = time.monotonic() + IDLE
        call = _Call(self, path, await read_body(receive, length), caller, connection, signed, versions(fields))
        answer = await call.answer(receive)
        if caller.is_uploading:
            caller.replied = time.monotonic()
        if answer.status == 200:
            self.recognise(connection, caller)
            if path not in QUIET:
                self.news()
        return answer


def read_head(scope: Mapping[str, Any]) -> tuple[str, dict[bytes, bytes]]:
    """The call and its fields; Refusal for what is no call of a client."""
    path = scope["raw_path"].decode("ascii", "replace")
    is_call = path in CALLS or path == KNOCK
    if not is_call or scope["method"] != "POST" or scope["query_string"] or scope["http_version"] != "1.1":
        raise Refusal(404, f"{scope['method'][:10]!r} {path[:100]!r} is no call of a client")
    fields: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in OF_OURS:
            if name in fields:
                raise Refusal(400, f"{name!r} twice")
            fields[name] = value
    return path, fields


def read_length(fields: Mapping[bytes, bytes], most: int) -> int:
    """How long the body is; Refusal where that is not said, or is more than the call may have."""
    said = fields.get(b"content-length", b"")
    if b"transfer-encoding" in fields or not re.fullmatch(rb"\d{1,12}", said):
        raise Refusal(411, "a body without a length")
    if int(said) > most:
        raise Refusal(413, f"{int(said)} bytes, {most} are accepted")
    return int(said)


async def read_body(receive: Receive, length: int) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise Gone
        body += event.get("body", b"")
        if len(body) > length:
            raise Refusal(400, "a body that is longer than it says")
        if not event.get("more_body", False):
            return bytes(body)


def versions(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """Which Flower the caller has; the SuperLink notes it."""
    found = {name: fields.get(name, b"") for name in adapter.VERSION_HEADERS}
    return {name.decode(): value.decode() for name, value in found.items() if VERSION.fullmatch(value)}


class _Call:
    """One call of a client whose signature holds."""

    def __init__(
        self,
        door: Door,
        path: str,
        body: bytes,
        caller: Caller,
        connection: Connection,
        signed: Signed,
        version: Mapping[str, str],
    ) -> None:
        self.door, self.path, self.caller, self.connection = door, path, caller, connection
        self.fields = {"content-type": adapter.MEDIA_TYPE, "accept": adapter.MEDIA_TYPE, **version, **signed.fields}
        try:
            self.request = adapter.read_call(path, body)
        except adapter.Malformed as error:
            raise self._refusal(400, f"{path}: {error}") from error
        claimed = adapter.sender_of(self.request)
        if claimed != caller.node and (not isinstance(claimed, bytes) or door.keys.get(claimed) != caller.index):
            # A SuperNode that was connected to an earlier server has another id: at 401 it ends and is started anew.
            raise self._refusal(401, f"{path} in the name of another node")

    async def answer(self, receive: Receive) -> Answer:
        match self.path:
            case adapter.ACTIVATE:
                return await self._activate()
            case adapter.PULL:
                return await self._pull(receive)
            case adapter.PUSH:
                return await self._push()
            case adapter.PUSH_OBJECT:
                return await self._push_object()
        if self.path in (PULL_OBJECT, CONFIRM):
            part, custody = adapter.part_of(self.request), self.caller.custody
            self._hold(custody.refuses_pull(part) if self.path == PULL_OBJECT else custody.refuses_confirmation(part))
        return await self._ask(self.path, adapter.write_call(self.request))

    async def _activate(self) -> Answer:
        """A client that starts. Flower takes one that was killed for alive for a minute, and refuses its successor.

        Where the earlier one's connections are closed, the door lets Flower know that it is gone, and asks again.
        """
        if self.door.connections.others_of(self.caller.index, self.connection):
            raise self._refusal(409, SECOND)
        self.caller.custody.forget()
        body = adapter.write_call(self.request)
        answer = await self._ask(ACTIVATE, body)
        if answer.status == 200:
            return answer
        await self._ask(DEACTIVATE, adapter.deactivation(self.caller.node))
        return await self._ask(ACTIVATE, body)

    async def _push(self) -> Answer:
        try:
            reply = adapter.reply_of(self.request)
        except adapter.Malformed as error:
            raise self._refusal(400, str(error)) from error
        self._hold(self.caller.custody.refuses_reply(reply))
        self.caller.custody.ask(reply)
        answer = await self._ask(PUSH, adapter.write_call(self.request))
        if answer.status == 200:
            self.caller.custody.begin(reply, adapter.read_session(answer.content))
        return answer

    async def _push_object(self) -> Answer:
        part, custody = adapter.part_of(self.request), self.caller.custody
        self._hold(custody.refuses_object(part))
        custody.count(part)
        is_taken = False
        try:
            answer = await self._ask(PUSH_OBJECT, adapter.write_call(self.request))
            is_taken = answer.status == 200 and adapter.is_stored(answer.content)
        finally:
            if not is_taken:
                custody.count(part, -1)
        if is_taken:
            custody.arrive(part)
        return answer

    async def _pull(self, receive: Receive) -> Answer:
        """A question for messages: answered when there is one, or after a while with none."""
        caller, mail, end = self.caller, self.door.mail, time.monotonic() + HOLD
        body = adapter.write_call(self.request)
        gone = asyncio.ensure_future(receive())  # nothing more is said before the answer: only an end comes
        is_held = False
        try:
            while True:
                seen = mail.count
                answer = await self._ask(PULL, body)
                if answer.status == 200:
                    self.door.recognise(self.connection, caller)
                    caller.asks()
                left = end - time.monotonic()
                if answer.status != 200 or answer.content or left <= 0 or gone.done():
                    break
                if not is_held:
                    caller.asking, is_held = caller.asking + 1, True
                came = mail.after(seen)
                either: set[asyncio.Future[Any]] = {came, gone}
                await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                mail.give_up(came)
                if gone.done():
                    raise Gone
                if self.door.is_closing:
                    return Answer(503, closes=True)
            if answer.status == 200 and answer.content:
                for message in adapter.read_delivered(answer.content):
                    caller.custody.give(message)
                    caller.asked = 0.0  # it has something to do now
            return answer
        finally:
            caller.asking -= is_held
            if gone.done():
                caller.asked = 0.0
            gone.cancel()
            await asyncio.wait({gone})  # no task is left behind when the door closes

    async def _ask(self, path: str, body: bytes) -> Answer:
        """A request of our own to the SuperLink."""
        import httpx

        try:
            found = await self.door.superlink.post(path, content=body, headers=self.fields)
        except httpx.TransportError as error:
            raise self._refusal(503, f"{path}: the SuperLink does not answer ({type(error).__name__})") from error
        is_message = found.headers.get("content-type", "").startswith(adapter.MEDIA_TYPE)
        return Answer(found.status_code, found.content, adapter.MEDIA_TYPE if is_message else "application/json")

    def _hold(self, reason: str | None) -> None:
        """Turn the call away where there is a reason; at 403 a SuperNode drops the message, and asks for others."""
        if reason is not None:
            raise self._refusal(403, f"{self.path}: {reason}")

    def _refusal(self, status: int, reason: str) -> Refusal:
        return Refusal(status, f"client {self.caller.index}: {reason}")

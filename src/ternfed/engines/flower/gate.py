"""The one port that clients reach, in front of a SuperLink that only this machine reaches.

uvicorn speaks TLS and HTTP there, the door (`door.py`) is its application, and the sockets below (`connections.py`)
are counted and limited. All of it runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from asyncio.sslproto import SSLProtocol
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ternfed.engines.flower.certs import Certificates
from ternfed.engines.flower.connections import Connections, Listener, listen, room
from ternfed.engines.flower.custody import Custody
from ternfed.engines.flower.door import Caller, Door
from ternfed.engines.flower.errors import NetworkError
from ternfed.engines.flower.presence import Bytes

if TYPE_CHECKING:
    import uvicorn

HEAD = 16 << 10
"""Bytes of the head of a request, at most."""
KEEP = 75.0
"""Seconds that a connection is kept between two calls: longer than the 30 s between two heartbeats, so that a client
that lives has one open."""
AT_ONCE = 64
"""Connections that are taken before the others are read again: far fewer than strangers may have."""
READ = 32 << 10
"""Bytes that are read at once from a connection with TLS, whose records have 16 KiB."""
INSIDE = 32
"""Connections to the SuperLink."""
KEPT = 3.0
"""Seconds that an unused connection to the SuperLink is kept; it closes them after 5."""
UPLOAD = 256 << 20
"""Bytes of a client's message, where the model does not say it more exactly."""
CLOSING = 60.0
"""Seconds that the door's own thread is given to end; one that is left behind would leave tasks behind."""
LOGS = ("ternfed.door", "uvicorn.error")


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
    most: int = UPLOAD
    """Bytes that a client's message may have."""
    log: Path | None = None
    """Where it is written who was turned away, and why."""
    connections: Connections = field(default_factory=lambda: Connections(room()))
    callers: dict[int, Caller] = field(default_factory=dict)
    _thread: threading.Thread | None = None
    _news: threading.Event = field(default_factory=threading.Event)
    _started: threading.Event = field(default_factory=threading.Event)
    _loop: asyncio.AbstractEventLoop | None = None
    _server: uvicorn.Server | None = None
    _door: Door | None = None
    _handler: logging.Handler | None = None

    def open(self) -> None:
        """Listen; OSError where the port is taken."""
        self.callers = {
            index: Caller(index, self.nodes[index], Custody(self.nodes[index], self.most))
            for index in self.clients.values()
        }
        listeners = listen(self.host, self.port, self.connections)
        self.port = listeners[0].getsockname()[1]
        self._handler = _log_to(self.log)
        self._thread = threading.Thread(target=self._run, args=(listeners,), name="gate", daemon=True)
        self._thread.start()
        if not self._started.wait(30):
            raise NetworkError("the server's door did not open")

    def close(self) -> None:
        """Stop listening and end every connection."""
        if self._thread is None or self._server is None:
            return
        if self._loop is not None and self._door is not None:
            self._loop.call_soon_threadsafe(self._door.close)
        self._server.should_exit = True
        self._thread.join(CLOSING)
        self._thread = None
        for name in LOGS:
            if self._handler is not None:
                logging.getLogger(name).removeHandler(self._handler)
                self._handler.close()

    def wake(self) -> None:
        """There are new messages: answer the questions that are held."""
        if self._loop is not None and self._door is not None:
            self._loop.call_soon_threadsafe(self._door.mail.came)

    def wait(self, seconds: float) -> None:
        """Until a client has sent something, or so long."""
        self._news.wait(seconds)
        self._news.clear()

    def is_ready(self, client: int) -> bool:
        """Whether a client is there and waits for a message."""
        return self.callers[client].is_ready()

    def is_uploading(self, client: int) -> bool:
        """Whether a client is sending its upload: for who watches, nothing depends on it."""
        return self.callers[client].is_uploading

    def is_coming(self, client: int, message: str) -> bool:
        """Whether a client's reply to a message was begun and is not whole yet."""
        return self.callers[client].custody.is_coming(message)

    @property
    def refused(self) -> int:
        """Requests that were turned away."""
        return 0 if self._door is None else self._door.refused

    @property
    def latency(self) -> float:
        """The longest time between two questions for messages of a client that was there."""
        return max((caller.between for caller in self.callers.values()), default=0.0)

    def bytes_of(self, client: int) -> Bytes:
        counted = self.callers[client].bytes
        return Bytes(counted.down, counted.up)

    def forget(self, client: int) -> list[str]:
        """Nobody waits for what a client was given any more; the replies that it has begun."""
        if self._loop is None or self._loop.is_closed():
            return []

        async def forget() -> list[str]:
            return self.callers[client].custody.forget()

        return asyncio.run_coroutine_threadsafe(forget(), self._loop).result(30)

    def _run(self, listeners: list[Listener]) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._serve(listeners))

    async def _serve(self, listeners: list[Listener]) -> None:
        import httpx
        import uvicorn

        # asyncio gives each connection with TLS a buffer of 256 KiB at once, also one that says nothing.
        SSLProtocol.max_size = min(SSLProtocol.max_size, READ)
        host, port = self.inner
        limits = httpx.Limits(max_connections=INSIDE, max_keepalive_connections=INSIDE, keepalive_expiry=KEPT)
        async with httpx.AsyncClient(
            base_url=f"https://{host}:{port}",
            verify=self.certificates.client_context(),
            trust_env=False,
            timeout=httpx.Timeout(30.0, pool=None),
            limits=limits,
        ) as superlink:
            self._door = Door(self.clients, self.callers, self.connections, superlink, self._news.set)
            self._server = uvicorn.Server(self._config(self._door))
            tending = asyncio.create_task(self._tend())
            try:
                await self._server.serve(sockets=list(listeners))
            finally:
                tending.cancel()

    def _config(self, door: Any) -> uvicorn.Config:
        import uvicorn

        return uvicorn.Config(
            door,
            http="h11",  # it bounds a head, and httptools does not
            h11_max_incomplete_event_size=HEAD,
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            backlog=AT_ONCE,
            timeout_keep_alive=int(KEEP),
            timeout_graceful_shutdown=1,
            ssl_context_factory=lambda config, default: self.certificates.server_context(),
        )

    async def _tend(self) -> None:
        """End connections whose time is over, once per second."""
        while self._server is not None and not self._server.started:
            await asyncio.sleep(0.01)
        self._started.set()
        while True:
            self.connections.sweep()
            await asyncio.sleep(1.0)


class _PrivateLog(RotatingFileHandler):
    """At most 2 MiB, whatever strangers do, and readable by this user alone."""

    def _open(self) -> TextIOWrapper:
        return os.fdopen(
            os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8"
        )


def _log_to(file: Path | None) -> logging.Handler:
    """What the door and uvicorn have to say goes there and nowhere else."""
    handler: logging.Handler = logging.NullHandler()
    if file is not None:
        handler = _PrivateLog(file, maxBytes=1 << 20, backupCount=1, encoding="utf-8", delay=True)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name in LOGS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    return handler

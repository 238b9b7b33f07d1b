"""The live page's server: Starlette and uvicorn in a thread of their own, reading run folders and nothing else.

It answers seven paths, sets no cookies, and loads nothing from elsewhere. On loopback it accepts only requests that
name this machine, so that a page of another site cannot read it through a name of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ternfed.pages.shared import templates
from ternfed.watch.follow import Board, Snapshot
from ternfed.watch.metrics import metrics_text
from ternfed.watch.state import Told

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

LOOK = 0.5
"""Seconds between two looks at the folders."""
FIND = 3.0
"""Seconds between two searches for new runs."""
ALIVE = 15.0
"""Seconds without news after which a page is told that the server is still there."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PAGE = {
    "/": ("index.html", "text/html"),
    "/base.css": ("base.css", "text/css"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""Paths of the page's parts, the template behind each, and its kind."""


@dataclass(frozen=True)
class Address:
    """Where a page is."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"


class _Eyes:
    """What is seen of the folders, looked at no more often than needed, however many pages there are."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._board = Board(folders)
        self._found = self._looked = float("-inf")
        self._seen: list[Snapshot] = []

    def look(self, again: bool = False) -> list[Snapshot]:
        """The runs as they stand, or stood a moment ago unless they are to be looked at `again`."""
        now = time.monotonic()
        if again or now - self._found >= FIND:
            self._board.find()
            self._found = now
        if again or now - self._looked >= 0.8 * LOOK:
            self._seen = self._board.look()
            self._looked = time.monotonic()
        return self._seen


def make_app(
    folders: Sequence[Path], stopping: threading.Event, host: str = "127.0.0.1", page: bool = True
) -> Starlette:
    """The application: the page with its events, or without `page` the numbers for Prometheus alone."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    eyes = _Eyes(folders)
    made = templates("watch", "page") if page else None
    parts = {path: made.get_template(name).render() for path, (name, _) in PAGE.items()} if made is not None else {}

    async def file(request: Request) -> Response:
        path = request.url.path
        return Response(parts[path], media_type=PAGE[path][1], headers=HEADERS)

    async def state(request: Request) -> Response:
        news = Told().news(eyes.look(), time.time())
        return JSONResponse(news or {"runs": []}, headers=HEADERS)

    async def events(request: Request) -> Response:
        return StreamingResponse(_events(eyes, stopping), media_type="text/event-stream", headers=HEADERS)

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(metrics_text(eyes.look()), media_type="text/plain; version=0.0.4", headers=HEADERS)

    routes = [Route("/metrics", metrics)]
    if page:
        routes += [Route(path, file) for path in PAGE]
        routes += [Route("/state", state), Route("/events", events)]
    names = [*LOOPBACK, "[::1]"] if host in LOOPBACK else ["*"]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=names)])


async def _events(eyes: _Eyes, stopping: threading.Event) -> AsyncIterator[str]:
    """What is new, as long as there is a server; then how everything ended, and that this is the end."""
    told, quiet = Told(), 0.0
    yield "retry: 2000\n\n"
    while True:
        last = stopping.is_set()
        news = told.news(eyes.look(again=last), time.time())
        if news is not None:
            yield f"data: {json.dumps(news, allow_nan=False)}\n\n"
            quiet = 0.0
        elif quiet >= ALIVE:
            yield ": still here\n\n"
            quiet = 0.0
        if last:
            break
        for _ in range(5):  # the end is noticed sooner than news
            if not stopping.is_set():
                await asyncio.sleep(LOOK / 5)
        quiet += LOOK
    yield "event: end\ndata: the server has ended\n\n"


@contextmanager
def serving(folders: Sequence[Path], host: str = "127.0.0.1", port: int = 0, page: bool = True) -> Iterator[Address]:
    """The page, served by a thread while the block lasts. ValueError where nobody can listen there; ImportError names
    the extra where Starlette or uvicorn is absent."""
    try:
        import uvicorn
    except ImportError as error:
        raise ImportError("the live page needs the extra [watch]: pip install 'ternfed[watch]'") from error
    stopping = threading.Event()
    listener = _listen(host, port)
    address = Address(host, listener.getsockname()[1])
    config = uvicorn.Config(
        make_app(folders, stopping, host, page), log_config=None, log_level="error", access_log=False, lifespan="off",
        server_header=False, timeout_graceful_shutdown=3, ws="none",
    )  # fmt: skip
    server: Any = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="watch", daemon=True)
    thread.start()
    try:
        yield address
    finally:
        stopping.set()
        server.should_exit = True
        thread.join(5)
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens; bound here so that a taken port is one sentence, not a thread that dies."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise ValueError(
            f"{host}:{port}: cannot listen there ({error.strerror}); name another address or port"
        ) from error

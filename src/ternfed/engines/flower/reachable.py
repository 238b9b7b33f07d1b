"""Says when a client's server cannot be reached and when it can again: Flower's SuperNode tries on without a word."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 10.0
"""Seconds between two looks while all is well: a connection that is opened and closed, nothing is sent."""
FIRST, LONGEST = 2.0, 60.0
"""Seconds between two looks when it is not: twice as long each time, up to a minute."""
PATIENCE = 5.0
"""Seconds that a server may take to accept a connection."""


@contextmanager
def telling(server: str, say: Callable[[str], None], away: str | None = None) -> Iterator[None]:
    """While the block lasts. `away` is why the server could not be reached just before, None where it could."""
    stop = threading.Event()
    thread = threading.Thread(target=_look, args=(server, say, away, stop), name="reachable", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


def _look(server: str, say: Callable[[str], None], away: str | None, stop: threading.Event) -> None:
    wait = FIRST
    if away is None:
        say(f"connected to {server}")
    else:
        say(f"{server} does not answer yet ({away}), trying again in {wait:g} s")
    while not stop.wait(EVERY if away is None else wait):
        reason = reason_away(server)
        if stop.is_set():
            return
        if reason is None and away is not None:
            say(f"connected to {server}")
            wait = FIRST
        elif reason is not None:
            wait = FIRST if away is None else min(2 * wait, LONGEST)
            what = "lost the server" if away is None else f"{server} does not answer"
            say(f"{what} ({reason}), trying again in {wait:g} s")
        away = reason


def reason_away(server: str) -> str | None:
    """Why no connection can be opened; None where one can."""
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None

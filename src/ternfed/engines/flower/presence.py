"""What a server's rounds ask of whoever knows which clients are there: our own door, or somebody else's SuperLink."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Bytes(NamedTuple):
    """A client's bytes up to a moment."""

    down: int
    up: int


class Presence(Protocol):
    """Who is there, and when something happens."""

    def is_ready(self, client: int) -> bool:
        """Whether a client is there and waits for a message."""

    def is_uploading(self, client: int) -> bool:
        """Whether a client is sending its upload: for who watches, nothing depends on it."""

    def is_coming(self, client: int, message: str) -> bool:
        """Whether a client's reply to a message was begun and is not whole yet. One that never will be is not asked
        for: Flower would wait for it for more than an hour, and the replies of all others with it."""

    def bytes_of(self, client: int) -> Bytes:
        """What passed between a client and the server."""

    def wake(self) -> None:
        """There are new messages."""

    def wait(self, seconds: float) -> None:
        """Until a client has sent something, or so long."""

    def forget(self, client: int) -> list[str]:
        """Nobody waits for what a client was given any more; the replies that it has begun."""

    @property
    def refused(self) -> int:
        """Requests that were turned away."""

    @property
    def latency(self) -> float:
        """Seconds between two signs of life of a client that is there, as far as they have been seen."""

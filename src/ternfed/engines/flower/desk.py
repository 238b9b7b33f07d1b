"""Who is there in a federation that somebody else runs: its SuperNodes are asked which of them serve ternfed.

A SuperNode says nothing of the process behind it. So each new one is sent a short message (`hello`); a `ternfed client`
answers with its number, any other app with an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ternfed.engines.flower.client_round import HELLO
from ternfed.engines.flower.link import Link
from ternfed.engines.flower.presence import Bytes

LOOK = 1.0
"""Seconds between two looks at who is there."""
AGAIN = 30.0
"""Seconds after which a SuperNode that did not answer as ours is asked again."""


@dataclass
class Desk:
    """Keeps `link.nodes` up to date: which SuperNode each client is behind."""

    link: Link
    clients: int
    """How many there may be."""
    say: Callable[[str], None]
    refused: int = 0
    latency: float = 0.0
    _online: set[int] = field(default_factory=set)
    _asked: dict[str, int] = field(default_factory=dict)
    _next: dict[int, float] = field(default_factory=dict)
    """When each SuperNode may be asked."""
    _looked: float = 0.0

    def is_ready(self, client: int) -> bool:
        self.look()
        return self.link.nodes.get(client) in self._online

    def is_uploading(self, client: int) -> bool:
        return False

    def is_coming(self, client: int, message: str) -> bool:
        return False  # another process knows

    def bytes_of(self, client: int) -> Bytes:
        return Bytes(0, 0)  # they pass through another process

    def wake(self) -> None:
        """The SuperLink hands messages out by itself."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)
        self.look()

    def forget(self, client: int) -> list[str]:
        return []

    def look(self) -> None:
        """Ask who is online, and those that nobody knows who they are."""
        from flwr.app import Message, RecordDict

        now = time.monotonic()
        if now < self._looked + LOOK:
            return
        self._looked = now
        self._online = set(self.link.grid.get_node_ids())
        unknown = self._online - set(self.link.nodes.values()) - set(self._asked.values())
        due = [node for node in sorted(unknown) if self._next.get(node, 0.0) <= now]
        messages = [Message(RecordDict(), node, "train", ttl=AGAIN, group_id=HELLO) for node in due]
        if messages:
            self._asked.update(zip(self.link.grid.push_messages(messages), due, strict=True))
        for reply in self.link.pull(list(self._asked)):
            node = self._asked.pop(str(reply.metadata.reply_to_message_id))
            self._next[node] = now + AGAIN
            self._note(node, reply)

    def _note(self, node: int, reply: Any) -> None:
        said = {} if reply.has_error() else dict(reply.content.config_records.get(HELLO, {}))
        client = said.get("client")
        if not isinstance(client, int) or not 0 <= client < self.clients:
            self.refused += not reply.has_error()
            return
        before = self.link.nodes.get(client)
        if before is not None and before != node and before in self._online:
            self.refused += 1
            self.say(f"node {node} says that it is client {client}, which node {before} is; it is left out")
        else:
            self.link.nodes[client] = node

"""A grid of Flower's that says what of a run was chance, and can be told it, so that a run can be played again.

Flower draws node ids anew in every run, replies come as they are ready, and who is asked in which order is drawn by
Python's `random`, which Flower's threads draw from too, whenever they have to wait: a seed does not decide it. Sums of
floats depend on their order, and what is random about the rounding on the node id. So replies are in the order of the
node ids here; whoever knows the ids, and who was asked in which round, can have the same bits in one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

PARTITION = "partition-id"
"""The metric by which a client of the benchmark says which part of the data it has."""


@dataclass
class OrderedGrid:
    """Nodes and replies by node ids; notes who was asked."""

    grid: Any
    shown: Sequence[Sequence[int]] = ()
    """The nodes that are there in each round; all where nothing is said."""
    partitions: dict[int, int] = field(default_factory=dict)
    """The part of the data that each node has, as far as it has said."""
    rounds: dict[int, set[int]] = field(default_factory=dict)
    """The nodes that were asked in each round."""
    failed: int = 0
    """Replies that were errors."""

    def get_node_ids(self) -> Iterable[int]:
        there = sorted(self.grid.get_node_ids())
        done = len(self.rounds)
        return there if done >= len(self.shown) else [node for node in there if node in self.shown[done]]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
        asked = list(messages)
        for message in asked:
            number = int(message.content["config"]["server-round"])
            self.rounds.setdefault(number, set()).add(message.metadata.dst_node_id)
        replies = list(self.grid.send_and_receive(asked, timeout=timeout))
        for reply in replies:
            self._note(reply)
        return sorted(replies, key=lambda reply: int(reply.metadata.src_node_id))

    def _note(self, reply: Any) -> None:
        self.failed += reply.has_error()
        for record in [] if reply.has_error() else reply.content.metric_records.values():
            if PARTITION in record:
                self.partitions[reply.metadata.src_node_id] = int(record[PARTITION])

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes in the order of their parts."""
        return tuple(sorted(self.partitions, key=self.partitions.__getitem__))

    @property
    def asked(self) -> tuple[tuple[int, ...], ...]:
        """The parts of the data whose nodes were asked, of each round."""
        places = {node: place for place, node in enumerate(self.nodes)}
        return tuple(tuple(sorted(places[n] for n in asked if n in places)) for asked in self.rounds.values())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)


def digest_of(arrays: Mapping[str, Any]) -> str:
    """Of a model's names and bits: two models with the same one are the same."""
    digest = sha256()
    for name, array in arrays.items():
        digest.update(name.encode() + array.numpy().tobytes())
    return digest.hexdigest()[:16]

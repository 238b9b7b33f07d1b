"""A grid of Flower's whose answers come in the order of the questions, so that a run can be played again.

Flower draws node ids anew in every run, and replies come as they are ready. Sums of floats depend on their order, and
what is random about the rounding on the node id; so whoever knows the ids can have the same bits in one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

PARTITION = "partition-id"
"""The metric by which a client of the benchmark says which part of the data it has."""


@dataclass
class OrderedGrid:
    """Nodes by their ids, replies as they were asked for."""

    grid: Any
    partitions: dict[int, int] = field(default_factory=dict)
    """The part of the data that each node has, as far as it has said."""

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.grid.get_node_ids())

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
        asked = list(messages)
        places = {message.metadata.dst_node_id: place for place, message in enumerate(asked)}
        replies = list(self.grid.send_and_receive(asked, timeout=timeout))
        for reply in replies:
            self._note(reply)
        return sorted(replies, key=lambda reply: places[reply.metadata.src_node_id])

    def _note(self, reply: Any) -> None:
        for record in [] if reply.has_error() else reply.content.metric_records.values():
            if PARTITION in record:
                self.partitions[reply.metadata.src_node_id] = int(record[PARTITION])

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes in the order of their parts."""
        return tuple(sorted(self.partitions, key=self.partitions.__getitem__))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)


def digest_of(arrays: Mapping[str, Any]) -> str:
    """Of a model's names and bits: two models with the same one are the same."""
    digest = sha256()
    for name, array in arrays.items():
        digest.update(name.encode() + array.numpy().tobytes())
    return digest.hexdigest()[:16]

"""What a server holds in a round, by the number of clients: the sums, and a few numbers for each client."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ternfed.aggregation.exact import GridSum
from ternfed.aggregation.mean import Sums, add
from ternfed.bench.tables import markdown
from ternfed.models import mlp
from ternfed.wire import Message

COUNTS = (100, 1_000, 10_000, 100_000)


@dataclass(frozen=True)
class Held:
    """After so many uploads."""

    clients: int
    sums: int
    """Bytes of the tensors that add up."""
    notes: int
    """Bytes of what is noted of each client: samples, loss, round."""


def run(counts: Iterable[int] = COUNTS) -> Iterator[Held]:
    """The paper's MLP, the weighted mean; the same upload from every client."""
    torch.manual_seed(0)
    tensors = {name: parameter.detach() for name, parameter in mlp().named_parameters()}
    state, sent = Sums(), 0
    for count in counts:
        for client in range(sent, count):
            add(state, client, Message(tensors, {"samples": 3.0, "loss": float(client), "round": 1.0}))
        sent = count
        limbs = [limb for total in state.tensors.values() if isinstance(total, GridSum) for limb in total.limbs]
        yield Held(count, sum(limb.nbytes for limb in limbs), _notes(state))


def table(rows: Iterable[Held]) -> str:
    """The rows as a Markdown table."""
    return markdown(
        ("clients", "sums", "notes", "notes per client"),
        [
            (f"{row.clients:,}", f"{row.sums / 1e3:,.0f} kB", f"{row.notes / 1e3:,.0f} kB",
             f"{row.notes / row.clients:.0f} bytes")
            for row in rows
        ],
    )  # fmt: skip


def _notes(state: Sums) -> int:
    each = (
        sys.getsizeof(note) + sys.getsizeof(note[1]) + sum(map(sys.getsizeof, note[1].values()))
        for note in state.numbers.values()
    )
    return sys.getsizeof(state.numbers) + sum(each)

"""The mean of the clients' models weighted by their samples, in memory that does not grow with their number.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017. The sums are exact (`exact.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ternfed.aggregation.aggregation import (
    Aggregation,
    Uploads,
    check_values,
    holds_floats,
    refuse_second,
    samples_of,
    value_of,
)
from ternfed.aggregation.exact import GridSum, WholeSum, sum_for
from ternfed.wire import Message, is_large


@dataclass(eq=False)
class Sums:
    """What has arrived so far."""

    tensors: dict[str, GridSum | WholeSum] = field(default_factory=dict)
    numbers: dict[int, tuple[int, Mapping[str, float]]] = field(default_factory=dict)
    """(samples, numbers) of each client."""
    skipped: int = 0


def aggregation() -> Aggregation[Sums]:
    """The weighted mean."""
    return Aggregation("mean", Sums, add, finish)


def add(state: Sums, client: int, message: Message) -> None:
    """Add a client's model, weighted by its samples."""
    if not message.tensors:
        state.skipped += 1
        return
    refuse_second(client, state.numbers)
    samples = samples_of(message)
    check_values(message)  # before any of it is added
    for name, value in message.tensors.items():
        if is_large(value) and holds_floats(value):
            total = state.tensors.setdefault(name, GridSum())
            assert isinstance(total, GridSum)
            total.add_rows(value, samples, message.largest[name])
        else:
            tensor, largest = value_of(message, name)
            state.tensors.setdefault(name, sum_for(tensor)).add(tensor, samples, largest)
    state.numbers[client] = samples, message.numbers


def finish(state: Sums) -> Uploads:
    """Every sum divided by the number of all samples."""
    weight = sum(samples for samples, _ in state.numbers.values())
    if not weight:
        return Uploads({}, {}, len(state.numbers), state.skipped)
    # A sum is let go as soon as its mean is there: all of them are two models.
    average = {name: state.tensors.pop(name).mean(weight) for name in list(state.tensors)}
    totals: dict[str, float] = {}
    for client in sorted(state.numbers):  # floats, whose sum depends on the order: so it is always this one
        samples, numbers = state.numbers[client]
        for key, number in numbers.items():
            totals[key] = totals.get(key, 0.0) + samples * number
    return Uploads(average, {key: total / weight for key, total in totals.items()}, len(state.numbers), state.skipped)

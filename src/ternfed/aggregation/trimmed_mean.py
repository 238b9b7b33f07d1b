"""The trimmed mean: of each coordinate, the largest and the smallest values are left out before averaging.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018,
Definition 2. Of m uploads, ⌊β·m⌋ values are cut off at each end, so fewer liars than that cannot move the result far.
Clients count alike, whatever number of samples they claim. All uploads of a round are held in memory until its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor, fsum

import torch
from torch import Tensor

from ternfed.aggregation.aggregation import Aggregation, Uploads, refuse_second, values_of
from ternfed.aggregation.exact import WholeSum
from ternfed.wire import Message

AT_ONCE = 1 << 20
"""Coordinates that are sorted at a time: sorting needs several times their memory."""


@dataclass(eq=False)
class Held:
    """The uploads of a round."""

    messages: dict[int, Message] = field(default_factory=dict)
    skipped: int = 0


def aggregation(trim: float = 0.2) -> Aggregation[Held]:
    """The mean of what is left when the share `trim` is cut off at each end."""
    if not 0 <= trim < 0.5:
        raise ValueError(f"trim = {trim}: 0 to below 0.5 is needed")
    # The last bit of a product such as 0.29 · 100 must not decide.
    return of_the_middle("trimmed_mean", lambda count: floor(trim * count + 1e-9))


def of_the_middle(name: str, cut: Callable[[int], int]) -> Aggregation[Held]:
    """The mean of the middle values of each coordinate, `cut(count)` left out at each end."""

    def finish(state: Held) -> Uploads:
        # In the order of the clients' indices, so that equal values such as 0 and -0 are sorted alike every time.
        messages = [state.messages[client] for client in sorted(state.messages)]
        if not messages:
            return Uploads({}, {}, 0, state.skipped)
        beyond = cut(len(messages))
        average = {key: _middle_of(messages, key, beyond) for key in messages[0].tensors}
        numbers = {key: _middle([m.numbers[key] for m in messages], beyond) for key in messages[0].numbers}
        return Uploads(average, numbers, len(messages), state.skipped)

    return Aggregation(name, Held, add, finish)


def add(state: Held, client: int, message: Message) -> None:
    """Keep a client's model."""
    if not message.tensors:
        state.skipped += 1
        return
    refuse_second(client, state.messages)
    values_of(message)  # refuses what cannot be averaged
    state.messages[client] = message


def _middle_of(messages: Sequence[Message], name: str, cut: int) -> Tensor:
    """The tensor of that name, (clients, …) sorted and the middle averaged, some coordinates at a time."""
    rows = [values_of(Message({name: message.tensors[name]}, {}))[name] for message in messages]
    largest, flat = max(row.largest for row in rows), [row.tensor.reshape(-1) for row in rows]
    parts = []
    for at in range(0, max(len(flat[0]), 1), AT_ONCE):
        stack = torch.stack([row[at : at + AT_ONCE] for row in flat]).sort(dim=0).values
        parts.append(_mean(stack[cut : len(stack) - cut], largest))
    return torch.cat(parts).view(rows[0].tensor.shape)


def _mean(kept: Tensor, largest: float) -> Tensor:
    """The mean of rows; one after another, because `sum` may add them in another order on another machine."""
    if not kept.is_floating_point():
        whole = WholeSum()
        for row in kept:
            whole.add(row, 1, largest)
        return whole.mean(len(kept))
    total = torch.zeros(kept.shape[1:], dtype=torch.float64)
    for row in kept:
        total += row.double()
    return (total / len(kept)).float()


def _middle(numbers: Sequence[float], cut: int) -> float:
    kept = sorted(numbers)[cut : len(numbers) - cut]
    return fsum(kept) / len(kept)

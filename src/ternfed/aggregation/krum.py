"""Krum: of all uploads the one that lies closest to its neighbours, as it is.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
NeurIPS 2017. With n uploads, of which f lie, each is scored by the sum of its squared distances to the n - f - 2 others
that are nearest, and the lowest score wins. f is the most that the rule can bear, ⌊(n - 3) / 2⌋. One client's model is
what all get, so it suits clients with similar data. All uploads of a round are held in memory until its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ternfed.aggregation.aggregation import Aggregation, Uploads, values_of
from ternfed.aggregation.trimmed_mean import Held, add
from ternfed.wire import Message


def aggregation() -> Aggregation[Held]:
    """The upload in the middle of the others."""
    return Aggregation("krum", Held, add, finish)


def finish(state: Held) -> Uploads:
    """The winner; of several with the same score, the client with the lowest index."""
    if not state.messages:
        return Uploads({}, {}, 0, state.skipped)
    clients = sorted(state.messages)
    messages = [state.messages[client] for client in clients]
    scores = _scores(messages)
    winner = messages[scores.index(min(scores))]
    average = {
        name: value.tensor.float() if value.tensor.is_floating_point() else value.tensor
        for name, value in values_of(winner).items()
    }
    return Uploads(average, dict(winner.numbers), len(messages), state.skipped)


def _scores(messages: Sequence[Message]) -> list[float]:
    count = len(messages)
    near = max(count - max((count - 3) // 2, 0) - 2, 1)
    squares = torch.zeros(count, count, dtype=torch.float64)
    for name in messages[0].tensors:
        rows = [values_of(Message({name: message.tensors[name]}, {}))[name].tensor for message in messages]
        if not rows[0].is_floating_point():
            continue
        for one in range(count):
            for other in range(one):
                square = torch.sum((rows[one].double() - rows[other].double()) ** 2)
                squares[one, other] += square
                squares[other, one] += square
    # The nearest of all is the upload itself.
    return [sum(sorted(row)[1 : near + 1]) for row in squares.tolist()]

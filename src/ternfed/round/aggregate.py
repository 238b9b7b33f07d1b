"""The weighted average of messages as they arrive, in memory that does not grow with their number.

Terms are rounded to a grid of 2⁻³⁰ and added as float64, where sums of grid points below 2²³ are exact. So the order
of arrival cannot change a bit of the result, and the grid is 64 times finer than float32's own at 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ternfed.algorithms.algorithm import Uploads, Weights
from ternfed.quantize.ternary import check_finite
from ternfed.wire import Message, dense

GRID = float(2**30)


@dataclass
class Average:
    """A running sum; `add` messages, then read `uploads`."""

    tensors: Weights = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    weight: int = 0
    count: int = 0
    skipped: int = 0

    def add(self, message: Message) -> None:
        """Add a client's model, weighted by its samples; one without tensors only counts as skipped."""
        if not message.tensors:
            self.skipped += 1
            return
        samples = int(message.numbers["samples"])
        terms = {name: _term(dense(value), samples, name) for name, value in message.tensors.items()}
        for name, term in terms.items():
            self.tensors[name] = self.tensors[name].add_(term) if name in self.tensors else term
        for key, number in message.numbers.items():
            self.numbers[key] = self.numbers.get(key, 0.0) + samples * number
        self.weight += samples
        self.count += 1

    def uploads(self) -> Uploads:
        """What arrived, averaged: float32, or int64 where only whole numbers were sent."""
        average = {name: _result(total, self.weight) for name, total in self.tensors.items()}
        numbers = {key: total / self.weight for key, total in self.numbers.items()}
        return Uploads(average, numbers, self.count, self.skipped)


def _term(value: Tensor, samples: int, name: str) -> Tensor:
    if not value.is_floating_point():
        return value * samples
    check_finite(value, name)
    return (value.double() * (samples * GRID)).round_()


def _result(total: Tensor, weight: int) -> Tensor:
    return total // weight if not total.is_floating_point() else (total / (weight * GRID)).float()

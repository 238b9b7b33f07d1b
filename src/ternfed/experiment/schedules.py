"""How the learning rate falls from round to round."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True)
class Constant:
    """The same rate in every round."""

    depends_on_rounds: ClassVar[str | None] = None
    """What depends on the number of rounds, so that a run cannot be made longer; None where nothing does."""

    def rate_at(self, rate: float, round: int, rounds: int) -> float:
        """The rate of a round, `rate` being that of the first, round 1."""
        return rate


@dataclass(frozen=True)
class Exponential:
    """The rate is multiplied by `decay` after every so many rounds."""

    decay: float = 0.95
    every: int = field(default=5, metadata={"key": "decay_every"})
    """The setting `decay_every` of an experiment."""
    depends_on_rounds: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay = {self.decay}: above 0 and at most 1 is allowed")
        if self.every < 1:
            raise ValueError(f"decay_every = {self.every}: a whole number of at least 1 is allowed")

    def rate_at(self, rate: float, round: int, rounds: int) -> float:
        return rate * self.decay ** ((round - 1) // self.every)


@dataclass(frozen=True)
class Cosine:
    """The rate falls to zero over the rounds, along half a cosine."""

    depends_on_rounds: ClassVar[str | None] = "the rates of its cosine schedule depend"

    def rate_at(self, rate: float, round: int, rounds: int) -> float:
        return rate * 0.5 * (1 + math.cos(math.pi * min(1.0, (round - 1) / rounds)))


Schedule = Constant | Exponential | Cosine

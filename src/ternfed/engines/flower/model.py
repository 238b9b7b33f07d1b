"""The model of a round in somebody else's Flower app, what its strategy sees of it, and what it costs to send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ternfed.algorithms.algorithm import Algorithm, Server, Weights
from ternfed.engines.flower.layout import Layout, State, WrongArrays
from ternfed.engines.flower.modes import moved


@dataclass
class Traffic:
    """Bytes of one exchange with the clients, and of the same arrays as float32."""

    down: int = 0
    up: int = 0
    plain_down: int = 0
    plain_up: int = 0

    def metrics(self) -> dict[str, float]:
        """As they appear in the run's metrics."""
        made: dict[str, float] = {"ternfed-bytes-down": self.down, "ternfed-bytes-up": self.up}
        if self.plain_down:
            made["ternfed-share-of-float32-down"] = self.down / self.plain_down
        if self.plain_up:
            made["ternfed-share-of-float32-up"] = self.up / self.plain_up
        return made


@dataclass(frozen=True, eq=False)
class Model:
    """The model of a round as both sides have it, and how it is sent."""

    layout: Layout
    algorithm: Algorithm
    server: Server
    at: int
    """The number of this broadcast."""

    @property
    def weights(self) -> Weights:
        """What clients receive."""
        return self.server.weights

    @property
    def state(self) -> State:
        """The same as the user has it."""
        return self.layout.state(self.weights)

    def after(self, weights: Weights) -> Model:
        """The model moved to where somebody wants it; what the next broadcast leaves out is not forgotten."""
        floats = set(self.layout.network.floats)
        change = {n: t - self.weights[n] if n in floats else t for n, t in weights.items()}
        return replace(self, server=moved(self.algorithm, self.server, change), at=self.at + 1)


def for_strategy(layout: Layout, state: State) -> State:
    """Arrays as the strategy inside sees them: whole numbers as floats that nobody changes."""
    whole = {entry.name for entry in layout.entries if np.dtype(entry.dtype).kind in "biu"}
    return {n: array.astype(np.float64) if n in whole else array for n, array in state.items()}


def averaged(model: Model, arrays: State, exact: Sequence[State]) -> Weights:
    """The strategy's model; whole numbers are the largest that came, other arrays those of the first who sent any."""
    if not model.layout.fits(arrays):
        raise WrongArrays("the strategy inside returned other arrays than the model's")
    lossless = {n: array for n, array in model.state.items() if n in set(model.layout.lossless)}
    for name in lossless:
        came = [state[name] for state in exact]
        if came:
            whole = came[0].dtype.kind in "biu"
            lossless[name] = np.maximum.reduce(came) if whole else came[0]
    return model.layout.tensors({**arrays, **lossless})

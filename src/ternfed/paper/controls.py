"""What a run is compared with: FedAvg, FedAvg at its best rate, and the same algorithm with trits that never change."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ternfed.paper.groups import Group


class Controls(NamedTuple):
    """The groups with the same data, network, clients, rounds and epochs; None where there is none."""

    fedavg: Group | None
    """As published, or with the rate of its row."""
    tuned: Group | None
    """At the best rate that was tried on validation data."""
    frozen: Group | None
    """The same algorithm, ternary layers and training, at a rate of its own, with trits that never change. T-FedAvg as
    published starts otherwise than the recipe, and has a control of its own."""

    @property
    def best(self) -> Group | None:
        """FedAvg as good as it was made: tuned where it was."""
        return self.tuned or self.fedavg

    @property
    def floats(self) -> Group | None:
        """FedAvg as what its messages cost: the same however it was tuned, but for the last bits of the coding."""
        return self.fedavg or self.tuned


def controls_of(group: Group, groups: Sequence[Group]) -> Controls:
    """Who a group is compared with among others; of several, the one with the most seeds, never the better one."""
    alike = [other for other in groups if other.finished and cell_of(other) == cell_of(group)]

    def first(fits: Callable[[Group], bool]) -> Group | None:
        return max(filter(fits, alike), key=lambda other: len(other.shown), default=None)

    return Controls(
        fedavg=first(lambda other: other.algorithm == "fedavg" and other.role != "tuned"),
        tuned=first(lambda other: other.algorithm == "fedavg" and other.role == "tuned"),
        frozen=first(lambda other: other.role == "frozen" and _trains_like(group) == _trains_like(other)),
    )


def _trains_like(group: Group) -> tuple[object, ...]:
    """What a frozen control shares with its row: all of its training but the rate, the best one for each."""
    published = group.preset == "paper"
    training = {key: value for key, value in group.settings["training"].items() if key != "rate"}
    return group.algorithm, published, group.setting("model", "ternary"), training


def cell_of(group: Group) -> str:
    """What runs must share to be compared: everything but how they train and send."""
    return json.dumps([place_of(group), group.planned])


def place_of(group: Group) -> str:
    """The same without rounds and epochs: data, network and clients.

    The share that is held out on the server does not count, and the layers that are ternary mean nothing to FedAvg.
    """
    settings = group.settings
    data = {key: value for key, value in settings["data"].items() if key != "hold_out"}
    model = {key: value for key, value in settings["model"].items() if key != "ternary"}
    federation = {key: settings["federation"][key] for key in ("clients", "participation")}
    return json.dumps([data, model, federation], sort_keys=True)

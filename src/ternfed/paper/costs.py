"""What an exchange costs: bits that were really sent, and the paper's formula for the same networks and rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ternfed.algorithms.algorithm import Network
from ternfed.data.sets import without_samples
from ternfed.experiment.named import NETWORKS, OF_ANY_NETWORK, make_network, network_options
from ternfed.experiment.settings import Table
from ternfed.paper.groups import Group


@dataclass(frozen=True)
class Count:
    """Parameters of a network."""

    all: int
    ternary: int
    first: int
    """In its first layer."""
    ends: tuple[bool, bool] = (False, False)
    """Whether the first and the last weight matrix are ternary."""

    def bits(self, ternary: bool, first: bool = True) -> int:
        """An upload by the paper's formula: 32 bits per number, 2 where it is ternary."""
        others = self.all - (self.ternary if ternary else 0) - (0 if first else self.first)
        return 32 * others + (2 * self.ternary if ternary else 0)


def sends_float32(group: Group) -> bool:
    """Whether what is not quantized travels in full precision."""
    return group.setting("algorithm", "dense") in (None, "float32")


def network_of(settings: Table) -> Network | None:
    """A run's network, shapes alone; None for a network or data set of the user's own."""
    model, data = settings["model"], without_samples(settings["data"]["dataset"])
    if data is None or model["name"] not in NETWORKS:
        return None
    ternary = model.get("ternary", "inner")
    try:
        options = network_options(model["name"], {k: v for k, v in model.items() if k not in OF_ANY_NETWORK})
        with torch.device("meta"):  # shapes only: no memory, no random numbers
            return make_network(
                model["name"], ternary if isinstance(ternary, str) else tuple(ternary), options, data, 0
            )
    except (ValueError, TypeError):  # settings of another version, or of nobody's
        return None


def count(settings: Table) -> Count | None:
    """The parameters of a run's network; None where it is not known."""
    network = network_of(settings)
    if network is None:
        return None
    sizes = {name: parameter.numel() for name, parameter in network.model.named_parameters()}
    matrices = [name for name, parameter in network.model.named_parameters() if parameter.dim() > 1]
    return Count(
        sum(sizes.values()),
        sum(sizes[name] for name in network.ternary),
        next(iter(sizes.values())),
        (matrices[0] in network.ternary, matrices[-1] in network.ternary),
    )


def which_ternary(settings: Table) -> Literal["inner", "first", "all"]:
    """Which layers of a run's network are ternary: inner ones alone, the first too, or the last as well."""
    chosen = settings["model"].get("ternary", "inner")
    found = None if chosen in ("inner", "all") else count(settings)
    first, last = (chosen == "all",) * 2 if found is None else found.ends
    return "all" if last else "first" if first else "inner"


def sent(group: Group) -> tuple[float, float]:
    """Bits up and down over the whole run."""
    return 8 * group.total(lambda r: r.bytes_up), 8 * group.total(lambda r: r.bytes_down)


def times_smaller(group: Group, full: Group, way: Literal["up", "down"]) -> float:
    """How many times fewer bytes than another group, per exchange: their rounds may differ in number."""
    place = 0 if way == "up" else 1
    own, other = sent(group)[place] / group.exchanges(), sent(full)[place] / full.exchanges()
    return other / own if own else float("inf")


def formula(group: Group, first: bool = True) -> tuple[float, float] | None:
    """The paper's bits up and down (eq. downstream) for a run's exchanges and its S_I; None for an own network."""
    numbers = count(group.settings)
    if numbers is None:
        return None
    first = first and group.setting("algorithm", "send_first") is not False
    exchanges, full, ternary = group.exchanges(), numbers.bits(False, first), numbers.bits(True, first)
    if group.algorithm == "tfedavg":
        one = group.strategy_one() or 0.0
        return exchanges * ternary, exchanges * ((1 - one) * full + one * ternary)
    if group.algorithm in ("fedavg", "cmfl"):
        return exchanges * full * (1 - group.skipped()), exchanges * full
    return None

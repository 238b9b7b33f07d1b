"""Tables of what the algorithms cost: bits on the wire beside the paper's formula, seconds beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any

import torch

from ternfed import models
from ternfed.paper.rows import SHOWN
from ternfed.quantize.layers import ternary_names
from ternfed.report.collect import Elapsed, Group
from ternfed.report.labels import ALGORITHMS, belonging, by_comparison, distinguish
from ternfed.report.tables import NONE, Sheet

MB = 2**20
"""The paper's Mb: its numbers are exact with 2²⁰ bits."""

PAPER_EXCHANGES = {"mlp": 1000, "cnn": 500, "resnet18": 500}
"""100 rounds with 10 and with 5 clients."""

PAPER: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "mlp": {"fedavg": (19.53, 19.53), "cmfl": (5.63, 19.53), "tfedavg": (2.36, 2.36)},
    "cnn": {"fedavg": (16196.59, 16196.59), "cmfl": (4079.75, 16196.59), "tfedavg": (2201.84, 3041.53)},
    "resnet18": {"fedavg": (9253.81, 9253.81), "cmfl": (2666.80, 9253.81), "tfedavg": (1229.27, 6847.82)},
}
"""Table II: Mb up and down in 100 rounds."""

MODELS = {"mlp": "MLP", "cnn": "CNN", "resnet18": "ResNet18*"}

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "digits": (1, 8, 8)}
"""A sample of each data set, so that networks can be counted without the data."""


@dataclass(frozen=True)
class Count:
    """Numbers of a network."""

    all: int
    ternary: int
    first: int
    """In its first layer."""

    def bits(self, ternary: bool, first: bool = True) -> int:
        """An upload by the paper's formula: 32 bits a number, 2 where it is ternary."""
        others = self.all - (self.ternary if ternary else 0) - (0 if first else self.first)
        return 32 * others + (2 * self.ternary if ternary else 0)


def count(group: Group) -> Count | None:
    """The parameters of a group's network; None for a network of the user's own."""
    settings = group.settings["model"]
    shape = SHAPES.get(group.setting("data", "dataset"))
    if shape is None or settings["name"] not in MODELS:
        return None
    facts: dict[str, Any] = {
        "mlp": {"inputs": prod(shape)},
        "cnn": {"channels": shape[0], "size": shape[2]},
        "resnet18": {"channels_in": shape[0]},
    }[settings["name"]]
    options = {key: value for key, value in settings.items() if key not in ("name", "ternary")}
    try:
        with torch.device("meta"):
            network = models.build(settings["name"], **facts, **options)
        wanted = settings.get("ternary", "inner")
        patterns = ["*"] if wanted == "all" else list(wanted)
        where = None if wanted == "inner" else lambda layer, _: any(fnmatchcase(layer, p) for p in patterns)
        names = ternary_names(network, where)
    except (ValueError, TypeError):  # settings of another version, or of nobody's
        return None
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    return Count(sum(sizes.values()), sum(sizes[name] for name in names), next(iter(sizes.values())))


def communication(groups: Sequence[Group]) -> Sheet | None:
    """Table II: what was really sent, what the paper's formula makes of it, and the paper's own numbers."""
    found = [group for group in belonging(groups, "communication") if group.length and not group.central]
    if not found:
        return None
    headings = (
        "data, model", "algorithm", "rounds", "sent up / down (Mb)", "of FedAvg's", "formula up / down (Mb)",
        "paper up / down (Mb)", "paper, scaled (Mb)",
    )  # fmt: skip
    rows = []
    for cell, inside in by_comparison(found).items():
        labels = distinguish(inside)
        full = next((group for group in inside if group.algorithm == "fedavg"), None)
        for place, group in enumerate(inside):
            parts = None if full is None or full is group else [against(group, full, way) for way in ("up", "down")]
            rows.append(
                (
                    f"{cell.data}, {cell.model}",
                    labels[place],
                    str(group.length) if group.finished else f"{group.length}, unfinished",
                    _both(sent(group)),
                    NONE if parts is None else ", ".join(f"1/{times:.3g}" for times in parts),
                    _both(formula(group)),
                    *_of_paper(group),
                )
            )
    notes = (
        "Mb: 2²⁰ bits, the paper's unit. Sent: every message that was really encoded, all layers and headers counted, "
        "mean over the seeds; its part of FedAvg's is that of one exchange with a client. Formula: the paper's (eq. "
        "downstream) with our networks, rounds and S_I: 2 bits a ternary weight, 32 every other parameter, nothing for "
        "an upload that CMFL skips; download = (1 − S_I/T) · FedAvg's upload + S_I/T · T-FedAvg's upload. Paper: as "
        "printed, for 100 rounds; where ours exchanged another number of models, also scaled to that.",
        *_first_layer(found),
    )
    sheet = Sheet("communication", SHOWN["communication"], headings, tuple(rows), texts=2, notes=notes)
    return sheet.without_empty()


def sent(group: Group) -> tuple[float, float]:
    """Bits up and down over the whole run."""
    return 8 * group.total(lambda r: r.bytes_up), 8 * group.total(lambda r: r.bytes_down)


def against(group: Group, full: Group, way: str) -> float:
    """How many times less than another's bytes, an exchange: their rounds may differ in number."""
    place = 0 if way == "up" else 1
    own, other = sent(group)[place] / group.exchanges(), sent(full)[place] / full.exchanges()
    return other / own if own else float("inf")


def formula(group: Group, first: bool = True) -> tuple[float, float] | None:
    """The paper's bits up and down (eq. downstream) for a run's exchanges and its S_I; None for an own network."""
    numbers = count(group)
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


def elapsed(measured: Sequence[Elapsed]) -> Sheet | None:
    """Table V: seconds of one client's local epochs, and their ratio to FedAvg's."""
    if not measured:
        return None
    headings = ("model", "algorithm", "machine", "seconds", "× FedAvg", "paper (s)", "paper, × FedAvg")
    rows = []
    for one in sorted(measured, key=lambda one: list(MODELS).index(one.model) if one.model in MODELS else len(MODELS)):
        for name, seconds in one.seconds.items():
            full, theirs = one.seconds.get("fedavg"), one.paper.get(name)
            rows.append(
                (
                    MODELS.get(one.model, one.model),
                    ALGORITHMS.get(name, name),
                    one.machine,
                    f"{seconds:.3g}",
                    f"{seconds / full:.2f}" if full else NONE,
                    NONE if theirs is None else f"{theirs:.2f}",
                    NONE if theirs is None else f"{theirs / one.paper['fedavg']:.2f}",
                )
            )
    times = ", ".join(sorted({str(one.repetitions) for one in measured}))
    notes = (f"Median of {times} measurements of one client's 5 local epochs, the algorithms in turns in one run.",)
    return Sheet("elapsed", SHOWN["elapsed"], headings, tuple(rows), texts=3, notes=notes)


def _of_paper(group: Group) -> tuple[str, str]:
    """As printed, and scaled to as many exchanges as ours where those are not as many."""
    model = str(group.setting("model", "name"))
    printed = PAPER.get(model, {}).get(group.algorithm)
    if printed is None:
        return NONE, NONE
    up, down = printed
    share = group.exchanges() / PAPER_EXCHANGES[model]
    return _both((MB * up, MB * down)), NONE if share == 1 else _both((share * MB * up, share * MB * down))


def _first_layer(groups: Sequence[Group]) -> list[str]:
    """The paper leaves the MLP's first layer out; what the formula gives then."""
    parts = []
    for group in groups:
        bits = formula(group, first=False)
        if group.setting("model", "name") == "mlp" and group.algorithm in ("fedavg", "tfedavg") and bits is not None:
            parts.append(f"{ALGORITHMS[group.algorithm]} {_amount(bits[0])} up and {_amount(bits[1])} down")
    if not parts:
        return []
    return [
        "The paper does not send the MLP's first layer; without it the formula gives, in Mb: "
        f"{'; '.join(dict.fromkeys(parts))}. Its 19.53 and 2.36 Mb are 640 numbers an upload, 600 of them ternary."
    ]


def _both(bits: tuple[float, float] | None) -> str:
    return NONE if bits is None else f"{_amount(bits[0])} / {_amount(bits[1])}"


def _amount(bits: float) -> str:
    value = bits / MB
    return f"{value:,.2f}" if value >= 0.1 or value == 0 else f"{value:.3g}"

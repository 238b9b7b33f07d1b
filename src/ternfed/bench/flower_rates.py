"""Server rates of Flower's strategies with BatchNorm: chosen without ternfed, on training images that no client has.

FedAdam, FedYogi, FedAdagrad and QFedAvg treat BatchNorm's statistics as weights: the first three move them by steps of
their own, the last makes all steps shorter where they move far. At rates that suit a network without BatchNorm they
learn badly, with or without ternfed, and nothing can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from ternfed.bench.flower_apps import PLAIN, Case, Data, play, quiet
from ternfed.bench.tables import markdown

_ETAS = (0.03, 0.1, 0.3, 1.0, 3.0)
_WITH_MOMENTUM = (
    {"beta_1": (0.0,), "tau": (0.1, 1.0), "eta": _ETAS},
    {"beta_1": (0.9,), "tau": (0.01, 0.1, 1.0), "eta": _ETAS},
)
GRIDS: Mapping[str, Sequence[Mapping[str, tuple[float, ...]]]] = {
    "FedAdam": _WITH_MOMENTUM,
    "FedYogi": _WITH_MOMENTUM,
    "FedAdagrad": ({"tau": (0.01, 0.1, 1.0), "eta": _ETAS},),
    "QFedAvg": ({"client_learning_rate": (1.0, 3.0, 10.0, 30.0, 100.0)},),
}
"""What is tried of each strategy: every combination of each grid."""
SEEDS = (10, 11, 12)
"""Others than those of the table."""

Choice = tuple[tuple[str, float], ...]
"""Rates by name, in the order of a grid."""


class Tried(NamedTuple):
    """What a run without ternfed ended with on held-out images."""

    strategy: str
    rates: Choice
    seed: int
    accuracy: float


def chosen(names: Sequence[str] | None = None) -> list[str]:
    """Strategies by name; all that have rates where none is named."""
    for name in names or ():
        if name not in GRIDS:
            raise ValueError(f"--strategy {name}: {', '.join(GRIDS)} is allowed")
    return list(names or GRIDS)


def run(names: Sequence[str], seeds: Sequence[int], given: Data, kept: Path | None = None) -> Iterator[Tried]:
    """Every choice of rates from every seed; `kept` is a file of tries: what is in it is not run again."""
    quiet()
    known = {each[:3]: each for each in ([] if kept is None else read(kept))}
    for name in names:
        for rates, seed in product(choices(name), seeds):
            if (name, rates, seed) not in known:
                outcome = play(Case(name, norm=True), PLAIN, seed, given, rates=dict(rates))
                known[name, rates, seed] = Tried(name, rates, seed, outcome.accuracy)
                if kept is not None:
                    table = {"strategy": name, **dict(rates), "seed": seed, "accuracy": outcome.accuracy}
                    with kept.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps(table) + "\n")
            yield known[name, rates, seed]


def choices(name: str) -> list[Choice]:
    """The rates that are tried of a strategy."""
    return [tuple(zip(grid, values, strict=True)) for grid in GRIDS[name] for values in product(*grid.values())]


def read(file: Path) -> list[Tried]:
    """What was tried and kept; nothing where there is no file."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [_tried(json.loads(line)) for line in lines]


def _tried(table: Mapping[str, float]) -> Tried:
    name = str(table["strategy"])
    return Tried(name, tuple((rate, table[rate]) for rate in _names(name)), int(table["seed"]), table["accuracy"])


def _names(strategy: str) -> tuple[str, ...]:
    """Of its rates; the last one goes across a table."""
    return tuple(GRIDS[strategy][0])


def best(tried: Iterable[Tried]) -> dict[str, dict[str, float]]:
    """The rates of each strategy whose accuracy is the highest in the mean over the seeds."""
    means = _means(tried)
    return {name: dict(rates) for name, rates in sorted(means, key=means.__getitem__)}


def table(tried: Iterable[Tried]) -> str:
    """Accuracy in percent, the mean over the seeds; each strategy's best is bold. One table for each kind of rates."""
    known = sorted(tried, key=lambda each: (list(GRIDS).index(each.strategy), choices(each.strategy).index(each.rates)))
    means, picked = _means(known), best(known)

    def cell(name: str, rates: Choice) -> str:
        if (name, rates) not in means:
            return ""
        text = f"{100 * means[name, rates]:.2f}"
        return f"**{text}**" if picked[name] == dict(rates) else text

    tables = []
    for kind in dict.fromkeys(_names(each.strategy) for each in known):
        own = [each for each in known if _names(each.strategy) == kind]
        across = sorted({each.rates[-1] for each in own}, key=lambda rate: rate[1])
        rows = dict.fromkeys((each.strategy, each.rates[:-1]) for each in own)
        lines = [
            (name, *(f"{value:g}" for _, value in first), *(cell(name, (*first, last)) for last in across))
            for name, first in rows
        ]
        numbers = [f"{value:g}" for _, value in across]
        tables.append(markdown(("strategy", *kind[:-1], f"{kind[-1]} {numbers[0]}", *numbers[1:]), lines))
    return "\n\n".join(tables)


def _means(tried: Iterable[Tried]) -> dict[tuple[str, Choice], float]:
    groups: dict[tuple[str, Choice], list[float]] = {}
    for each in tried:
        groups.setdefault((each.strategy, each.rates), []).append(each.accuracy)
    return {key: mean(scores) for key, scores in groups.items()}

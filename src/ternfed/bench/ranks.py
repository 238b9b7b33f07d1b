"""A round in one process against the same round over two ranks: `ternfed bench ranks`.

Both in turns from the same state, one thread each, medians. Rank 0 does the server's half alone, so its CPU time is the
least that a round takes, however busy the machine is; the wall clock says what it took.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ternfed.bench.tables import markdown
from ternfed.data.sets import load
from ternfed.engines.ranks.launch import started
from ternfed.engines.ranks.team import crew_over
from ternfed.engines.simulate import play_round
from ternfed.experiment.experiment import Experiment
from ternfed.round.federation import open_federation
from ternfed.sweep.trial import one_thread

SETTINGS = ("federation.participation=0.2", "training.epochs=5")


@dataclass(frozen=True)
class Spread:
    """Seconds per round of one algorithm, with one rank and with two."""

    algorithm: str
    cpu: tuple[float, float]
    """Of rank 0."""
    wall: tuple[float, float]


def run(dataset: str = "mnist", rounds: int = 8) -> Iterator[Spread]:
    """FedAvg, then T-FedAvg."""
    data = load(dataset)
    with one_thread(), started(2, ["run"]) as link:
        for name in ("fedavg", "tfedavg"):
            experiment = Experiment.from_toml("", [f"data.dataset={dataset}", *SETTINGS, f"algorithm.name={name}"])
            federation = open_federation(experiment, data)
            crews, state = (None, crew_over(link, federation)), federation.open()
            cpu: tuple[list[float], list[float]] = ([], [])
            wall: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds + 1):  # the first warms up
                for which, crew in enumerate(crews):
                    before = time.process_time(), time.perf_counter()
                    after, _ = play_round(federation, state, crew=crew)
                    cpu[which].append(time.process_time() - before[0])
                    wall[which].append(time.perf_counter() - before[1])
                state = after
            yield Spread(name, _medians(cpu), _medians(wall))


def table(rows: list[Spread]) -> str:
    """Seconds and their ratios."""
    return markdown(
        ("algorithm", "CPU of rank 0, 1 rank (s)", "2 ranks (s)", "ratio", "wall, 1 rank (s)", "2 ranks (s)", "ratio"),
        [(row.algorithm, *_shown(*row.cpu), *_shown(*row.wall)) for row in rows],
    )


def _shown(one: float, two: float) -> tuple[str, str, str]:
    return f"{one:.3f}", f"{two:.3f}", f"{one / two:.2f}"


def _medians(seconds: tuple[list[float], list[float]]) -> tuple[float, float]:
    one, two = (statistics.median(each[1:]) for each in seconds)
    return one, two

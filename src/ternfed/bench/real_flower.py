"""The same apps under `flwr run`, all of Flower as it is downloaded: deployed, or in its simulation.

Deployed, there are a SuperLink, five SuperNodes, and a process for each message. In the simulation there are a
SuperLink and workers of Ray, which stay.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from ternfed.bench.flower_apps import CLIENTS, ROUNDS, Case, Outcome, Play, outcome_of
from ternfed.bench.stock_flower import run_app, simulated_flower, stock_flower
from ternfed.engines.flower.errors import NetworkError
from ternfed.quantize.rotation import TRITS

SAID = "outcome of the run: "
PATIENCE = 3600.0
"""Seconds for one run, on a machine that has others to serve."""
APP = '''"""An app of the benchmark: its settings are the lines below."""

import json
from dataclasses import asdict

from flwr.serverapp import ServerApp

from ternfed.bench.flower_apps import Case, app_of, data, serve
from ternfed.bench.ordered_grid import OrderedGrid

CASE, MODE, SEEDS, DATA, ROUNDS, BITS = {settings}

client = app_of(Case(**CASE), MODE, data(DATA))
server = ServerApp()


@server.main()
def main(grid, context):
    for seed in SEEDS:
        outcome = serve(OrderedGrid(grid), Case(**CASE), MODE, seed, data(DATA), ROUNDS, BITS)
        print("{said}" + json.dumps(asdict(outcome)), flush=True)
'''


@contextmanager
def real_flower(dataset: str, rounds: int = ROUNDS, simulated: bool = False) -> Iterator[Play]:
    """Makes runs by `flwr run` while its SuperLink, and its SuperNodes unless they are simulated, are there.

    All seeds of a row are played in one run, one after the other: most of a run's time it starts processes.
    """
    flower = simulated_flower if simulated else stock_flower
    with tempfile.TemporaryDirectory() as place, flower(Path(place), CLIENTS) as environment:
        numbers = iter(range(1, 1 << 30))

        def play(case: Case, mode: str, seeds: Sequence[int], _: Any, bits_up: float = TRITS) -> list[Outcome]:
            app = Path(place) / f"app-{next(numbers)}"
            write_app(app, (asdict(case), str(mode), list(seeds), dataset, rounds, bits_up))
            return told_outcomes([line for _, line in run_app(app, environment, seconds=PATIENCE)], len(seeds))

        yield play


def write_app(folder: Path, settings: tuple[Any, ...]) -> None:
    """An app with these settings, to be run by `flwr run`."""
    folder.mkdir(parents=True)
    components = {"serverapp": "benchmark:server", "clientapp": "benchmark:client"}
    app = {"publisher": "ternfed", "components": components, "config": {}}
    project = {"name": "benchmark", "version": "1.0.0", "description": "", "license": "Apache-2.0", "dependencies": []}
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))
    (folder / "benchmark.py").write_text(APP.replace("{settings}", repr(settings)).replace("{said}", SAID))


def told_outcomes(lines: Sequence[str], count: int) -> list[Outcome]:
    """What the server of a run said, once for each seed."""
    found = [outcome_of(json.loads(line.partition(SAID)[2])) for line in lines if SAID in line]
    if len(found) != count:
        raise NetworkError(f"flwr run ended with {len(found)} of {count} outcomes: " + " | ".join(lines[-5:]))
    return found

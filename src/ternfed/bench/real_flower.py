"""The same apps under `flwr run`, all of Flower as it is downloaded: deployed, or in its simulation.

Deployed, there are a SuperLink, five SuperNodes, and a process for each message. In the simulation there are a
SuperLink and workers of Ray, which stay.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
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

CASE, MODE, SEED, DATA, ROUNDS, BITS = {settings}

client = app_of(Case(**CASE), MODE, SEED, data(DATA))
server = ServerApp()


@server.main()
def main(grid, context):
    outcome = serve(grid, Case(**CASE), MODE, SEED, data(DATA), ROUNDS, BITS)
    print("{said}" + json.dumps(asdict(outcome)), flush=True)
'''


@contextmanager
def real_flower(dataset: str, rounds: int = ROUNDS, simulated: bool = False) -> Iterator[Play]:
    """Makes runs by `flwr run` while its SuperLink, and its SuperNodes unless they are simulated, are there."""
    flower = simulated_flower if simulated else stock_flower
    with tempfile.TemporaryDirectory() as place, flower(Path(place), CLIENTS) as environment:
        numbers = iter(range(1, 1 << 30))

        def play(case: Case, mode: str, seed: int, _: Any, bits_up: float = TRITS) -> Outcome:
            app = Path(place) / f"app-{next(numbers)}"
            write_app(app, (asdict(case), str(mode), seed, dataset, rounds, bits_up))
            return read_outcome([line for _, line in run_app(app, environment, seconds=PATIENCE)])

        yield play


def write_app(folder: Path, settings: tuple[Any, ...]) -> None:
    """An app with these settings, to be run by `flwr run`."""
    folder.mkdir(parents=True)
    components = {"serverapp": "benchmark:server", "clientapp": "benchmark:client"}
    app = {"publisher": "ternfed", "components": components, "config": {}}
    project = {"name": "benchmark", "version": "1.0.0", "description": "", "license": "Apache-2.0", "dependencies": []}
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))
    (folder / "benchmark.py").write_text(APP.replace("{settings}", repr(settings)).replace("{said}", SAID))


def read_outcome(lines: list[str]) -> Outcome:
    """What the server of a run said in the end."""
    for line in lines:
        if SAID in line:
            return outcome_of(json.loads(line.partition(SAID)[2]))
    raise NetworkError("flwr run ended without an outcome: " + " | ".join(lines[-5:]))

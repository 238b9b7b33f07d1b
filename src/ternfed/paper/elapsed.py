"""The paper's table of elapsed time: what one client takes for its local epochs with each algorithm, in one run.

A measurement is a client's whole half of a round but for the coding of its message: `start`, training on its own
samples, `finish` (FTTQ's quantization, CMFL's relevance). It is taken in the second round, because CMFL has a last
global update to compare with only then. Algorithms take turns, so that a busy moment of the machine is nobody's own.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ternfed.data.values import DataSet
from ternfed.engines.simulate import play_round
from ternfed.experiment.experiment import Experiment
from ternfed.experiment.named import with_later
from ternfed.experiment.settings import Table
from ternfed.files import json_page, read_json, write_atomically
from ternfed.paper.numbers import ALGORITHMS
from ternfed.paper.rows import Row
from ternfed.round.exchange import Broadcasts
from ternfed.round.federation import Federation, open_federation, prepare
from ternfed.runs.environment import environment
from ternfed.runs.folder import RunError
from ternfed.sweep.trial import one_thread

FILE = "elapsed.json"


@dataclass(frozen=True)
class Elapsed:
    """Seconds of local training, as a folder has them."""

    model: str
    machine: str
    repetitions: int
    seconds: Mapping[str, float]
    """Median, by algorithm."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's, of the row that the folder is named after."""


def measure(experiment: Experiment, data: DataSet, device: str, repetitions: int) -> Table:
    """Median seconds of one client's local epochs with each algorithm, and every measurement behind them."""
    own = torch.arange(len(data.train.labels))[: len(data.train.labels) // experiment.federation.clients]
    with one_thread():
        sides = _sides(experiment, data, own, device)
        for side in sides.values():
            side()
        times = [{name: _seconds(side, device) for name, side in sides.items()} for _ in range(repetitions)]
        where = environment(device)
    every = {name: [row[name] for row in times] for name in sides}
    return {
        "model": experiment.model.name,
        "device": device,
        "samples": len(own),
        "epochs": experiment.training.epochs,
        "batch": experiment.training.batch,
        "repetitions": repetitions,
        "seconds": {name: statistics.median(values) for name, values in every.items()},
        "all": every,
        "environment": where,
        "settings": experiment.to_table(),
    }


def read(folder: Path) -> Table | None:
    """An earlier measurement; None where there is none."""
    found = read_json(folder / FILE)
    if not (isinstance(found, dict) and {"seconds", "settings"} <= set(found)):
        return None
    return {**found, "settings": with_later(found["settings"])}


def read_elapsed(file: Path, row: Row | None) -> Elapsed:
    """The measurement in a file, beside the paper's numbers for its row; RunError where the file is damaged."""
    try:
        values = json.loads(file.read_bytes())
        seconds = {str(name): float(value) for name, value in values["seconds"].items()}
        where = {**values, **(values.get("environment") or {})}
        machine = where.get("processor", "cpu") if where["device"] == "cpu" else where["device"]
        model, repetitions = str(values["model"]), int(values["repetitions"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{file}: is damaged ({type(error).__name__}: {error}); measure again") from error
    return Elapsed(model, str(machine), repetitions, seconds, {} if row is None else row.paper_seconds)


def write(folder: Path, measured: Table) -> Path:
    """Keep a measurement."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FILE, json_page(measured), lasting=False)
    return folder / FILE


def _sides(experiment: Experiment, data: DataSet, own: Tensor, device: str) -> dict[str, Callable[[], object]]:
    """One client's half of the second round, by algorithm."""
    alone = experiment.with_settings(["federation.clients=1", "federation.participation=1"])
    base = replace(open_federation(alone, data, device), parts=[own])
    sides = {}
    for name in ALGORITHMS:
        one = alone.with_settings([f"algorithm.name={name}"])
        # The same network and the same data for all of them.
        sides[name] = _second_round(replace(base, experiment=one, algorithm=one.make_algorithm(base.network)))
    return sides


def _second_round(federation: Federation) -> Callable[[], object]:
    state, _ = play_round(federation, federation.open())
    algorithm, site = federation.algorithm, federation.site(0)
    broadcast = Broadcasts(algorithm, state.server, 2, state.broadcasts, state.holders).for_client(0).broadcast
    memory = state.memories.get(0, algorithm.client_memory())

    def half() -> object:
        work, remembered = prepare(site, 2, broadcast, memory)
        (trained,) = federation.trainer.train([work])
        return algorithm.finish(trained.local, broadcast.message, remembered, site.client(2))

    return half


def _seconds(side: Callable[[], object], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    side()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start

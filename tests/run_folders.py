"""Run folders for tests: real ones of tiny runs, and ones whose numbers are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ternfed.data.sets import load
from ternfed.engines.simulate import record
from ternfed.experiment.experiment import Experiment
from ternfed.paper.rows import Reproduce, Row
from ternfed.round.federation import open_federation
from ternfed.runs.folder import RunFolder, summarise
from ternfed.runs.records import Round

TINY = (
    "data.dataset=digits", "model.hidden=[12, 12, 12, 12, 12]", "federation.clients=5", "federation.participation=1",
    "federation.rounds=3", "training.epochs=1",
)  # fmt: skip


def real_run(path: Path, *settings: str, finish: bool = True) -> Path:
    """A tiny run on the digits, recorded as `ternfed run` records it."""
    experiment = Experiment.from_toml("", [*TINY, *settings])
    federation = open_federation(experiment, load("digits"))
    with RunFolder.create(path, experiment) as folder:
        rounds = list(record(federation, folder))
        if finish:
            folder.finish(summarise(rounds, experiment))
    return path


def known_run(path: Path, settings: Sequence[str] | Experiment, rounds: Sequence[Mapping[str, Any]]) -> Path:
    """A folder whose rounds have these values; the experiment may ask for more rounds than there are."""
    usual: dict[str, Any] = {
        "score": 0.5, "loss": 1.0, "train_loss": None, "validation": None, "bytes_up": 1000, "bytes_down": 2000,
        "bytes_up_fp32": 10_000, "bytes_down_fp32": 10_000, "bits_per_weight_up": None, "clients": 5,
    }  # fmt: skip
    experiment = settings if isinstance(settings, Experiment) else Experiment.from_toml("", settings)
    with RunFolder.create(path, experiment) as folder:
        for number, values in enumerate(rounds, start=1):
            folder.append(Round(round=number, **{**usual, **values}))
    return path


def row(name: str, *shows: str, **about: Any) -> Row:
    """A row as `experiments/NAME.toml` would give it."""
    usual: dict[str, Any] = {"title": name, "seeds": 2, "minutes": 1.0, "machine": "one core"}
    return Row(name, Reproduce(shows=shows, **{**usual, **about}), {})

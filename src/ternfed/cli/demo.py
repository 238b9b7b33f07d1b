"""The demonstration: FedAvg against T-FedAvg on handwritten digits, unequally distributed among 20 clients."""

from __future__ import annotations

from collections.abc import Iterator

from ternfed.data.sets import load
from ternfed.engines.simulate import play
from ternfed.experiment.experiment import Experiment
from ternfed.round.federation import open_federation
from ternfed.runs.folder import Round

SETTINGS = (
    "data.dataset=digits",
    "data.classes_per_client=2",
    "model.hidden=[256, 256, 256]",
    "federation.clients=20",
    "federation.participation=0.5",
    "federation.rounds=30",
    "training.rate=0.1",
    "training.batch=16",
)
"""What both share: a network whose inner layers are most of it, as in the networks people federate."""

ALGORITHMS = {
    "FedAvg": ("algorithm.name=fedavg",),
    "T-FedAvg": ("algorithm.name=tfedavg", "algorithm.dense=bfloat16"),
}


def play_demo(*settings: str) -> Iterator[tuple[str, Experiment, Iterator[Round]]]:
    """(name, experiment, its rounds) of each algorithm, on the same data from the same first weights."""
    data = load("digits")
    for name, own in ALGORITHMS.items():
        experiment = Experiment.from_toml("", [*SETTINGS, *own, *settings])
        federation = open_federation(experiment, data)
        yield name, experiment, (record for _, record in play(federation))

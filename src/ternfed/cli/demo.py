"""The demonstration: FedAvg, FedPAQ, T-FedAvg and its control on handwritten digits, 20 clients of two classes."""

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
    "model.hidden=[128, 128]",
    "model.ternary=all",
    "federation.clients=20",
    "federation.participation=0.5",
    "federation.rounds=30",
    "training.rate=0.3",
    "training.schedule=cosine",
    "training.batch=16",
)
"""What all share. The rate is FedAvg's best of three on validation data (docs/LOG.md). Every layer is ternary: with
float layers around it, a layer of frozen trits is a good random feature map here, and the control would show little."""

ALGORITHMS = {
    "FedAvg": ("algorithm.name=fedavg",),
    "FedPAQ": ("algorithm.name=fedpaq",),
    "T-FedAvg": ("algorithm.name=tfedavg",),
    "trits frozen": ("algorithm.name=tfedavg", "algorithm.preset=frozen"),
}
"""The last is the control: the same network whose trits never change. Only its three scales learn, and without biases
they cannot change a decision."""


def play_demo(*settings: str) -> Iterator[tuple[str, Experiment, Iterator[Round]]]:
    """(name, experiment, its rounds) of each algorithm, on the same data from the same first weights."""
    data = load("digits")
    for name, own in ALGORITHMS.items():
        experiment = Experiment.from_toml("", [*SETTINGS, *own, *settings])
        federation = open_federation(experiment, data)
        yield name, experiment, (record for _, record in play(federation))

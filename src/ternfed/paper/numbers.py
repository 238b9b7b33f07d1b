"""The paper's numbers, as printed: the one place that has them.

Rows, tables and targets ask here, with the plain settings of an experiment (`Experiment.to_table`) or of a run folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Case = tuple[str, str]
"""(data set, network), each by the name that it has in settings."""

ALGORITHMS = ("fedavg", "cmfl", "tfedavg")
"""The algorithms of Tables II to V, in the paper's order."""

MLP: Case = ("mnist", "mlp")
CNN: Case = ("cifar10", "cnn")
RESNET18: Case = ("cifar10", "resnet18")


class Accuracy(NamedTuple):
    """In percent on test data, and its standard deviation."""

    mean: float
    std: float | None = None


class Megabits(NamedTuple):
    """Over all rounds, of `MEGABIT` bits each."""

    up: float
    down: float


CENTRALIZED: Mapping[Case, Accuracy] = {
    MLP: Accuracy(92.25, 0.06),
    CNN: Accuracy(85.63, 0.10),
    RESNET18: Accuracy(88.80, 0.20),
}
"""Table I: all data in one place."""

MEGABIT = 2**20
"""The paper's Mb in bits: its numbers are exact with this one."""

ROUNDS = 100
CLIENTS_PER_ROUND = {"mnist": 10, "cifar10": 5}

MEGABITS: Mapping[Case, Mapping[str, Megabits]] = {
    MLP: {"fedavg": Megabits(19.53, 19.53), "cmfl": Megabits(5.63, 19.53), "tfedavg": Megabits(2.36, 2.36)},
    CNN: {
        "fedavg": Megabits(16196.59, 16196.59),
        "cmfl": Megabits(4079.75, 16196.59),
        "tfedavg": Megabits(2201.84, 3041.53),
    },
    RESNET18: {
        "fedavg": Megabits(9253.81, 9253.81),
        "cmfl": Megabits(2666.80, 9253.81),
        "tfedavg": Megabits(1229.27, 6847.82),
    },
}
"""Table II: IID data, `ROUNDS` rounds."""

ACCURACIES: Mapping[tuple[Case, int | None], Mapping[str, Accuracy]] = {
    (MLP, None): {"fedavg": Accuracy(90.63, 0.17), "cmfl": Accuracy(90.91, 0.36), "tfedavg": Accuracy(91.95, 0.11)},
    (CNN, None): {"fedavg": Accuracy(85.47, 0.14), "cmfl": Accuracy(84.23, 0.71), "tfedavg": Accuracy(84.46, 0.17)},
    (RESNET18, None): {
        "fedavg": Accuracy(88.34, 0.40),
        "cmfl": Accuracy(87.13, 0.66),
        "tfedavg": Accuracy(87.87, 0.18),
    },
    (MLP, 2): {"fedavg": Accuracy(82.61, 4.31), "cmfl": Accuracy(81.51, 2.29), "tfedavg": Accuracy(87.29, 0.89)},
    (MLP, 5): {"fedavg": Accuracy(89.24, 0.38), "cmfl": Accuracy(88.30, 0.52), "tfedavg": Accuracy(90.04, 0.68)},
    (RESNET18, 2): {"fedavg": Accuracy(40.17, 5.6), "cmfl": Accuracy(39.30, 6.1), "tfedavg": Accuracy(40.46, 4.3)},
    (RESNET18, 5): {"fedavg": Accuracy(71.47, 0.23), "cmfl": Accuracy(70.26, 0.63), "tfedavg": Accuracy(76.69, 0.67)},
}
"""Tables III (IID: None) and IV (by N_c, the classes per client)."""

SECONDS: Mapping[Case, Mapping[str, float]] = {
    MLP: {"fedavg": 1.06, "cmfl": 1.62, "tfedavg": 1.06},
    CNN: {"fedavg": 7.92, "cmfl": 12.48, "tfedavg": 8.97},
    RESNET18: {"fedavg": 21.74, "cmfl": 27.68, "tfedavg": 38.22},
}
"""Table V: 5 local epochs of one client."""


def accuracy_of(settings: Mapping[str, Any]) -> Accuracy | None:
    """The accuracy that the paper reports for an experiment with these settings; None where it reports none."""
    data, algorithm = settings["data"], settings["algorithm"]["name"]
    if data["partition"] not in ("iid", "classes"):
        return None
    if algorithm == "centralized":
        return CENTRALIZED.get(case_of(settings))
    return ACCURACIES.get((case_of(settings), data.get("classes_per_client")), {}).get(algorithm)


def megabits_of(settings: Mapping[str, Any]) -> Megabits | None:
    """The megabits that the paper reports for this data set, network and algorithm."""
    return MEGABITS.get(case_of(settings), {}).get(settings["algorithm"]["name"])


def seconds_of(settings: Mapping[str, Any]) -> Mapping[str, float]:
    """The seconds that the paper reports for this data set and network, by algorithm; {} where it reports none."""
    return SECONDS.get(case_of(settings), {})


def exchanges_of(settings: Mapping[str, Any]) -> int:
    """How many downloads, and as many uploads, Table II counts for a data set of the paper's."""
    return ROUNDS * CLIENTS_PER_ROUND[settings["data"]["dataset"]]


def case_of(settings: Mapping[str, Any]) -> Case:
    return settings["data"]["dataset"], settings["model"]["name"]

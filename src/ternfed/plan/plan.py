"""The plan of a federation: layers, bytes, seconds, memory and file sizes, before anybody trains.

    plan = make_plan(Experiment.from_toml("", ["model.name=resnet18"]))

Nothing is trained, and no data is read but a user's own: the algorithm's own functions run over made training
(`rehearsal.py`), and every byte count is the length of a message that was really encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ternfed import draws
from ternfed.algorithms.algorithm import Network
from ternfed.data.sets import TRAINING_SAMPLES, without_samples
from ternfed.data.text import LENGTH
from ternfed.data.values import DataSet
from ternfed.experiment.experiment import Experiment
from ternfed.plan.costs import FLIPS, MOST_MISSED, Bytes, Costs, Rehearsed, rehearse
from ternfed.plan.exported import Exported, exported
from ternfed.plan.memory import ClientMemory, ServerMemory, client_memory, held, server_memory
from ternfed.round.checks import misfit
from ternfed.wire import Schema, form_for
from ternfed.wire.schema import DTYPES


@dataclass(frozen=True)
class Link:
    """The link of a client, Mbit/s."""

    up: float = 11.05
    down: float = 26.36

    def __post_init__(self) -> None:
        for key in ("up", "down"):
            if not 0 < getattr(self, key) < float("inf"):
                raise ValueError(f"--{key} {getattr(self, key)}: Mbit/s above 0 are needed")


@dataclass(frozen=True)
class Layer:
    """One tensor of the model, and how it travels."""

    name: str
    shape: tuple[int, ...]
    numbers: int
    up: str | None
    """`ternary`, `grid` or a type of plain numbers; None: it is not sent."""
    bits_up: float
    """Per number, in a typical round."""
    down: str | None
    bits_down: float
    frozen: bool = False
    """It is not trained, and so never sent: every side makes it from the seed or reads it from a file."""


@dataclass(frozen=True)
class Seconds:
    """Of one message on the link, its bytes alone."""

    best: float
    typical: float
    worst: float


@dataclass(frozen=True)
class Traffic:
    """What an algorithm costs one client."""

    algorithm: str
    up: Bytes
    """Per round in which it takes part."""
    down: Bytes
    first_down: int
    seconds_up: Seconds
    seconds_down: Seconds
    total_up: Bytes
    """Over the rounds in which it takes part."""
    total_down: Bytes


@dataclass(frozen=True)
class Plan:
    """What a federation will cost."""

    model: str
    numbers: int
    """Parameters and buffers of the model."""
    frozen: int
    """Of which are not trained, and never travel."""
    ternary: int
    """Of which are in ternary layers."""
    layers: tuple[Layer, ...]
    clients: int
    per_round: int
    """Clients that take part in a round."""
    samples: int | None
    """Training samples per client on average, by which T-FedAvg chooses its way up; None: nobody says how many."""
    rounds: int
    takes_part: int
    """Rounds in which one client takes part, on average."""
    link: Link
    traffic: Traffic
    fedavg: Traffic
    """The same model with FedAvg in float32."""
    server: ServerMemory
    client: ClientMemory
    exported: Exported
    flips: float
    """Assumed of a typical round: the share of trits that flip from one broadcast to the next."""
    missed: int
    """Assumed of a typical download: the rounds since its receiver took part before, at most `MOST_MISSED`."""
    share: float
    """Of the model's numbers, that was encoded; below 1, what is said of bytes is an estimate."""
    share_down: float
    """And that of a typical download, which takes several rounds where clients seldom take part."""
    misfit: str | None
    """Why the model cannot take the samples that the experiment names; then layers are told apart by registration."""


def make_plan(
    experiment: Experiment,
    link: Link | None = None,
    flips: float = FLIPS,
    data_folder: Path | None = None,
    samples: int | None = None,
) -> Plan:
    """The plan of an experiment, for clients with so many training samples, or with those of its data set.

    The data set is read only if it is the user's own, for the shape of a sample and for how many there are.
    """
    if not 0 <= flips <= 1:
        raise ValueError(f"--flips {flips}: a share from 0 to 1 is needed")
    if samples is not None and samples < 1:
        raise ValueError(f"--samples {samples}: at least 1 is needed")
    dataset = experiment.data.dataset
    data = without_samples(dataset) or experiment.load_data(data_folder)
    experiment = experiment.counted(data)
    if not experiment.federation.clients:
        raise ValueError(f"federation.clients: say how many there are; {dataset} does not")
    network = experiment.make_network(data)
    each = _samples_each(experiment, data) if samples is None else samples
    experiment = experiment if each is None else experiment.suited(network, each)
    settings, link = experiment.federation, link or Link()
    clients, rounds = settings.clients, settings.rounds
    chosen = draws.asked(clients, settings.participation)
    missed, takes_part = min(MOST_MISSED, max(1, round(clients / chosen))), max(1, round(rounds * chosen / clients))
    fedavg = experiment.with_settings(["algorithm.name=fedavg", "federation.aggregate=own"])
    own = rehearse(network, experiment.make_algorithm, clients, flips, missed)
    if own.algorithm.central:
        raise ValueError(f"algorithm.name = {experiment.algorithm.name}: nothing travels, so there is nothing to plan")
    plain = rehearse(network, fedavg.make_algorithm, clients)
    still = network.frozen_tensors()
    frozen = sum(tensor.numel() for tensor in still.values())
    fp32_bytes = 4 * (own.sample.numbers - frozen)
    parameters = dict(network.model.named_parameters())
    return Plan(
        model=experiment.model.name,
        numbers=own.sample.numbers,
        frozen=frozen,
        ternary=sum(parameters[name].numel() for name in network.ternary),
        layers=_layers(network, own),
        clients=clients,
        per_round=chosen,
        samples=each,
        rounds=rounds,
        takes_part=takes_part,
        link=link,
        traffic=_traffic(experiment.algorithm.name, own.costs, link, takes_part),
        fedavg=_traffic("fedavg", plain.costs, link, takes_part),
        server=server_memory(own, clients, chosen, rounds, fp32_bytes, held(still)),
        client=client_memory(own, held(still)),
        exported=exported(own, network),
        flips=flips,
        missed=missed,
        share=own.sample.share,
        share_down=own.older.share,
        misfit=misfit(network, data),
    )


def _samples_each(experiment: Experiment, data: DataSet) -> int | None:
    """What a client trains on, on average, once the server has its part; None where that is not known."""
    name = experiment.data.dataset
    usual = experiment.data.length in (None, LENGTH) and experiment.data.tokenizer is None
    total = len(data.train) or (TRAINING_SAMPLES.get(name) if usual else None)
    return None if total is None else (total - round(experiment.data.hold_out * total)) // experiment.federation.clients


def _traffic(algorithm: str, costs: Costs, link: Link, rounds: int) -> Traffic:
    def seconds(size: Bytes, speed: float) -> Seconds:
        return Seconds(*(8 * count / (1e6 * speed) for count in (size.best, size.typical, size.worst)))

    up, down = costs.up, costs.down
    return Traffic(
        algorithm=algorithm,
        up=up,
        down=down,
        first_down=costs.first_down,
        seconds_up=seconds(up, link.up),
        seconds_down=seconds(down, link.down),
        total_up=Bytes(*(rounds * count for count in (up.best, up.typical, up.worst))),
        total_down=Bytes(*(costs.first_down + (rounds - 1) * count for count in (down.best, down.typical, down.worst))),
    )


def _layers(network: Network, rehearsed: Rehearsed) -> tuple[Layer, ...]:
    """Every tensor of the model in its order. The first schema of a direction is the usual one."""
    algorithm = rehearsed.algorithm
    named = {**dict(network.model.named_parameters()), **dict(network.model.named_buffers())}
    return tuple(
        Layer(
            name,
            tuple(tensor.shape),
            tensor.numel(),
            *_way(name, algorithm.up[0], rehearsed.bits_up),
            *_way(name, algorithm.down[0], rehearsed.bits_down),
            frozen=name in network.frozen,
        )
        for name, tensor in named.items()
    )


def _way(name: str, schema: Schema, bits: Mapping[str, float]) -> tuple[str | None, float]:
    """How a tensor travels, and bits per number; an algorithm may send it as several slots (`NAME/codes`)."""
    for slot in schema.slots:
        if slot.name in (name, f"{name}/codes"):
            return form_for(slot.kind).name if slot.kind not in DTYPES else slot.kind.value, bits.get(slot.name, 0.0)
    return None, 0.0

"""What a plan says a message costs at least and at most holds for every round of real runs on the digits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ternfed.data.sets import load
from ternfed.engines.simulate import open_federation, play
from ternfed.experiment.experiment import Experiment
from ternfed.plan.plan import make_plan

RESULTS = Path(__file__).parents[2] / "results"
SMALL = ("federation.rounds=6", "federation.clients=6", "federation.participation=0.5", "training.epochs=2")


@pytest.mark.parametrize(
    "settings",
    [
        ["algorithm.name=tfedavg", "algorithm.upload=trits"],
        ["algorithm.name=tfedavg", "algorithm.upload=differences"],
        ["algorithm.name=tfedavg", "algorithm.preset=paper"],
        ["algorithm.name=tfedavg", "algorithm.upload=trits", "algorithm.full_at=[0.5]"],
        ["algorithm.name=fedavg"],
        ["algorithm.name=fedavg", "algorithm.dense=bfloat16"],
        ["algorithm.name=fedpaq"],
        ["algorithm.name=eden", "algorithm.bits_up=2"],
        ["algorithm.name=topk"],
        ["algorithm.name=stc"],
        ["algorithm.name=signsgd_ef"],
        ["algorithm.name=cmfl", "algorithm.threshold=0.9"],
        ["algorithm.name=tfedavg", "model.name=cnn"],
    ],
    ids=" ".join,
)
def test_the_bytes_of_every_round_lie_between_best_and_worst(settings: list[str]) -> None:
    experiment = Experiment.from_toml("", [*SMALL, *settings])
    if experiment.model.name == "cnn":
        experiment = experiment.with_settings(["federation.rounds=2", "training.epochs=1"])
    traffic = make_plan(experiment).traffic
    federation = open_federation(experiment, load("digits"))
    for number, (_, outcome) in enumerate(play(federation)):
        up, down = outcome.bytes_up / outcome.clients, outcome.bytes_down / outcome.clients
        assert traffic.up.best <= up <= traffic.up.worst, outcome.round
        assert traffic.down.best <= down <= traffic.down.worst, outcome.round
        if number == 0:
            assert down == traffic.first_down


@pytest.mark.parametrize(
    "row", ["cifar10-resnet18-iid-tfedavg", "cifar10-resnet18-iid-fedavg", "mnist-relu-iid-tfedavg-tuned"]
)
def test_so_do_those_of_committed_runs(row: str) -> None:
    folder = RESULTS / row / "seed-0"
    if not folder.is_dir():
        pytest.skip("the results are not here")
    traffic = make_plan(Experiment.from_file(folder / "config.toml")).traffic
    for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert traffic.up.best <= record["bytes_up"] / record["clients"] <= traffic.up.worst
        assert traffic.down.best <= record["bytes_down"] / record["clients"] <= traffic.down.worst

"""The commands of docs/deploy.md between processes, each client with data of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from harness import replay, same_bits
from safetensors.torch import load_file

from ternfed.data.sets import from_arrays, load
from ternfed.data.values import DataSet
from ternfed.engines.flower import processes
from ternfed.engines.flower.client_round import ClientSetup, open_site
from ternfed.experiment.experiment import Experiment
from ternfed.runs.records import read_rounds

EXPERIMENT = "[federation]\nparticipation = 1.0\nrounds = 2\n"
SAMPLES = (300, 200)
OWN = """
from ternfed.data.sets import from_arrays, load

def first():
    return samples(0, 300)

def second():
    return samples(300, 500)

def samples(start, end):
    digits = load("digits")
    train = digits.train
    return from_arrays("mine", train.inputs[start:end], train.labels[start:end], digits.test.inputs, digits.test.labels)
"""


def own_data(index: int) -> DataSet:
    """What the functions in OWN return."""
    digits, start = load("digits"), sum(SAMPLES[:index])
    part = slice(start, start + SAMPLES[index])
    return from_arrays(
        "mine", digits.train.inputs[part], digits.train.labels[part], digits.test.inputs, digits.test.labels
    )


def ternfed(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ternfed", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_client_with_data_of_its_own_works_on_all_of_it_and_on_nothing_else() -> None:
    data = own_data(1)
    experiment = Experiment.from_toml(EXPERIMENT).with_settings(["federation.clients=2"])
    site = open_site(experiment, ClientSetup(1, 2, data=data), data)
    assert sorted(site.own.tolist()) == list(range(200))
    assert site.feed.samples.labels.equal(load("digits").train.labels[300:500])


@pytest.mark.slow
def test_clients_bring_a_function_that_loads_their_own_data_and_the_model_comes_from_it(tmp_path: Path) -> None:
    (tmp_path / "own_data.py").write_text(OWN)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    port = str(processes.free_port())
    made = ternfed(tmp_path, "certs", "init", "certs", "--host", "127.0.0.1", "--clients", "2")
    assert made.wait(60) == 0
    where = ("--host", "127.0.0.1", "--port", port, "--certs", "certs")
    server = ternfed(tmp_path, "server", "experiment.toml", *where, "--clients", "2", "--out", "run", "--json")
    to = ("--server", f"127.0.0.1:{port}", "--certs", "certs")
    functions = ("own_data:first", "own_data:second")
    clients = [
        ternfed(tmp_path, "client", *to, "--data", function, "--data-partition", f"{index}/2")
        for index, function in enumerate(functions)
    ]
    try:
        printed, said = server.communicate(timeout=240)
        assert server.returncode == 0, said
        assert json.loads(printed)["rounds"] == 2
        assert [client.wait(60) for client in clients] == [0, 0]
    finally:
        for process in (server, *clients):
            process.terminate()
    experiment = Experiment.from_toml(EXPERIMENT).with_settings(["federation.clients=2"])
    rounds = read_rounds(tmp_path / "run" / "rounds.jsonl")[0]
    sites = [open_site(experiment, ClientSetup(i, 2, data=own_data(i)), own_data(i)) for i in range(2)]
    model = load_file(tmp_path / "run" / "last.safetensors")
    assert same_bits(model, replay(experiment, rounds, sites))
    assert not same_bits(model, replay(experiment, rounds)), "it is that of the experiment's own data set"

"""The commands of docs/deploy.md between processes, each client with data of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from harness import replay, same_bits
from safetensors.torch import load_file

from ternfed.data.sets import from_arrays, load, source_of
from ternfed.data.values import DataSet, Outline
from ternfed.engines.flower import processes
from ternfed.engines.flower.client import _Work
from ternfed.engines.flower.client_round import ClientSetup, find_data, open_site
from ternfed.experiment.experiment import Experiment, ExperimentError
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


def plays_two_rounds(server: subprocess.Popen[str], clients: list[subprocess.Popen[str]]) -> None:
    """To the end, on both sides."""
    try:
        printed, said = server.communicate(timeout=240)
        assert server.returncode == 0, said
        assert json.loads(printed)["rounds"] == 2
        assert [client.wait(60) for client in clients] == [0, 0]
    finally:
        for process in (server, *clients):
            process.terminate()


def test_a_client_with_data_of_its_own_works_on_all_of_it_and_on_nothing_else() -> None:
    data = own_data(1)
    experiment = Experiment.from_toml(EXPERIMENT).with_settings(["federation.clients=2"])
    site = open_site(experiment, ClientSetup(1, 2, data=data), data)
    assert sorted(site.own.tolist()) == list(range(200))
    assert site.feed.samples.labels.equal(load("digits").train.labels[300:500])


def text_folder(place: Path, **files: str) -> str:
    """`text:FOLDER` of files with these texts, each repeated."""
    place.mkdir()
    for name, text in files.items():
        (place / f"{name}.txt").write_text(text * 300, encoding="utf-8")
    return f"text:{place}"


def test_letters_of_a_clients_own_folder_mean_what_they_mean_on_the_server(tmp_path: Path) -> None:
    whole = load(text_folder(tmp_path / "whole", a="abc xyz ", b="öäü "), length=10)
    own = source_of(text_folder(tmp_path / "own", mine="xyz q "))
    experiment = Experiment.from_table({"data": {"dataset": "text:anywhere", "length": 10}})
    data = find_data(experiment, ClientSetup(0, 2, data=own), whole.outline)
    letters = " abcxyzäöü"
    assert (whole.characters, data.characters, data.vocabulary) == (letters, letters, len(letters) + 1)
    assert data.train.inputs[0, :6].tolist() == [*(1 + letters.index(letter) for letter in "xyz "), 0, 1]
    site = open_site(experiment.with_settings(["federation.clients=2"]), ClientSetup(0, 2, data=own), data)
    assert site.network.schema() == experiment.make_network(whole).schema()


def test_letters_that_nobody_gave_a_meaning_are_refused(tmp_path: Path) -> None:
    own = ClientSetup(0, 2, data=source_of(text_folder(tmp_path / "own", mine="xyz q ")))
    with pytest.raises(ExperimentError, match="does not say which token id stands for which"):
        find_data(Experiment.from_toml(""), own, Outline(10, 10))


@pytest.mark.parametrize(("labels", "server"), [([0, 1, 2], 10), ([0, 1, 9], 10)])
def test_a_client_need_not_hold_every_class(labels: list[int], server: int) -> None:
    inputs = torch.rand(9, 4)
    data = from_arrays("mine", inputs, labels * 3, inputs, labels * 3)
    experiment = Experiment.from_toml("[data]\npartition = 'iid'\n")
    found = find_data(experiment, ClientSetup(0, 2, data=data), Outline(server))
    site = open_site(experiment, ClientSetup(0, 2, data=data), found)
    assert site.network.model(inputs).shape == (9, server)


def test_classes_token_ids_and_targets_that_the_server_does_not_have_are_refused() -> None:
    experiment, inputs = Experiment.from_toml(""), torch.rand(6, 4)
    classes = from_arrays("mine", inputs, [0, 5] * 3, inputs, [0, 5] * 3)
    with pytest.raises(ValueError, match="mine: has 6 classes, and the data of the server 4"):
        find_data(experiment, ClientSetup(0, 2, data=classes), Outline(4))
    ids = torch.arange(12).view(6, 2)
    tokens = from_arrays("mine", ids, [0, 1] * 3, ids, [0, 1] * 3)
    with pytest.raises(ValueError, match="token ids go up to 11, and those of the server's data to 9"):
        find_data(experiment, ClientSetup(0, 2, data=tokens), Outline(2, 10))
    numbers = from_arrays("mine", inputs, inputs, inputs, inputs, task="regression")
    with pytest.raises(ValueError, match="has 4 numbers per target, and the data of the server 1"):
        find_data(experiment, ClientSetup(0, 2, data=numbers), Outline(1))


def test_four_arrays_become_what_the_experiment_learns_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lengths_of_mine.py").write_text(
        "import numpy as np\ndef load():\n    x = np.ones((4, 3))\n    return x, x[:, 0] / 2, x, x[:, 0] / 2\n"
    )
    monkeypatch.chdir(tmp_path)
    own = ClientSetup(0, 2, data=source_of("lengths_of_mine:load"))
    experiment = Experiment.from_toml("[task]\nname = 'regression'\n[data]\npartition = 'iid'\n")
    assert find_data(experiment, own, Outline(1)).train.labels.tolist() == [0.5] * 4


def test_a_client_that_stays_reads_its_text_anew_for_sequences_of_another_length(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "texts", a="abc xyz ", b="öäü ")
    working = _Work(ClientSetup(0, 2, allowed=(folder,)), tmp_path / "state")
    for run, length in (("0" * 16, 10), ("1" * 16, 15)):
        table = {"data": {"dataset": folder, "length": length}, "model": {"width": 4}, "federation": {"clients": 2}}
        _, site = working.site_of({"run": run, "experiment": Experiment.from_table(table).to_toml()})
        assert site.feed.samples.inputs.shape[1] == length


@pytest.mark.parametrize("dataset", ["subprocess:Popen", "text:/etc"])
def test_a_client_with_data_of_its_own_need_not_allow_where_the_servers_lie(tmp_path: Path, dataset: str) -> None:
    text = Experiment.from_table({"data": {"dataset": dataset, "partition": "iid"}, "task": {"name": "classification"}})
    config = {"run": "0" * 16, "experiment": text.with_settings(["model.name=mlp"]).to_toml()}
    own = _Work(ClientSetup(1, 10, data=own_data(1)), tmp_path / "own")
    assert own.site_of(config)[1].feed.samples.labels.equal(own_data(1).train.labels)
    with pytest.raises(ExperimentError, match="--allow"):
        _Work(ClientSetup(1, 10), tmp_path / "other").site_of(config)


def test_samples_that_the_model_cannot_take_are_refused_before_training() -> None:
    inputs = torch.rand(6, 4)
    data = from_arrays("mine", inputs, [0, 1] * 3, inputs, [0, 1] * 3)
    experiment = Experiment.from_toml("[model]\nname = 'own_task:network'\n")
    wide = from_arrays("mine", inputs.repeat(1, 2), [0, 1] * 3, inputs.repeat(1, 2), [0, 1] * 3)
    open_site(experiment, ClientSetup(0, 2, data=data), data)
    with pytest.raises(ExperimentError, match="the model cannot take the samples of mine"):
        open_site(experiment, ClientSetup(0, 2, data=wide), wide)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("text:nowhere", "text:nowhere: there is no such folder"),
        ("nowhere:load", "nowhere:load: cannot be imported"),
        ("digit", "data.dataset = digit: digits, mnist"),
    ],
)
def test_data_that_is_not_there_is_missed_before_anything_is_started(tmp_path: Path, data: str, says: str) -> None:
    to = ("--server", "127.0.0.1:1", "--certs", "certs", "--data-partition", "0/2")
    client = ternfed(tmp_path, "client", *to, "--data", data)
    said = client.communicate(timeout=60)[1]
    assert client.returncode == 2
    assert says in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_clients_bring_folders_of_text_some_of_their_own_and_one_of_the_experiment(tmp_path: Path) -> None:
    text_folder(tmp_path / "whole", a="to be or not to be, ", b="that is the qüestion: ")
    text_folder(tmp_path / "mine", part="whether 'tis nobler in the mind, ")
    settings = ["data.dataset=text:whole", "data.length=20", "model.width=8", "federation.rounds=2"]
    port = str(processes.free_port())
    assert ternfed(tmp_path, "certs", "init", "certs", "--host", "127.0.0.1", "--clients", "2").wait(60) == 0
    where = ("--host", "127.0.0.1", "--port", port, "--certs", "certs", "--out", "run", "--json", "--deadline", "60")
    server = ternfed(tmp_path, "server", *(word for each in settings for word in ("--set", each)), *where)
    to = ("--server", f"127.0.0.1:{port}", "--certs", "certs")
    clients = [
        ternfed(tmp_path, "client", *to, "--allow", "text:whole", "--data-partition", "0/2"),
        ternfed(tmp_path, "client", *to, "--data", "text:mine", "--data-partition", "1/2"),
    ]
    plays_two_rounds(server, clients)
    assert [outcome.dropped for outcome in read_rounds(tmp_path / "run" / "rounds.jsonl")[0]] == [(), ()]


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
    plays_two_rounds(server, clients)
    experiment = Experiment.from_toml(EXPERIMENT).with_settings(["federation.clients=2"])
    rounds = read_rounds(tmp_path / "run" / "rounds.jsonl")[0]
    sites = [open_site(experiment, ClientSetup(i, 2, data=own_data(i)), own_data(i)) for i in range(2)]
    model = load_file(tmp_path / "run" / "last.safetensors")
    assert same_bits(model, replay(experiment, rounds, sites))
    assert not same_bits(model, replay(experiment, rounds)), "it is that of the experiment's own data set"

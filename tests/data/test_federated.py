"""The hub's federated data sets: each sample stays with the client whose it is, and the last tenth is test data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ternfed.data import federated
from ternfed.data.federated import last_tenths
from ternfed.data.sets import load, without_samples
from ternfed.data.values import DataMissing
from ternfed.experiment.experiment import Experiment
from ternfed.round.federation import open_federation

datasets = pytest.importorskip("datasets", reason="the extra [data]")

LINES = {
    "HAMLET": "To be, or not to be, that is the question: " * 40,
    "OPHELIA": "Good my lord, how does your honour? " * 30,
}


def shakespeare() -> Any:
    """Rows as LEAF has them: a window at every character, the clients one after another."""
    rows = [
        {"character_id": who, "x": text[at : at + 80], "y": text[at + 80]}
        for who, text in LINES.items()
        for at in range(len(text) - 80)
    ]
    return datasets.Dataset.from_list(rows)


def femnist(writers: int = 3, each: int = 20) -> Any:
    from PIL import Image

    features = datasets.Features(
        image=datasets.Image(),
        writer_id=datasets.Value("string"),
        hsf_id=datasets.Value("int64"),
        character=datasets.ClassLabel(names=[str(n) for n in range(62)]),
    )
    rows = [
        {
            "image": Image.fromarray(np.full((28, 28), 10 * writer + at, np.uint8)),
            "writer_id": f"f{writer:04}",
            "hsf_id": 0,
            "character": (writer + at) % 62,
        }
        for at in range(each)  # writers take turns, so that nothing relies on their order
        for writer in range(writers)
    ]
    return datasets.Dataset.from_list(rows, features=features)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERNFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TERNFED_DATA", raising=False)
    made = {"flwrlabs/shakespeare": shakespeare, "flwrlabs/femnist": femnist}
    for name, make in made.items():
        datasets.DatasetDict(train=make()).save_to_disk(tmp_path / name)
    monkeypatch.setattr(federated, "open_hub", lambda name: datasets.load_from_disk(tmp_path / name))


@pytest.mark.usefixtures("hub")
class TestShakespeare:
    def test_windows_follow_each_other_and_targets_are_the_next_characters(self) -> None:
        data = load("flwrlabs/shakespeare")
        assert data.train.inputs.shape[1:] == (80,)
        assert torch.equal(data.train.inputs[:, 1:], data.train.labels[:, :-1])
        assert data.clients is not None
        sizes = [-(-(len(text) - 80) // 80) for text in LINES.values()]
        assert torch.bincount(data.clients).tolist() == [size - size // 10 for size in sizes]
        assert len(data.test) == sum(size // 10 for size in sizes)
        hamlet = data.train.inputs[data.clients == 0]
        assert torch.equal(hamlet[1:, 0], data.train.labels[data.clients == 0][:-1, -1])
        assert data.vocabulary == len(set("".join(LINES.values()))) + 1

    def test_one_setting_is_an_experiment_that_runs(self) -> None:
        experiment = Experiment.from_toml("", ["data.dataset=flwrlabs/shakespeare", "model.width=8"])
        federation = open_federation(experiment, experiment.load_data())
        assert federation.experiment.federation.clients == len(federation.parts) == 2
        assert federation.network.task.name == "language"


@pytest.mark.usefixtures("hub")
class TestFemnist:
    def test_pictures_stay_with_their_writers(self) -> None:
        data = load("flwrlabs/femnist")
        assert (data.train.inputs.shape, data.train.inputs.dtype) == ((54, 1, 28, 28), torch.uint8)
        assert data.clients is not None
        assert torch.bincount(data.clients).tolist() == [18, 18, 18]
        for sample, owner, label in zip(data.train.inputs, data.clients, data.train.labels, strict=True):
            assert int(sample[0, 0, 0]) - 10 * int(owner) == int(label) - int(owner)
        assert data.test.labels.tolist() == [18, 19, 20, 19, 20, 21]
        assert data.classes == 62

    def test_the_second_time_it_comes_from_the_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = load("flwrlabs/femnist")
        monkeypatch.setattr(federated, "read_rows", lambda name, rows: pytest.fail("decoded again"))
        again = load("flwrlabs/femnist")
        assert torch.equal(first.train.inputs, again.train.inputs)
        assert first.clients is not None
        assert again.clients is not None
        assert torch.equal(first.clients, again.clients)

    def test_its_shape_is_known_without_a_sample(self) -> None:
        shape_only = without_samples("flwrlabs/femnist")
        assert shape_only is not None
        assert shape_only.train.inputs.shape[1:] == load("flwrlabs/femnist").train.inputs.shape[1:]


def test_without_hub_and_folder_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        raise DataMissing("nothing")

    monkeypatch.setattr(federated, "open_hub", nothing)
    with pytest.raises(DataMissing, match="flwrlabs/femnist: the hub gave nothing; connect to the network"):
        load("flwrlabs/femnist")


def test_a_folder_of_the_hubs_files_serves_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERNFED_CACHE", str(tmp_path / "cache"))
    datasets.DatasetDict(train=femnist()).save_to_disk(tmp_path / "flwrlabs" / "femnist")
    assert len(load("flwrlabs/femnist", tmp_path).train) == 54


def test_every_client_keeps_most_of_its_samples() -> None:
    owners = np.array([2, 0, 1] * 25 + [1] * 6)
    test = last_tenths(owners)
    assert np.bincount(owners[test]).tolist() == [2, 3, 2]
    assert test[-3:].all()
    assert not last_tenths(np.zeros(9, np.int64)).any()

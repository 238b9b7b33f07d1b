"""The natural partition: whose a sample is stays with it, from arrays, folders and parquet to the clients."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ternfed.data.partitions import Natural
from ternfed.data.sets import DataMissing, from_arrays, load, save_arrays
from ternfed.data.values import DataSet, Samples
from ternfed.experiment.experiment import Experiment, ExperimentError
from ternfed.round.federation import open_federation
from ternfed.task import LANGUAGE, REGRESSION

HOSPITALS = np.array(["north", "south", "east"])[np.arange(60) % 3]
X, Y = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2


def hospitals() -> DataSet:
    return from_arrays("hospitals", X, Y, X[:9], Y[:9], clients=HOSPITALS)


def experiment(*settings: str) -> Experiment:
    few = ("federation.clients=3", "federation.rounds=1", "data.partition=natural", "algorithm.name=fedavg")
    return Experiment.from_toml("", ["data.dataset=test_natural:hospitals", *few, *settings])


class TestEverySampleStaysWithItsOwner:
    def test_clients_are_numbered_in_the_order_of_their_names(self) -> None:
        data = hospitals()
        assert data.clients is not None
        assert data.clients.tolist() == [{"east": 0, "north": 1, "south": 2}[name] for name in HOSPITALS]

    def test_and_what_is_held_out_comes_from_all_of_them(self) -> None:
        federation = open_federation(experiment("data.hold_out=0.1"), hospitals())
        names = ("east", "north", "south")
        assert [set(HOSPITALS[part].tolist()) for part in federation.parts] == [{name} for name in names]
        assert [len(part) for part in federation.parts] == [18, 18, 18]

    def test_from_files_of_arrays(self, tmp_path: Path) -> None:
        data = hospitals()
        assert data.clients is not None
        assert tmp_path / "train_clients.npy" in save_arrays(data, tmp_path)
        again = load(f"arrays:{tmp_path}")
        assert again.clients is not None
        assert torch.equal(again.clients, data.clients)
        assert torch.equal(again.train.inputs, data.train.inputs)
        save_arrays(from_arrays("nobody's", X, Y, X, Y), tmp_path)
        assert load(f"arrays:{tmp_path}").clients is None

    def test_from_parquet_with_a_client_column(self, tmp_path: Path) -> None:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        for split, rows in (("train", slice(None)), ("test", slice(9))):
            columns = {"inputs": list(X[rows]), "label": 0.5 * Y[rows], "client": HOSPITALS[rows]}
            parquet.write_table(arrow.table(columns), tmp_path / f"{split}.parquet")
        data = load(f"parquet:{tmp_path}", task=REGRESSION)
        assert data.clients is not None
        assert torch.equal(data.clients, hospitals().clients)
        assert torch.equal(data.train.inputs, torch.from_numpy(X))
        assert data.train.labels.tolist() == (0.5 * Y).tolist()

    def test_columns_that_are_not_there_are_named(self, tmp_path: Path) -> None:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        with pytest.raises(DataMissing, match=r"holds no train\*\.parquet"):
            load(f"parquet:{tmp_path}")
        parquet.write_table(arrow.table({"inputs": list(X), "target": Y}), tmp_path / "train.parquet")
        with pytest.raises(DataMissing, match="have no column label; there is inputs, target"):
            load(f"parquet:{tmp_path}")


class TestRefusals:
    def test_data_that_does_not_say_whose_its_samples_are(self) -> None:
        others = 'does not say whose each sample is; "iid", "classes", "dirichlet" or "unbalanced" is allowed'
        with pytest.raises(ExperimentError, match=others):
            open_federation(experiment(), from_arrays("nobody's", X, Y, X, Y))

    def test_fewer_clients_than_the_data_has(self) -> None:
        with pytest.raises(ExperimentError, match="clients = 2: the data has 3 of its own, and so many are needed"):
            open_federation(experiment("federation.clients=2"), hospitals())

    def test_more_clients_than_the_data_has(self) -> None:
        with pytest.raises(ExperimentError, match=r"federation\.clients = 4: the data has 3 of its own"):
            open_federation(experiment("federation.clients=4"), hospitals())

    def test_a_client_without_samples(self) -> None:
        with pytest.raises(ValueError, match="client 1 has no samples"):
            Natural().split(torch.tensor([0, 2, 2]), 3, torch.Generator())

    def test_an_owner_for_some_samples_alone(self) -> None:
        with pytest.raises(ValueError, match="a number or name for each of the 60 training samples is needed"):
            from_arrays("hospitals", X, Y, X, Y, clients=HOSPITALS[:5])


class TestWhatCannotBeTrainedOnIsRefusedBefore:
    def test_inputs_that_are_no_numbers(self) -> None:
        broken = X.copy()
        broken[5, 1] = np.nan
        with pytest.raises(ValueError, match="values that are not finite; replace them first"):
            from_arrays("mine", broken, Y, X, Y)
        samples, targets = torch.from_numpy(broken), torch.from_numpy(Y)
        data = DataSet("mine", Samples(samples, targets), hospitals().test, 2, (0.0,), (1.0,))
        with pytest.raises(ValueError, match="mine: the train inputs hold NaN or infinity; replace them first"):
            open_federation(experiment("data.partition=iid"), data)

    def test_labels_that_are_text(self) -> None:
        with pytest.raises(ValueError, match="train_y holds text; number its classes from 0 first"):
            from_arrays("mine", X, HOSPITALS, X, HOSPITALS)

    @pytest.mark.parametrize("setting", ["classes_per_client=2", "alpha=0.5"])
    def test_partitions_by_class_of_text(self, setting: str) -> None:
        ids = np.arange(240).reshape(60, 4) % 7
        data = from_arrays("ids", ids, ids, ids, ids, task=LANGUAGE, clients=HOSPITALS)
        by_class = experiment().with_settings([f"data.{setting}"])
        with pytest.raises(ExperimentError) as refused:
            by_class.make_partition(data.train.labels, LANGUAGE, data.clients)
        assert 'language has no classes; "natural", "iid" or "unbalanced" is allowed' in str(refused.value)


class TestWholeNumbers:
    def test_stay_whole_numbers(self) -> None:
        ids = np.arange(240, dtype=np.int32).reshape(60, 4) % 7
        data = from_arrays("ids", ids, Y, ids, Y)
        assert data.train.inputs.dtype == torch.int64
        assert data.train.inputs.tolist() == ids.tolist()

    def test_have_a_vocabulary_that_their_classes_say_nothing_about(self) -> None:
        ids = np.arange(240).reshape(60, 4) % 7
        assert from_arrays("reviews", ids, Y, ids, Y).vocabulary == 7
        text = from_arrays("text", ids, np.minimum(ids, 5), ids, ids % 3, task=LANGUAGE)
        assert (text.vocabulary, text.classes) == (7, 7)
        with pytest.raises(ValueError, match="mine: token ids go down to -3"):
            from_arrays("mine", ids - 3, Y, ids, Y)

    def test_and_a_network_for_numbers_says_so(self) -> None:
        ids = np.arange(240).reshape(60, 4) % 7
        with pytest.raises(ExperimentError, match="make them floats where they are measurements"):
            open_federation(experiment("data.partition=iid"), from_arrays("ids", ids, Y, ids, Y))

    def test_but_pixels_are_pixels(self) -> None:
        pixels = np.zeros((60, 8, 8), np.uint8)
        assert from_arrays("pixels", pixels, Y, pixels, Y).train.inputs.dtype == torch.uint8

    def test_targets_of_tokens_need_a_place_each(self) -> None:
        ids = np.zeros((60, 4), np.int64)
        with pytest.raises(ValueError, match="language needs whole numbers of shape samples × …"):
            from_arrays("ids", ids, Y, ids, Y, task=LANGUAGE)
        with pytest.raises(ValueError, match="every target is -100, so nothing counts"):
            from_arrays("ids", ids, ids - 100, ids, ids, task=LANGUAGE)


class TestHowManyClientsThereAre:
    def test_is_counted_in_the_data_where_nobody_says_it(self) -> None:
        own = Experiment.from_toml("", ["data.dataset=parquet:somewhere", "data.partition=natural"])
        assert own.federation.clients == 0
        x = np.zeros((12, 3), np.float32)
        data = from_arrays("wards", x, np.arange(12) % 2, x, np.arange(12) % 2, clients=np.arange(12) % 4)
        counted = own.counted(data)
        assert counted.federation.clients == 4
        assert counted.counted(data) == counted
        assert Experiment.from_toml(counted.to_toml()) == counted

    def test_is_never_nought_with_another_partition(self) -> None:
        with pytest.raises(ExperimentError, match=r"federation.clients = 0: a whole number of at least 1"):
            Experiment.from_toml("", ["federation.clients=0"])

    def test_is_obeyed_where_somebody_says_it(self) -> None:
        own = Experiment.from_toml("", ["data.dataset=text:somewhere", "federation.clients=7"])
        assert own.federation.clients == 7

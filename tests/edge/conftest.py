"""Real data where the machine has it, and a finished run on the digits, made once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.experiment import Experiment
from ternfed.federation import open_federation
from ternfed.runs import RunFolder, summarise
from ternfed.simulate import record


@pytest.fixture(scope="session")
def real_data() -> Path:
    named = os.environ.get("TERNFED_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("MNIST and CIFAR-10 are not on this machine; TERNFED_DATA names their folder")
    return folder


@pytest.fixture(scope="session")
def mnist(real_data: Path) -> DataSet:
    return load("mnist", real_data)


@pytest.fixture(scope="session")
def cifar(real_data: Path) -> DataSet:
    return load("cifar10", real_data)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run: T-FedAvg on the digits, three rounds."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn, the extra [data]")
    path = tmp_path_factory.mktemp("runs") / "digits"
    experiment = Experiment.from_table({"name": "digits", "federation": {"rounds": 3, "clients": 4}})
    with RunFolder.create(path, experiment) as folder:
        rounds = list(record(open_federation(experiment, load("digits")), folder))
        folder.finish(summarise(rounds, experiment))
    return path

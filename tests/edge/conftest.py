"""The real data sets, and a finished run on the digits, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.engines.simulate import record
from ternfed.experiment.experiment import Experiment
from ternfed.round.federation import open_federation
from ternfed.runs.folder import RunFolder, summarise


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

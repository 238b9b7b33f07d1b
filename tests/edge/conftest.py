"""Small trained models, made once: a finished run on the digits, networks of the paper with real images behind them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from ternfed.data.images import normalise
from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.edge import Inputs, Trained, trained
from ternfed.experiment import Experiment
from ternfed.federation import open_federation
from ternfed.layers import parameter_groups, ternarize_, ternary_names
from ternfed.runs import RunFolder, summarise
from ternfed.simulate import record
from ternfed.ternary import Quantizer, requantize


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


def with_two_scales(network: nn.Module) -> nn.Module:
    """The inner layers as the server broadcasts them: codes, w_p and w_n."""
    for name in ternary_names(network):
        weight = network.get_parameter(name).data
        weight.copy_(requantize(weight).dense())
    return network


def with_statistics(network: nn.Module, data: DataSet, seed: int = 0) -> Trained:
    """A network with two scales a layer, BatchNorm of real images and of no neutral value."""
    torch.manual_seed(seed)
    with_two_scales(network).train()
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    with torch.no_grad():
        for images in data.train.inputs[:256].split(64):
            network(normalise(images, data.mean, data.deviation))
    return trained(network, Inputs.of(data))


def briefly_trained(network: nn.Module, data: DataSet, samples: int, quantizer: Quantizer | None = None) -> Trained:
    """One epoch of ternary training over the first samples."""
    torch.manual_seed(0)
    prepared = ternarize_(network, quantizer)
    optimizer = torch.optim.Adam(parameter_groups(prepared, 0.002, factors=0.1))
    inputs = normalise(data.train.inputs[:samples], data.mean, data.deviation)
    for chosen in torch.randperm(samples).split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(prepared(inputs[chosen]), data.train.labels[chosen]).backward()
        optimizer.step()
    return trained(prepared, Inputs.of(data))

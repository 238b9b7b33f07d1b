"""Each client hands over what it has: arrays, or any iterable of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ternfed import federate, from_clients
from ternfed.data.values import from_arrays
from ternfed.experiment.experiment import ExperimentError
from ternfed.task import REGRESSION

DRAWS = torch.Generator().manual_seed(0)


def samples(count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6, generator=DRAWS)
    return x, (x[:, 0] > 0).long()


def batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Read once, as a generator is."""
    yield from zip(x.split(4), y.split(4), strict=True)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


FEW = ("federation.rounds=2", "training.epochs=1", "training.batch=8", "data.hold_out=0.1", "training.rate=0.1")


def test_loaders_generators_and_arrays_are_one_data_set() -> None:
    sets, test = [samples(n) for n in (12, 9, 30)], samples(20)
    loader: DataLoader[Any] = DataLoader(TensorDataset(*sets[1]), batch_size=4)
    data = from_clients("mixed", [sets[0], loader, batches(*sets[2])], test)
    assert torch.equal(data.train.inputs, torch.cat([x for x, _ in sets]))
    assert torch.equal(data.train.labels, torch.cat([y for _, y in sets]))
    assert data.clients is not None
    assert data.clients.tolist() == [0] * 12 + [1] * 9 + [2] * 30


def test_federate_takes_them_and_counts_the_clients() -> None:
    sets, test = [samples(n) for n in (12, 9, 30)], samples(20)
    rounds = list(federate(net(), {"a": sets[0], "b": batches(*sets[1]), "c": sets[2]}, *FEW, test=test))
    assert [record.clients for record in rounds] == [3, 3]
    owners = np.repeat(np.arange(3), [12, 9, 30])
    both = [torch.cat([pair[part] for pair in sets]) for part in range(2)]
    whole = from_arrays("clients", *both, *test, clients=owners)
    same = list(federate(net(), whole, *FEW, "data.partition=natural"))
    assert [record.score for record in same] == [record.score for record in rounds]


def test_the_task_says_what_targets_are() -> None:
    x, _ = samples(30)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 1))
    for given in ({"task": REGRESSION}, {}):
        settings = () if given else ("task.name=regression",)
        *_, last = federate(model, [(x, x[:, 0]), (x, x[:, 1])], *FEW, *settings, test=(x, x[:, 0]), **given)
        assert last.metric == "mse"


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ([], "there are no clients"),
        (
            [samples(4), (torch.empty(0, 6), torch.empty(0, dtype=torch.int64))],
            "client 1: has no samples; leave it out",
        ),
        ({"ward": []}, "client ward: has no samples"),
        ([[torch.zeros(3, 6)]], "client 0: a batch is a Tensor; \\(inputs, targets\\) is needed"),
        ([7], "client 0: is a int"),
        ([(torch.zeros(3, 6), torch.zeros(4))], "inputs of shape \\(3, 6\\) for targets of shape \\(4,\\)"),
        ([samples(4), (torch.zeros(3, 5), torch.zeros(3))], "samples of shape \\(6,\\) and of shape \\(5,\\)"),
    ],
)
def test_what_no_client_can_have_is_one_sentence(clients: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        from_clients("own", clients, samples(5))


def test_without_test_data_nothing_can_be_judged() -> None:
    with pytest.raises(ExperimentError, match="test: is needed"):
        next(federate(net(), [samples(9)], *FEW))
    with pytest.raises(ExperimentError, match="test: has no meaning here"):
        next(federate(net(), from_clients("own", [samples(9)], samples(5)), *FEW, test=samples(5)))


def test_targets_that_are_a_list_are_read_like_an_array() -> None:
    x, y = samples(12)
    data = from_clients("listed", [(x, y.tolist())], samples(4))
    assert torch.equal(data.train.labels, y)
    with pytest.raises(ValueError, match="train_y holds text; number its classes from 0 first"):
        from_clients("named", [(x, ["a", "b", "c"] * 4)], samples(4))


def test_a_task_by_its_name() -> None:
    x, _ = samples(12)
    targets, net_of_one = x.sum(1), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 1))
    with pytest.raises(ValueError, match=r"of type float32; one whole number .*, the task is \"regression\""):
        from_arrays("sums", x, targets, x, targets)
    whole = from_arrays("sums", x, targets, x, targets, task="regression")
    assert torch.equal(whole.train.labels, targets)
    few = (*FEW, "federation.clients=2")
    assert [record.metric for record in federate(net_of_one, whole, *few, task="regression")] == ["mse", "mse"]
    with pytest.raises(ValueError, match=r"task = 'regresion': a Task or one of classification, .* is needed"):
        from_arrays("sums", x, targets, x, targets, task="regresion")

"""The exported file predicts the class that PyTorch's ternary model does, on real test images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from edge_models import briefly_trained, with_statistics
from numpy.typing import NDArray
from torch import Tensor, nn

from ternfed.data.images import normalise
from ternfed.data.values import DataSet, Samples
from ternfed.edge import Trained, export, inspect, open_model, predict, summarise
from ternfed.models import cnn, mlp, resnet18
from ternfed.quantize.ternary import TTQ

pytest.importorskip("onnxruntime", reason="the extra [edge]")
pytest.importorskip("onnxscript", reason="the extra [edge]")


class Compared(NamedTuple):
    same: NDArray[np.bool_]
    """Whether the ONNX file, fed raw images, and PyTorch give the same class."""
    margin: NDArray[np.float32]
    """By how much PyTorch's first logit leads its second."""
    accuracy: float
    """A network that learned nothing, its logits all alike, would agree with anything."""

    @property
    def share(self) -> float:
        return float(self.same.mean())


def compare(model: Trained, samples: Samples, path: Path) -> Compared:
    found = summarise(predict(open_model(export(model, path).path), samples.inputs.numpy(), batch=100)).predictions
    with torch.no_grad():
        batches = [
            model.network(normalise(images, model.inputs.mean, model.inputs.std))
            for images in samples.inputs.split(100)
        ]
    best = torch.cat(batches).topk(2)
    same = found == best.indices[:, 0].numpy()
    accuracy = float((best.indices[:, 0] == samples.labels).float().mean())
    print(f"the same class for {same.sum()} of {len(same)}, {accuracy:.2%} of them right")  # shown by pytest -rP
    return Compared(same, (best.values[:, 0] - best.values[:, 1]).numpy(), accuracy)


def test_the_mlp_on_all_of_mnists_test_images(mnist: DataSet, tmp_path: Path) -> None:
    model = briefly_trained(mlp(), mnist, 12_000)
    assert list(model.ternary) == ["linear2.weight"]
    result = compare(model, mnist.test, tmp_path / "mlp.onnx")
    assert result.accuracy > 0.8
    assert result.share >= 0.999


@pytest.mark.parametrize("make", [cnn, resnet18])
def test_the_convolutional_networks_on_cifar_images(
    make: Callable[[], nn.Module], cifar: DataSet, tmp_path: Path
) -> None:
    """Untrained, so that many logits are close: harder than a trained network. The slow suite takes all 10,000."""
    model = with_statistics(make(), cifar)
    some = Samples(cifar.test.inputs[:300], cifar.test.labels[:300])
    result = compare(model, some, tmp_path / "model.onnx")
    assert result.margin.min() > 0
    assert result.share == 1.0


class Wide(nn.Module):
    """A user's own network, its middle layer large enough for the 2-bit product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(784, 2048)
        self.middle = nn.Linear(2048, 2048)
        self.norm = nn.BatchNorm1d(2048)
        self.last = nn.Linear(2048, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(images.flatten(1)).relu()
        result: Tensor = self.last(self.norm(self.middle(hidden)).relu())
        return result


@pytest.mark.slow
def test_a_users_own_module_with_activations_in_int8_on_all_of_mnists_test_images(
    mnist: DataSet, tmp_path: Path
) -> None:
    """Two scales (TTQ), BatchNorm folded into the product; the few that differ are near ties of two classes."""
    model = briefly_trained(Wide(), mnist, 3_000, TTQ)
    scales = model.ternary["middle.weight"]
    assert scales.positive != scales.negative
    result = compare(model, mnist.test, tmp_path / "own.onnx")
    assert inspect(tmp_path / "own.onnx").facts["products"] == ["middle.weight"]
    assert result.accuracy > 0.8
    assert result.share >= 0.999
    assert (result.margin[~result.same] < np.quantile(result.margin, 0.02)).all()
    export(model, tmp_path / "exact.onnx", exact=True)
    assert inspect(tmp_path / "exact.onnx").facts["products"] == []


@pytest.mark.slow
@pytest.mark.parametrize("make", [cnn, resnet18])
def test_the_convolutional_networks_on_all_of_cifars_test_images(
    make: Callable[[], nn.Module], cifar: DataSet, tmp_path: Path
) -> None:
    model = briefly_trained(make(), cifar, 3_000)
    result = compare(model, cifar.test, tmp_path / "model.onnx")
    assert result.accuracy > 0.15
    assert result.share >= 0.999

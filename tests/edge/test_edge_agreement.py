"""The exported file predicts the class that PyTorch's ternary model does, on real test images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import briefly_trained, with_statistics
from torch import Tensor, nn

from ternfed.data.images import normalise
from ternfed.data.values import DataSet, Samples
from ternfed.edge import Trained, export, inspect, open_model, predict, summarise
from ternfed.models import cnn, mlp, resnet18
from ternfed.ternary import TTQ

pytest.importorskip("onnxruntime", reason="the extra [edge]")
pytest.importorskip("onnxscript", reason="the extra [edge]")


def agreement(model: Trained, samples: Samples, path: Path) -> float:
    """Share of samples with the same class from the ONNX file, fed raw images, and from PyTorch."""
    written = export(model, path)
    found = summarise(predict(open_model(written.path), samples.inputs.numpy(), batch=100)).classes
    wanted = []
    with torch.no_grad():
        for images in samples.inputs.split(100):
            ready = normalise(images, model.inputs.mean, model.inputs.deviation)
            wanted.append(model.network(ready).argmax(1).numpy())
    return float((found == np.concatenate(wanted)).mean())


def test_the_mlp_on_all_of_mnists_test_images(mnist: DataSet, tmp_path: Path) -> None:
    model = briefly_trained(mlp(), mnist, 12_000)
    assert list(model.ternary) == ["linear2.weight"]
    assert agreement(model, mnist.test, tmp_path / "mlp.onnx") >= 0.999


@pytest.mark.parametrize("make", [cnn, resnet18])
def test_the_convolutional_networks_on_cifar_images(
    make: Callable[[], nn.Module], cifar: DataSet, tmp_path: Path
) -> None:
    """Untrained, so that many logits are close: harder than a trained network. The slow suite takes all 10,000."""
    model = with_statistics(make(), cifar)
    some = Samples(cifar.test.inputs[:300], cifar.test.labels[:300])
    assert agreement(model, some, tmp_path / "model.onnx") == 1.0


class Wide(nn.Module):
    """A user's own network, its middle layer large enough for the 2-bit product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(784, 1024)
        self.middle = nn.Linear(1024, 1024)
        self.norm = nn.BatchNorm1d(1024)
        self.last = nn.Linear(1024, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(images.flatten(1)).relu()
        result: Tensor = self.last(self.norm(self.middle(hidden)).relu())
        return result


def test_a_users_own_module_with_activations_in_int8_on_all_of_mnists_test_images(
    mnist: DataSet, tmp_path: Path
) -> None:
    """Two scales (TTQ), BatchNorm folded into the product; the few that differ are near ties of two classes."""
    model = briefly_trained(Wide(), mnist, 3_000, TTQ)
    scales = model.ternary["middle.weight"]
    assert scales.positive != scales.negative
    share = agreement(model, mnist.test, tmp_path / "own.onnx")
    assert inspect(tmp_path / "own.onnx").facts["products"] == ["middle.weight"]
    assert share >= 0.999
    export(model, tmp_path / "exact.onnx", exact=True)
    assert inspect(tmp_path / "exact.onnx").facts["products"] == []


@pytest.mark.slow
@pytest.mark.parametrize("make", [cnn, resnet18])
def test_the_convolutional_networks_on_all_of_cifars_test_images(
    make: Callable[[], nn.Module], cifar: DataSet, tmp_path: Path
) -> None:
    model = briefly_trained(make(), cifar, 3_000)
    assert agreement(model, cifar.test, tmp_path / "model.onnx") >= 0.999

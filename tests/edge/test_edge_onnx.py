"""A network as ONNX: what the graph holds, and what happens to a network that cannot be one."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from edge_models import with_two_scales
from torch import Tensor, nn

from ternfed.data.images import normalise
from ternfed.edge import Inputs, ModelError, Trained, export, inspect, open_model, trained
from ternfed.models import cnn, resnet18
from ternfed.quantize.layers import ternarize_

onnx = pytest.importorskip("onnx", reason="the extra [edge]")
pytest.importorskip("onnxruntime", reason="the extra [edge]")
pytest.importorskip("onnxscript", reason="the extra [edge]")

IMAGE = Inputs((3, 16, 16), "uint8", (0.49, 0.48, 0.45), (0.25, 0.24, 0.26))


@pytest.fixture(scope="module")
def small_resnet() -> Trained:
    """ResNet18* of 8 channels, BatchNorm far from neutral."""
    torch.manual_seed(0)
    network = with_two_scales(resnet18(width=8))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1, 1)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return trained(network, IMAGE)


@pytest.fixture(scope="module")
def resnet_file(small_resnet: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(small_resnet, tmp_path_factory.mktemp("onnx") / "model.onnx").path


def logits(model: Trained, samples: Tensor) -> np.ndarray:
    with torch.no_grad():
        result: np.ndarray = model.network(normalise(samples, model.inputs.mean, model.inputs.std)).numpy()
    return result


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_any_batch_of_raw_images_gives_the_logits_of_pytorch(
    small_resnet: Trained, resnet_file: Path, batch: int
) -> None:
    samples = IMAGE.example(batch)
    wanted = logits(small_resnet, samples)
    found = open_model(resnet_file).run(samples.numpy())
    # Sums of about 72 products in float32, in 18 layers: rounding of 1e-7 each.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_batchnorm_is_folded_and_trits_are_packed(small_resnet: Trained, resnet_file: Path) -> None:
    graph = onnx.load(str(resnet_file)).graph
    kinds = {node.op_type for node in graph.node}
    assert "BatchNormalization" not in kinds
    assert "Unpack" in kinds
    stored = {each.name: each for each in graph.initializer}
    for name, weight in small_resnet.ternary.items():
        assert name not in stored
        assert len(stored[f"{name}/packed"].raw_data) == -(-weight.codes.numel() // 5)


def test_the_file_holds_nothing_of_the_machine_that_wrote_it(resnet_file: Path) -> None:
    data = resnet_file.read_bytes()
    assert b"site-packages" not in data
    assert b".py" not in data


@pytest.fixture(scope="module")
def tiny() -> Trained:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )
    return trained(with_two_scales(network), IMAGE)


def test_the_same_model_makes_the_same_bytes(tiny: Trained, tmp_path: Path) -> None:
    first, second = (export(tiny, tmp_path / name).path.read_bytes() for name in ("a.onnx", "b.onnx"))
    assert first == second


def test_without_normalisation_inside_the_predictor_does_it(tiny: Trained, tmp_path: Path) -> None:
    path = export(tiny, tmp_path / "model.onnx", normalised=False).path
    source = onnx.load(str(path)).graph.input[0]
    assert source.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    samples = IMAGE.example(3)
    wanted = logits(tiny, samples)
    np.testing.assert_allclose(open_model(path).run(samples.numpy()), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_onnxruntime_runs_the_graph_of_the_float_model(tmp_path: Path) -> None:
    """Once the file is open nothing of the trits is left: so it cannot be slower, and arithmetic is the same."""
    import onnxruntime

    from ternfed.edge.graph import float_onnx, to_onnx

    network = with_two_scales(cnn(size=8))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias)  # the exporter leaves out a bias of zeros
    model = trained(network, Inputs((3, 8, 8)))
    left = []
    for proto in (float_onnx(model.network, model.inputs), to_onnx(model, normalised=False)):
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "left.onnx")
        options.log_severity_level = 3  # it warns that the optimised file is for this machine alone
        onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(str(tmp_path / "left.onnx")).graph
        left.append([(node.op_type, len(node.input)) for node in graph.node])
    assert left[0] == left[1]


class Own(nn.Module):
    """A user's network with what the paper's have not: one dimension, three axes, sharing, LayerNorm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.mix = nn.Linear(16, 16, bias=False)
        self.wide = nn.Linear(16, 40)
        self.row = nn.LayerNorm(40)
        self.flat = nn.BatchNorm1d(40)
        self.group = nn.Conv1d(40, 40, 3, groups=4)
        self.last = nn.Linear(40, 5)
        self.drop = nn.Dropout(0.5)

    def forward(self, series: Tensor) -> Tensor:
        steps = self.norm(self.first(series)).relu().transpose(1, 2)
        steps = self.row(self.wide(self.mix(self.mix(steps)).relu()))
        steps = self.flat(self.drop(steps).transpose(1, 2))
        result: Tensor = self.last(self.group(steps).relu().mean(2))
        return result


@pytest.mark.parametrize("product_from", [1, 1 << 22], ids=["2-bit products", "unpacked at load"])
def test_a_users_own_module_is_exported(product_from: int) -> None:
    from ternfed.edge.graph import OUTPUT, to_onnx
    from ternfed.edge.runtime import session

    torch.manual_seed(0)
    network = with_two_scales(Own())
    with torch.no_grad():
        network(torch.randn(64, 3, 24))  # running statistics
    model = trained(network, Inputs((3, 24)))
    assert set(model.ternary) == {"mix.weight", "wide.weight", "group.weight"}
    proto = to_onnx(model, product_from=product_from)
    samples = model.inputs.example(16)
    wanted = logits(model, samples)
    (found,) = session(proto.SerializeToString()).run([OUTPUT], {"input": samples.numpy()})
    products = [node.op_type for node in proto.graph.node].count("MatMulNBits")
    # `mix` twice and `wide` once, each with two scales; activations in int8 are off by up to 1/254 of the largest.
    assert products == (6 if product_from == 1 else 0)
    tolerance = 2e-2 if product_from == 1 else 1e-5
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


class Gate(nn.Module):
    """Decides by the data, which no fixed graph can."""

    def forward(self, batch: Tensor) -> Tensor:
        return batch if batch.sum() > 0 else -batch


def test_a_layer_that_cannot_be_exported_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    network = nn.Sequential(
        OrderedDict(
            a=nn.Linear(8, 8), inner=nn.Sequential(OrderedDict(gate=Gate(), b=nn.Linear(8, 8))), c=nn.Linear(8, 2)
        )
    )
    model = trained(ternarize_(network), Inputs((8,)))
    with pytest.raises(ModelError, match=r"layer inner\.gate \(Gate\) cannot be exported: .*data-dependent"):
        export(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


class Fixed(nn.Module):
    def forward(self, batch: Tensor) -> Tensor:
        return batch.reshape(2, 8)


def test_a_network_for_one_batch_size_is_refused(tmp_path: Path) -> None:
    network = nn.Sequential(OrderedDict(a=nn.Linear(8, 8), fixed=Fixed(), b=nn.Linear(8, 2)))
    model = trained(network, Inputs((8,)))
    with pytest.raises(ModelError, match=r"layer fixed \(Fixed\) fails on 1 samples of shape \(8,\): RuntimeError"):
        export(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_returns_no_logits_is_refused() -> None:
    with pytest.raises(ModelError, match="one row of logits per sample is needed"):
        trained(nn.Conv2d(3, 4, 3), IMAGE)


def test_inspect_shows_the_packed_tensors_and_the_facts(small_resnet: Trained, resnet_file: Path) -> None:
    seen = inspect(resnet_file)
    assert seen.facts["digest"] == small_resnet.facts()["digest"]
    assert seen.facts["normalisation"] == "inside"
    assert seen.bytes == resnet_file.stat().st_size
    packed = [row for row in seen.rows if row.name.endswith("/packed")]
    assert len(packed) == len(small_resnet.ternary)
    assert {row.kind for row in packed} == {"uint8"}

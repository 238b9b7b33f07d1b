"""Models with layers of any kind, and runs that trained a part, as files for small devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ternfed.data.sets import load
from ternfed.edge import export, from_file, from_run
from ternfed.edge.inputs import Inputs, ModelError
from ternfed.edge.trained import trained
from ternfed.engines.simulate import record
from ternfed.experiment.experiment import Experiment
from ternfed.quantize.layers import ternarize_
from ternfed.round.federation import open_federation
from ternfed.runs.folder import RunFolder, summarise

BODIES = {
    "transposed": lambda: nn.ConvTranspose1d(8, 8, 3, padding=1),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "lstm": lambda: nn.LSTM(8, 8, 2, batch_first=True),
}


class Net(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(4, 8), body, nn.Linear(8, 3)

    def forward(self, batch: Tensor) -> Tensor:
        stem, turned = self.stem(batch), isinstance(self.body, nn.ConvTranspose1d)
        x = self.body(stem.transpose(1, 2)).transpose(1, 2) if turned else self.body(stem)
        out: Tensor = self.head((x[0] if isinstance(x, tuple) else x).mean(1))
        return out


@pytest.mark.parametrize("body", BODIES)
def test_every_kind_of_layer_is_exported_ternary(body: str, tmp_path: Path) -> None:
    """`export` holds an ONNX model to PyTorch's outputs itself."""
    pytest.importorskip("onnx")
    torch.manual_seed(0)
    model = trained(ternarize_(Net(BODIES[body]())), Inputs((6, 4)))
    matrices = [name for name, p in model.network.named_parameters() if name.startswith("body.") and p.dim() > 1]
    assert list(model.ternary) == matrices
    assert list(export(model, tmp_path / "model.onnx").ternary) == matrices
    back = from_file(export(model, tmp_path / "model.tern").path, Net(BODIES[body]()))
    assert all(torch.equal(tensor, back.weights[name]) for name, tensor in model.weights.items())


def test_a_run_that_trained_a_part_of_a_checkpoint_is_exported_whole(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn, the extra [data]")
    digits, start = load("digits"), tmp_path / "start.safetensors"
    network = Experiment.from_toml("", ["seed=7"]).make_network(digits)
    save_file(network.weights(), start)
    settings = ["federation.rounds=1", "federation.clients=4", f"model.weights={start}", 'model.trainable=["!linear1"]']
    experiment = Experiment.from_toml("", settings)
    with RunFolder.create(tmp_path / "run", experiment) as folder:
        folder.finish(summarise(list(record(open_federation(experiment, digits), folder)), experiment))
    model = from_run(tmp_path / "run")
    assert torch.equal(model.weights["linear1.weight"], network.weights()["linear1.weight"])
    assert not torch.equal(model.weights["linear3.weight"], network.weights()["linear3.weight"])
    path = export(model, tmp_path / "model.tern").path
    save_file(Experiment.from_toml("", ["seed=8"]).make_network(digits).weights(), start)
    with pytest.raises(ModelError, match=r"the weights that it did not train were others; has the file model\.weights"):
        from_run(tmp_path / "run")
    start.unlink()
    back = from_file(path)
    assert all(torch.equal(tensor, back.weights[name]) for name, tensor in model.weights.items())

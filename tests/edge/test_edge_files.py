"""From a run folder or a module to a file and back: nothing is lost, and the file says what it holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ternfed.data.sets import load
from ternfed.edge import (
    Inputs,
    ModelError,
    digest,
    export,
    export_from,
    from_file,
    from_run,
    inspect,
    open_model,
    open_trained,
    predict,
    samples_for,
    summarise,
    trained,
    write_predictions,
)
from ternfed.quantize.layers import ternarize_, ternary_weights
from ternfed.runs.folder import RunError, read_run

LAYERS = Inputs((6,))


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def test_a_prepared_model_is_exported_as_its_ternary_weights() -> None:
    prepared = ternarize_(network())
    model = trained(prepared, LAYERS)
    assert list(model.ternary) == ["2.weight"]
    wanted = ternary_weights(prepared)["2.weight"].dense()
    assert torch.equal(model.network.get_parameter("2.weight"), wanted)
    assert prepared[2].parametrizations, "the user's model is left as it was"


def test_a_weight_that_should_be_ternary_and_is_not_stays_float_and_is_listed() -> None:
    plain = network()
    model = trained(plain, LAYERS, expected=("2.weight",))
    assert dict(model.ternary) == {}
    assert model.kept_float == {"2.weight": "holds 64 different values, not scale × code"}
    assert torch.equal(model.network.get_parameter("2.weight"), plain[2].weight)


@pytest.mark.parametrize("suffix", [".tern", ".safetensors"])
def test_a_file_gives_back_the_same_weights_and_facts(finished_run: Path, tmp_path: Path, suffix: str) -> None:
    model = from_run(finished_run)
    written = export(model, tmp_path / f"model{suffix}")
    again = from_file(written.path)
    assert again.facts() == model.facts()
    assert all(torch.equal(tensor, model.weights[name]) for name, tensor in again.weights.items())
    assert written.digest == digest(model.weights) == inspect(written.path).facts["digest"]
    assert written.bytes == written.path.stat().st_size


def test_the_file_says_how_it_was_trained_and_how_good_it_was(finished_run: Path, tmp_path: Path) -> None:
    run = read_run(finished_run)
    assert run.summary is not None
    facts = inspect(export(from_run(finished_run), tmp_path / "model.tern").path).facts
    assert facts["settings"] == run.settings
    assert facts["accuracy"] == run.summary["best_accuracy"]
    assert facts["round"] == run.summary["best_round"]
    assert from_run(finished_run, which="last").score == run.summary["accuracy"]


def test_the_last_round_can_be_chosen(finished_run: Path) -> None:
    assert from_run(finished_run, which="last").round == 3


def test_a_round_of_strategy_two_is_exported_in_full_precision_and_says_so(finished_run: Path, tmp_path: Path) -> None:
    """The same run as if its last round had gone by Strategy II: floats in the model, II in the record."""
    import shutil

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(finished_run, tmp_path / "run")
    weights = load_file(folder / "last.safetensors")
    weights["linear2.weight"] += torch.randn_like(weights["linear2.weight"])
    save_file(weights, folder / "last.safetensors", {"ternfed": '{"round": 3}'})
    lines = (folder / "rounds.jsonl").read_bytes().splitlines()
    lines[2] = json.dumps({**json.loads(lines[2]), "strategy": "II"}).encode()
    (folder / "rounds.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    model = from_run(folder, which="last")
    assert model.kept_float == {"linear2.weight": "round 3 went by Strategy II, whose model is in full precision"}
    assert torch.equal(model.weights["linear2.weight"], weights["linear2.weight"])


def test_a_changed_file_is_refused(finished_run: Path, tmp_path: Path) -> None:
    path = export(from_run(finished_run), tmp_path / "model.safetensors").path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelError, match="do not have the digest"):
        from_file(path)


def test_one_file_becomes_another(finished_run: Path, tmp_path: Path) -> None:
    export_from(finished_run, tmp_path / "a.tern")
    export_from(tmp_path / "a.tern", tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes() == export(
        from_run(finished_run), tmp_path / "c.safetensors"
    ).path.read_bytes()


def test_a_model_without_settings_needs_its_network_given(tmp_path: Path) -> None:
    path = export(trained(ternarize_(network()), LAYERS), tmp_path / "own.tern").path
    with pytest.raises(ModelError, match="give the network"):
        open_model(path)
    samples = LAYERS.example(4)
    wanted = from_file(path, network()).network(samples).detach().numpy()
    assert (open_model(path, network=network()).run(samples.numpy()) == wanted).all()


def test_plain_safetensors_load_into_the_users_own_code(finished_run: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from ternfed.models import mlp

    model = from_run(finished_run)
    own = mlp(inputs=64)
    own.load_state_dict(load_file(export(model, tmp_path / "model.safetensors").path))
    assert torch.equal(own.get_parameter("linear2.weight"), model.weights["linear2.weight"])


def test_mistakes_are_named(finished_run: Path, tmp_path: Path) -> None:
    model = from_run(finished_run)
    with pytest.raises(ModelError, match=r"ends in \.onnx, \.tern, \.safetensors"):
        export(model, tmp_path / "model.pt")
    with pytest.raises(ModelError, match="no such folder"):
        export(model, tmp_path / "absent" / "model.tern")
    with pytest.raises(ModelError, match="can be exported"):
        open_trained(tmp_path / "model.onnx")
    with pytest.raises(RunError, match="holds no run"):
        open_trained(tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match="cannot open it"):
        open_model(tmp_path / "bad.onnx")
    with pytest.raises(ModelError, match="there is no such file"):
        open_model(tmp_path / "absent.onnx")


@pytest.mark.parametrize("suffix", [".onnx", ".tern", ".safetensors"])
def test_predictions_have_the_accuracy_that_the_run_measured(finished_run: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxscript", reason="the extra [edge]")
    model = from_run(finished_run)
    opened = open_model(export(model, tmp_path / f"model{suffix}").path)
    samples, labels = samples_for(opened.facts)
    batches = list(predict(opened, samples, labels, batch=100))
    assert [each.done for each in batches] == [100, 200, 300, 355]
    result = summarise(batches)
    assert result.score == pytest.approx(model.score, abs=1e-6)  # the record holds a float32 quotient
    assert result.milliseconds > 0


def test_predictions_are_written_as_csv_or_json(finished_run: Path, tmp_path: Path) -> None:
    opened = open_model(export(from_run(finished_run), tmp_path / "model.tern").path)
    samples, labels = samples_for(opened.facts, "digits")
    assert labels is not None
    result = summarise(predict(opened, samples[:3], labels[:3]))
    write_predictions(tmp_path / "out.csv", result, labels[:3])
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "index,class,label"
    assert lines[1] == f"0,{result.predictions[0]},{labels[0]}"
    write_predictions(tmp_path / "out.json", result)
    assert json.loads((tmp_path / "out.json").read_text())["classes"] == result.predictions.tolist()
    with pytest.raises(ModelError, match=r"\.csv or \.json"):
        write_predictions(tmp_path / "out.txt", result)


def test_samples_come_from_a_data_set_or_from_numpy_files(finished_run: Path, tmp_path: Path) -> None:
    import numpy as np

    facts = from_run(finished_run).facts()
    test = load("digits").test
    own, labels = samples_for(facts)
    assert labels is not None
    assert len(own) == len(test)
    np.save(tmp_path / "x.npy", own[:5])
    np.savez(tmp_path / "xy.npz", inputs=own[:5], labels=labels[:5])
    assert samples_for(facts, str(tmp_path / "x.npy"))[1] is None
    held, known = samples_for(facts, str(tmp_path / "xy.npz"))
    assert (held == own[:5]).all()
    assert known is not None
    assert (known == labels[:5]).all()
    np.savez(tmp_path / "z.npz", x=own[:5])
    with pytest.raises(ModelError, match="inputs"):
        samples_for(facts, str(tmp_path / "z.npz"))
    with pytest.raises(ModelError, match="does not say what data"):
        samples_for({})
    with pytest.raises(ModelError, match="module:function, a folder"):
        samples_for(facts, "nowhere")


def test_samples_of_another_kind_are_refused(finished_run: Path, tmp_path: Path) -> None:
    opened = open_model(export(from_run(finished_run), tmp_path / "model.tern").path)
    good = LAYERS.example(2).reshape(2, 1, 2, 3)

    def refused(samples: Tensor, match: str) -> None:
        with pytest.raises(ModelError, match=match):
            list(predict(opened, samples.numpy()))

    refused(good, "the model takes 1×8×8 each")
    refused(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "the model takes float32")
    with pytest.raises(ModelError, match="one label per sample"):
        list(predict(opened, torch.zeros(2, 1, 8, 8).numpy(), torch.zeros(3, dtype=torch.int64).numpy()))
    with pytest.raises(ModelError, match="no samples"):
        summarise(predict(opened, torch.zeros(0, 1, 8, 8).numpy()))

"""Models of text leave the workshop as others do: every format predicts the next character as the run measured it."""

from pathlib import Path

import pytest

from ternfed.data.text import text_files
from ternfed.edge import ModelError, export_from, open_model, predict, samples_for, summarise, write_predictions
from ternfed.engines.simulate import record_into
from ternfed.experiment.experiment import Experiment
from ternfed.round.federation import open_federation


@pytest.fixture(scope="module")
def roles(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roles")
    for file in text_files(real_data / "shakespeare")[:3]:
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize(("name", "algorithm"), [("chartransformer", "tfedavg"), ("charlstm", "fedavg")])
def test_every_format_predicts_what_the_run_measured(roles: Path, tmp_path: Path, name: str, algorithm: str) -> None:
    settings = [f"data.dataset=text:{roles}", "data.length=20", f"model.name={name}", "model.width=16"]
    few = ["federation.clients=3", "federation.rounds=1", "federation.participation=1.0", f"algorithm.name={algorithm}"]
    experiment = Experiment.from_toml("", [*settings, *few])
    folder, _, coming = record_into(tmp_path / "run", open_federation(experiment, experiment.load_data()), "cpu")
    with folder:
        (record,) = coming
    formats = ["tern", "safetensors"]
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError:
        pass
    else:
        formats.append("onnx")
    for ending in formats:
        opened = open_model(export_from(tmp_path / "run", tmp_path / f"model.{ending}", which="last").path)
        samples, labels = samples_for(opened.facts, task=opened.task)
        result = summarise(predict(opened, samples, labels))
        assert result.score == pytest.approx(record.score, abs=1e-3), ending  # a near tie may fall the other way
        assert result.predictions.shape == samples.shape
        with pytest.raises(ModelError, match="the model takes token ids, whole numbers"):
            next(predict(opened, samples.astype("float32")))
    write_predictions(tmp_path / "next.csv", result, labels)
    assert len((tmp_path / "next.csv").read_text().splitlines()) == 1 + len(samples)

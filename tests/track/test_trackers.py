"""Runs logged to trackers: the real packages where they are installed, and a made one for what all have in common."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from ternfed.cli.app import app
from ternfed.engines.flower.processes import free_port
from ternfed.runs.records import Round
from ternfed.track import tracker
from ternfed.track.tracker import Start, numbers_of, tracking

TABLE: dict[str, Any] = {"name": "mine", "seed": 3, "training": {"rate": 0.1}, "model": {"hidden": [30, 20]}}


def record(number: int, **values: Any) -> Round:
    usual = {
        "score": number / 10, "loss": 1.0, "train_loss": None, "validation": 0.5, "bytes_up": 1000, "bytes_down": 2000,
        "bytes_up_fp32": 1, "bytes_down_fp32": 1, "bits_per_weight_up": None, "clients": 5, "changed": 0.25,
        "seconds": {"train": 1.5},
    }  # fmt: skip
    return Round(round=number, **{**usual, **values})


class Made:
    """A tracker that remembers what it is told."""

    heard: ClassVar[list[Any]] = []

    def __init__(self, start: Start) -> None:
        self.identity = start.identity
        self.heard.append(("open", start.identity, start.resumed, dict(start.settings)))

    def log(self, round: int, values: Mapping[str, float]) -> None:
        if round == 13:
            raise ConnectionError("the tracker is gone")
        self.heard.append((round, dict(values)))

    def close(self, result: Mapping[str, float], finished: bool) -> None:
        self.heard.append(("close", dict(result), finished))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[Made]:
    module = SimpleNamespace(check=lambda: None, open_tracker=Made)
    monkeypatch.setattr(tracker, "_module", lambda name: module)
    monkeypatch.setattr(Made, "heard", [])
    return Made


class TestAnyTracker:
    def test_gets_the_settings_each_round_and_the_result(self, made: type[Made], tmp_path: Path) -> None:
        with tracking(["mlflow"], tmp_path, TABLE) as trackers:
            trackers.log(record(1))
            trackers.finish({"accuracy": 0.9, "name": "text", "best": None})
        (_, _, resumed, settings), (number, values), close = made.heard
        assert not resumed
        assert settings == {"name": "mine", "seed": 3, "training.rate": 0.1, "model.hidden": "[30, 20]"}
        assert (number, values["accuracy"], values["flips"], values["seconds"]) == (1, 0.1, 0.25, 1.5)
        assert close == ("close", {"accuracy": 0.9}, True)

    def test_has_the_same_run_when_it_is_resumed(self, made: type[Made], tmp_path: Path) -> None:
        for past in ([], [record(1)]):
            with tracking(["wandb"], tmp_path, TABLE, past) as trackers:
                trackers.log(record(len(past) + 1))
        opened = [entry for entry in made.heard if entry[0] == "open"]
        assert opened[0][1] == opened[1][1]
        assert [entry[2] for entry in opened] == [False, True]
        assert [entry[0] for entry in made.heard if isinstance(entry[0], int)] == [1, 2]

    def test_that_comes_later_hears_of_the_past(self, made: type[Made], tmp_path: Path) -> None:
        with tracking(["wandb"], tmp_path, TABLE, [record(1), record(2)]) as trackers:
            trackers.log(record(3))
        assert [entry[0] for entry in made.heard if isinstance(entry[0], int)] == [1, 2, 3]

    def test_that_fails_does_not_stop_the_run(self, made: type[Made], tmp_path: Path) -> None:
        with tracking(["wandb"], tmp_path, TABLE) as trackers:
            trackers.log(record(13))
            trackers.log(record(14))
        assert trackers.failed == ["wandb hears nothing more of this run (ConnectionError: the tracker is gone)"]
        assert [entry[0] for entry in made.heard] == ["open"]

    def test_hears_of_a_run_that_was_stopped(self, made: type[Made], tmp_path: Path) -> None:
        with pytest.raises(KeyboardInterrupt), tracking(["wandb"], tmp_path, TABLE):
            raise KeyboardInterrupt
        assert made.heard[-1] == ("close", {}, False)

    def test_is_told_finite_numbers_alone(self) -> None:
        values = numbers_of(record(1, score=math.nan, strategy="I"))
        assert "accuracy" not in values
        assert values["strategy_one"] == 1.0


def test_none_is_asked_for_by_default_and_nothing_is_written(tmp_path: Path) -> None:
    with tracking([], tmp_path, TABLE) as trackers:
        trackers.log(record(1))
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_none_is_one_sentence_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "--track", "tensorbord", "--out", "mine"])
    assert result.exit_code == 2
    assert 'did you mean "tensorboard"?' in result.stderr.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_reads_what_was_logged_also_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with tracking(["tensorboard"], tmp_path, TABLE) as trackers:
        for number in (1, 2, 3):
            trackers.log(record(number))
    with tracking(["tensorboard"], tmp_path, TABLE, [record(1), record(2)]) as trackers:  # killed before its checkpoint
        trackers.log(record(3, score=0.9))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, round(event.value, 3)) for event in events.Scalars("accuracy")] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.9),
    ]
    assert "bytes_up" in events.Tags()["scalars"]


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[str]:
    """A real tracking server on this machine."""
    pytest.importorskip("mlflow")
    address = f"http://127.0.0.1:{(port := free_port())}"
    store = f"sqlite:///{tmp_path}/server.db"
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", store, "--artifacts-destination", str(tmp_path / "artifacts"),
    ]  # fmt: skip
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + 300
        while True:
            try:
                urlopen(f"{address}/health", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < end, (tmp_path / "server.log").read_text()
                time.sleep(0.5)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)


@pytest.mark.slow
def test_a_real_mlflow_server_has_the_run_and_goes_on_with_it(
    mlflow_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    folder = tmp_path / "run"
    folder.mkdir()
    with tracking(["mlflow"], folder, TABLE) as trackers:
        trackers.log(record(1))
    with tracking(["mlflow"], folder, TABLE, [record(1)]) as trackers:
        trackers.log(record(2))
        trackers.finish({"accuracy": 0.2})
    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name("ternfed")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == json.loads((folder / "track.json").read_text())["mlflow"]
    assert run.info.status == "FINISHED"
    assert run.data.params["training.rate"] == "0.1"
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "accuracy")] == [(1, 0.1), (2, 0.2)]


def test_mlflow_without_a_server_stays_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = tmp_path / "run"
    folder.mkdir()
    with tracking(["mlflow"], folder, TABLE) as trackers:
        trackers.log(record(1))
    assert (tmp_path / "mlflow.db").is_file()


def test_wandb_is_offline_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with tracking(["wandb"], tmp_path, TABLE) as trackers:
        trackers.log(record(1))
        trackers.finish({"accuracy": 0.1})
    assert list((tmp_path / "wandb").glob("offline-run-*"))
    assert trackers.failed == []


def test_trackio_keeps_its_numbers_on_this_machine_and_its_words_from_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    monkeypatch.delenv("TRACKIO_SPACE_ID", raising=False)
    with tracking(["trackio"], tmp_path, TABLE) as trackers:
        trackers.log(record(1))
    assert trackers.failed == []
    assert list((tmp_path / "trackio").rglob("*.db"))
    assert capfd.readouterr().out == ""

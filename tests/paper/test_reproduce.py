"""Rows run for real: what is finished stays, what was interrupted is resumed, what is something else is refused."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from ternfed.algorithms import cmfl
from ternfed.cli.app import app
from ternfed.data.sets import load
from ternfed.data.values import DataSet
from ternfed.engines import simulate
from ternfed.experiment.experiment import Experiment
from ternfed.paper import reproduce
from ternfed.paper.rows import Row, find_rows
from ternfed.round.federation import Federation
from ternfed.round.state import State
from ternfed.runs.folder import RunError, RunFolder, read_run
from ternfed.runs.records import Round

ROW = """
[reproduce]
title = "Digits: {algorithm}"
shows = ["iid"]
seeds = 2
minutes = 0.01
machine = "any"
paper = 90.5
paper_std = 0.25

[federation]
clients = 4
participation = 1
rounds = {rounds}

[data]
dataset = "{dataset}"

[training]
epochs = 1
rate = {rate}

[algorithm]
name = "{algorithm}"
"""
GPU = """
[reproduce]
title = "CIFAR-10"
shows = ["non-iid"]
seeds = 1
minutes = 2
machine = "a GPU"
device = "cuda"

[data]
dataset = "cifar10"
"""
ELAPSED = """
[reproduce]
title = "Seconds"
shows = ["elapsed"]
kind = "elapsed"
repetitions = 3
seeds = 1
minutes = 0.01
machine = "any"
paper_seconds = [1.06, 1.62, 1.06]

[model]
hidden = [16, 16]
"""
BLOBS = """
import numpy as np

def blobs():
    source = np.random.default_rng(0)
    labels = np.arange(200) % 4
    inputs = (source.normal(size=(200, 1, 4, 4)) + labels[:, None, None, None]).astype(np.float32)
    return inputs[:160], labels[:160], inputs[160:], labels[160:]
"""
SMALL = ("data.dataset=digits", "model.name=mlp", "federation.rounds=1", "training.epochs=1")
LIGHT = ["config.toml", "environment.json", "partition.json", "rounds.jsonl", "summary.json", "timing.jsonl"]


def row_text(algorithm: str = "fedavg", rounds: int = 3, rate: float = 0.1, dataset: str = "digits") -> str:
    return ROW.format(algorithm=algorithm, rounds=rounds, rate=rate, dataset=dataset)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of our own with rows of our own."""
    monkeypatch.chdir(tmp_path)
    for name in ("TERNFED_DATA", "TERNFED_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_blobs.py").write_text(BLOBS)  # other processes have them sooner than scikit-learn's digits
    rows = tmp_path / "rows"
    rows.mkdir()
    for algorithm in ("fedavg", "tfedavg"):
        (rows / f"tiny-{algorithm}.toml").write_text(row_text(algorithm))
    (rows / "gpu.toml").write_text(GPU)
    (rows / "seconds.toml").write_text(ELAPSED)
    return tmp_path


@pytest.fixture
def two_threads() -> Iterator[None]:
    """PyTorch computes in two threads here, as it would on a machine with two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def row() -> Row:
    return find_rows((Path("rows"),))["tiny-tfedavg"]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", "--rows", "rows", "--allow", "own_blobs", *arguments])


def stop_after(number: int) -> Callable[[Round], None]:
    def tell(outcome: Round) -> None:
        if outcome.round == number:
            raise KeyboardInterrupt

    return tell


class TestACell:
    def test_is_a_run_folder_small_enough_to_commit(self, row: Row) -> None:
        heard: list[int] = []
        summary = reproduce.run_cell(row, 1, Path("results"), on_round=lambda outcome: heard.append(outcome.round))
        run = read_run("results/tiny-tfedavg/seed-1")
        assert sorted(path.name for path in Path("results/tiny-tfedavg/seed-1").iterdir()) == LIGHT
        assert (run.settings["name"], run.settings["seed"]) == ("tiny-tfedavg", 1)
        assert run.summary == summary
        assert heard == [1, 2, 3]
        assert run.environment[0]["threads"] == 1

    def test_takes_one_thread_on_a_cpu_even_if_its_row_is_for_a_gpu(self, two_threads: None) -> None:
        # Two processes with two threads each on two cores are twenty times as slow.
        row = find_rows((Path("rows"),))["gpu"]
        reproduce.run_cell(row, 0, Path("results"), device="cpu", settings=SMALL)
        assert read_run("results/gpu/seed-0").environment[0]["threads"] == 1

    def test_that_is_finished_is_not_computed_again(self, row: Row) -> None:
        first = reproduce.run_cell(row, 0, Path("results"))
        before = Path("results/tiny-tfedavg/seed-0/timing.jsonl").read_bytes()  # never the same twice
        heard: list[Round] = []
        # Nothing is needed for it, not even the GPU that is asked for.
        assert reproduce.run_cell(row, 0, Path("results"), device="cuda", on_round=heard.append) == first
        assert not heard
        assert Path("results/tiny-tfedavg/seed-0/timing.jsonl").read_bytes() == before

    def test_that_was_interrupted_goes_on_from_its_checkpoint(self, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(simulate, "CHECKPOINT_SECONDS", -1.0)  # after every round
        reproduce.run_cell(row, 0, Path("whole"))
        with pytest.raises(KeyboardInterrupt):
            reproduce.run_cell(row, 0, Path("parts"), on_round=stop_after(3))
        parts = Path("parts/tiny-tfedavg/seed-0")
        assert reproduce.Cell(row, 0, Path("parts")).standing() == "begun"
        before = (parts / "timing.jsonl").read_bytes().splitlines()
        heard: list[int] = []
        reproduce.run_cell(row, 0, Path("parts"), on_round=lambda outcome: heard.append(outcome.round))
        assert heard == [1, 2, 3]
        assert (parts / "timing.jsonl").read_bytes().splitlines()[:2] == before[:2]
        whole = Path("whole/tiny-tfedavg/seed-0/rounds.jsonl").read_bytes()
        assert (parts / "rounds.jsonl").read_bytes() == whole
        assert sorted(path.name for path in parts.iterdir()) == LIGHT

    def test_that_lost_its_checkpoint_starts_over(self, row: Row) -> None:
        with pytest.raises(KeyboardInterrupt):
            reproduce.run_cell(row, 0, Path("results"), on_round=stop_after(2))
        for name in reproduce.MODELS:
            Path("results/tiny-tfedavg/seed-0", name).unlink(missing_ok=True)
        assert reproduce.run_cell(row, 0, Path("results"))["rounds"] == 3

    @pytest.mark.parametrize("setting", ["training.rate=0.05", "federation.rounds=5", "algorithm.factor=0.1"])
    @pytest.mark.parametrize("finished", [True, False])
    def test_in_a_folder_of_other_settings_is_refused(self, row: Row, setting: str, finished: bool) -> None:
        if finished:
            reproduce.run_cell(row, 0, Path("results"))
        else:
            with pytest.raises(KeyboardInterrupt):
                reproduce.run_cell(row, 0, Path("results"), on_round=stop_after(1))
        before = Path("results/tiny-tfedavg/seed-0/rounds.jsonl").read_bytes()
        with pytest.raises(RunError, match=setting.partition("=")[0]):
            reproduce.run_cell(row, 0, Path("results"), settings=[setting])
        assert Path("results/tiny-tfedavg/seed-0/rounds.jsonl").read_bytes() == before

    def test_keeps_its_models_where_that_is_wanted(self, row: Row) -> None:
        reproduce.run_cell(row, 0, Path("results"), keep=True)
        assert set(reproduce.MODELS) <= {path.name for path in Path("results/tiny-tfedavg/seed-0").iterdir()}

    def test_leaves_the_number_of_threads_as_it_was(self, row: Row, two_threads: None) -> None:
        reproduce.run_cell(row, 0, Path("results"))
        assert torch.get_num_threads() == 2

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
    def test_for_a_gpu_that_is_not_there_says_what_can_be_done(self) -> None:
        row = find_rows((Path("rows"),))["gpu"]
        with pytest.raises(ValueError, match="gpu: runs on a GPU") as error:
            reproduce.run_cell(row, 0, Path("results"))
        # 100 rounds of 10 epochs of 782 steps at 1.5 s are 13.6 days.
        assert "--device cpu runs it without one, in about 14 days per seed on one core" in str(error.value)
        assert not Path("results").exists()


class TestDataSets:
    def test_a_data_set_is_read_once_for_all_cells_that_share_the_value(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[str, Path | None]] = []

        def counted(self: Experiment, folder: Path | None = None) -> DataSet:
            asked.append((self.data.dataset, folder))
            return load(self.data.dataset, folder)

        monkeypatch.setattr(Experiment, "load_data", counted)
        rows, data = find_rows((Path("rows"),)), reproduce.DataSets(Path("somewhere"))
        for name in ("tiny-fedavg", "tiny-tfedavg"):
            reproduce.run_cell(rows[name], 0, Path("results"), data)
        assert asked == [("digits", Path("somewhere"))]

    def test_nothing_keeps_it_when_its_owner_lets_go(self) -> None:
        data = reproduce.DataSets()
        seen = weakref.ref(data.get(Experiment.from_toml("")))
        assert seen() is not None
        del data
        gc.collect()
        assert seen() is None


class TestElapsed:
    def test_measures_every_algorithm_as_often_as_the_row_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compared: list[float] = []
        relevance = cmfl.relevance

        def counted(*arguments: Any) -> float:
            compared.append(relevance(*arguments))
            return compared[-1]

        monkeypatch.setattr(cmfl, "relevance", counted)
        measured = reproduce.measure_cell(find_rows((Path("rows"),))["seconds"], Path("results"))
        assert len(compared) == 1 + 3  # the first time is a warm-up
        assert measured == json.loads(Path("results/seconds/elapsed.json").read_text())
        assert (measured["model"], measured["device"], measured["repetitions"]) == ("mlp", "cpu", 3)
        assert measured["samples"] == 1442 // 20
        for algorithm in ("fedavg", "cmfl", "tfedavg"):
            assert measured["seconds"][algorithm] == sorted(measured["all"][algorithm])[1] > 0
        assert measured["environment"]["threads"] == 1

    def test_is_measured_again_only_when_told(self) -> None:
        assert call("seconds").exit_code == 0
        first = Path("results/seconds/elapsed.json").read_bytes()
        assert call("seconds").exit_code == 0
        assert Path("results/seconds/elapsed.json").read_bytes() == first
        assert call("seconds", "--again").exit_code == 0
        assert Path("results/seconds/elapsed.json").read_bytes() != first

    def test_with_other_settings_is_refused(self) -> None:
        call("seconds", "--out", "mine")
        result = call("seconds", "--out", "mine", "--set", "training.epochs=1")
        assert result.exit_code == 2
        assert "training.epochs" in result.stderr
        assert "--again" in result.stderr


class TestTheCommand:
    def test_fills_a_table_with_our_numbers_beside_the_papers(self) -> None:
        result = call("iid", "elapsed")
        assert result.exit_code == 0, result.output
        for words in ("tiny-fedavg", "tiny-tfedavg", "90.50 ± 0.25", "2/2", "1.06 / 1.62 / 1.06 s", "ternfed report"):
            assert words in result.stdout
        accuracies = [100 * (read_run(f"results/tiny-fedavg/seed-{seed}").summary or {})["accuracy"] for seed in (0, 1)]
        assert f"{sum(accuracies) / 2:.2f} ± " in result.stdout

    def test_json_is_one_object_of_all_rows(self) -> None:
        result = call("tiny-*", "--seeds", "1", "--json")
        value = json.loads(result.stdout)
        assert result.stderr == ""
        assert value["failed"] == {}
        assert [each["name"] for each in value["rows"]] == ["tiny-fedavg", "tiny-tfedavg"]
        first = value["rows"][0]
        assert (first["seeds_done"], first["seeds_wanted"], first["paper"]) == (1, 1, 90.5)
        assert first["accuracy"] == 100 * (read_run("results/tiny-fedavg/seed-0").summary or {})["accuracy"]
        assert not Path("results/tiny-fedavg/seed-1").exists()

    def test_one_seed_is_named_as_its_folder_is(self) -> None:
        assert call("tiny-*/seed-5", "tiny-fedavg/seed-1").exit_code == 0
        found = sorted(str(path.parent) for path in Path("results").glob("*/*/summary.json"))
        assert found == [
            f"results/{cell}" for cell in ("tiny-fedavg/seed-1", "tiny-fedavg/seed-5", "tiny-tfedavg/seed-5")
        ]

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("tiny-fedavg/seed-", "tiny-fedavg/seed-: a whole number of at least 0 must follow /seed-"),
            ("tiny-fedavg/seed--1", "a whole number of at least 0"),
            ("tiny-fedavg/seeds-1", "no row, table or figure has this name"),
            ("seconds/seed-0", "seconds/seed-0: seconds measures seconds, and has no seeds"),
        ],
    )
    def test_a_seed_that_is_none_is_refused(self, name: str, sentence: str) -> None:
        result = call(name)
        assert result.exit_code == 2
        assert sentence in " ".join(result.stderr.split())
        assert not Path("results").exists()

    def test_list_shows_how_far_each_row_is_and_runs_nothing(self) -> None:
        empty = call("--list")
        assert empty.exit_code == 0
        for words in ("tiny-fedavg", "Digits: tfedavg", "0/2", "3 × 1", "2 (GPU)", "90.50 ± 0.25", "non-iid"):
            assert words in empty.stdout
        assert not Path("results").exists()
        row = find_rows((Path("rows"),))["tiny-fedavg"]
        reproduce.run_cell(row, 0, Path("results"))
        with pytest.raises(KeyboardInterrupt):
            reproduce.run_cell(row, 1, Path("results"), on_round=stop_after(1))
        assert "1/2, 1 begun" in call("--list").stdout
        listed = json.loads(call("--list", "tiny-fedavg", "--json").stdout)["rows"]
        assert [(each["seeds_done"], each["seeds_begun"], each["rounds"]) for each in listed] == [(1, 1, 3)]

    @pytest.mark.parametrize("shown", ["search", "ablation"])
    def test_rows_that_settings_are_chosen_by_show_validation_accuracy_alone(self, shown: str) -> None:
        text = row_text().replace('shows = ["iid"]', f'shows = ["{shown}"]')
        Path("rows/tiny-fedavg.toml").write_text(text)
        result = call("tiny-fedavg", "--seeds", "1")
        last = read_run("results/tiny-fedavg/seed-0").rounds[-1]
        assert last.validation is not None
        validation, test = f"{100 * last.validation:.2f}", f"{100 * last.score:.2f}"
        assert validation != test
        assert f"tiny-fedavg/seed-0 {validation}%" in result.stderr
        assert validation in result.stdout
        assert test not in result.output

    def test_list_tells_a_run_of_other_settings_from_the_rows_own(self) -> None:
        row = find_rows((Path("rows"),))["tiny-fedavg"]
        reproduce.run_cell(row, 0, Path("results"), settings=["training.rate=0.01"])
        assert "0/2, 1 of other settings" in call("--list", "tiny-fedavg").stdout

    def test_jobs_give_the_same_bytes_as_one_after_another_and_a_failure_stops_no_other(self) -> None:
        Path("rows/job-a.toml").write_text(row_text("fedavg", rate=1e30, dataset="own_blobs:blobs"))
        for name, algorithm in (("job-b", "fedavg"), ("job-c", "tfedavg")):
            Path(f"rows/{name}.toml").write_text(row_text(algorithm, dataset="own_blobs:blobs"))
        for out, jobs in (("one", "1"), ("two", "2")):
            result = call("job-*", "--out", out, "--jobs", jobs)
            assert result.exit_code == 1
            assert "job-a/seed-0: training diverged" in result.stderr
            assert "job-c" in result.stdout
        names = [f"{name}/seed-{seed}" for name in ("job-b", "job-c") for seed in (0, 1)]
        for name in names:
            assert Path("two", name, "rounds.jsonl").read_bytes() == Path("one", name, "rounds.jsonl").read_bytes()
            assert sorted(path.name for path in Path("two", name).iterdir()) == LIGHT

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ([], "--list shows them"),
            (["tiny-fedavgg"], "did you mean tiny-fedavg?"),
            (["tiny-fedavg", "--set", "training.rate=0.2"], "name another folder by --out"),
            (["tiny-fedavg", "--set", "training.rat=0.2", "--out", "mine"], "did you mean training.rate"),
            (["tiny-fedavg", "--device", "tpu"], "cpu, cuda or cuda:K"),
            (["gpu", "--device", "cpu", "--data", "rows"], "TERNFED_DATA"),
            (["tiny-fedavg", "--rows", "nowhere"], "no such folder"),
        ],
    )
    def test_wrong_input_is_one_sentence_before_anything_runs(self, arguments: list[str], sentence: str) -> None:
        result = call(*arguments)
        assert result.exit_code == 2
        assert sentence in result.stderr.replace("\n", " ")
        assert result.stderr.startswith("ternfed: ")
        assert "Traceback" not in result.output
        assert not Path("results").exists()
        assert not Path("mine").exists()

    def test_settings_of_ones_own_go_to_a_folder_of_ones_own(self) -> None:
        result = call("tiny-fedavg", "--seeds", "1", "--set", "federation.rounds=1", "--out", "mine", "--json")
        assert result.exit_code == 0
        assert read_run("mine/tiny-fedavg/seed-0").settings["federation"]["rounds"] == 1


class TestInterruption:
    @pytest.fixture
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """The command in a process group of its own, with two jobs that are at work and would be for minutes."""
        Path("rows/long.toml").write_text(row_text(rounds=20_000, dataset="own_blobs:blobs"))
        command = [sys.executable, "-m", "ternfed", "reproduce", "long", "--rows", "rows", "--allow", "own_blobs"]
        command += ["--jobs", "2"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
            try:
                wait_until(lambda: all(self.rounds(seed) for seed in (0, 1)))
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    @staticmethod
    def rounds(seed: int) -> int:
        file = Path(f"results/long/seed-{seed}/rounds.jsonl")
        return file.read_bytes().count(b"\n") if file.exists() else 0

    @staticmethod
    def is_free(seed: int) -> bool:
        """No process writes there any more, and a run could go on."""
        try:
            experiment = find_rows((Path("rows"),), ["own_blobs"])["long"].experiment(seed)
            RunFolder.resume(f"results/long/seed-{seed}", experiment).folder.close()
        except RunError:
            return False
        return True

    def test_by_ctrl_c_leaves_a_run_that_the_same_command_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        play_round = simulate.play_round

        def interrupted(federation: Federation, state: State, *others: Any) -> tuple[State, Round]:
            if state.round == 2:
                raise KeyboardInterrupt
            return play_round(federation, state, *others)

        with monkeypatch.context() as patch:
            patch.setattr(simulate, "play_round", interrupted)
            result = call("tiny-fedavg")
        assert result.exit_code == 1
        assert "the same command resumes where it stopped" in result.stderr
        assert not Path("results/tiny-fedavg/seed-1").exists()
        assert call("tiny-fedavg").exit_code == 0
        assert read_run("results/tiny-fedavg/seed-0").summary is not None

    def test_by_ctrl_c_ends_the_jobs_with_one_sentence(self, running: subprocess.Popen[str]) -> None:
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=30)
        assert running.returncode == 1
        assert "the same command resumes where it stopped" in errors
        assert "Traceback" not in errors
        assert all(self.is_free(seed) for seed in (0, 1))

    def test_by_a_kill_of_the_command_ends_its_jobs_too(self, running: subprocess.Popen[str]) -> None:
        running.kill()
        running.communicate(timeout=30)
        wait_until(lambda: all(self.is_free(seed) for seed in (0, 1)))


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_library_needs_no_command_line_plots_or_hub() -> None:
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'matplotlib', 'datasets', 'flwr', 'sklearn', 'pyarrow', 'PIL'):\n"
        "    sys.modules[name] = None\n"
        "from ternfed.paper import reproduce, rows\n"
        "print(len(rows.find_rows()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 89

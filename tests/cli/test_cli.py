"""The command line as a person uses it: what it prints where, and what it says to wrong input."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from ternfed.cli import terminal
from ternfed.cli.app import app
from ternfed.quantize.ternary import twn
from ternfed.wire import save_tern

SMALL = ["--dataset", "digits", "--clients", "5", "--participation", "1", "--rounds", "2", "--epochs", "1"]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TERNFED_DATA", "TERNFED_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)


class TestRun:
    def test_json_is_one_object_with_the_result_and_the_settings(self) -> None:
        result = call("run", *SMALL, "--algorithm", "tfedavg", "--classes-per-client", "2", "--seed", "3", "--json")
        assert result.exit_code == 0
        value = json.loads(result.stdout)
        assert {"accuracy", "best_accuracy", "bytes_up", "bytes_down", "bits_per_weight_up"} <= set(value)
        assert value["rounds"] == 2
        assert value["settings"]["seed"] == 3
        assert value["settings"]["data"]["classes_per_client"] == 2
        assert Path(value["run"], "rounds.jsonl").read_text().count("\n") == 2

    def test_a_person_gets_a_table_and_the_folders_name(self) -> None:
        result = call("run", *SMALL, "--out", "mine")
        assert result.exit_code == 0
        assert "The run is in mine" in result.stdout
        assert sorted(path.name for path in Path("mine").iterdir()) == [
            "best.safetensors",
            "config.toml",
            "environment.json",
            "last.safetensors",
            "partition.json",
            "rounds.jsonl",
            "state.safetensors",
            "summary.json",
            "timing.jsonl",
        ]

    def test_a_run_whose_trits_do_not_move_says_so_at_its_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ternfed.runs.records.unmoved", lambda rounds, rate_at, total: f"none of {total}")
        shown = call("run", *SMALL, "--out", "mine")
        assert shown.exit_code == 0
        assert "ternfed: warning: none of 2" in shown.stderr
        assert re.search(r"· flips [\d.]+%, frozen", shown.stderr)
        quiet = call("run", *SMALL, "--json")
        assert json.loads(quiet.stdout)["warnings"] == ["none of 2"]
        assert quiet.stderr == ""

    def test_the_progress_line_has_the_share_of_trits_that_flipped(self) -> None:
        shown = call("run", *SMALL, "--out", "mine")
        assert "· flips " in shown.stderr
        assert "· flips " not in call("run", *SMALL, "--algorithm", "fedavg", "--out", "floats").stderr
        assert "frozen" not in shown.stderr

    def test_settings_override_the_file(self) -> None:
        Path("mine.toml").write_text('[federation]\nclients = 5\nrounds = 9\n[algorithm]\nname = "fedavg"\n')
        result = call("run", "mine.toml", "--rounds", "1", "--set", "training.epochs=1", "--json")
        settings = json.loads(result.stdout)["settings"]
        assert settings["federation"] == {"clients": 5, "participation": 0.5, "rounds": 1, "aggregate": "own"}
        assert settings["algorithm"]["name"] == "fedavg"

    def test_several_seeds_give_mean_and_deviation(self) -> None:
        result = call("run", *SMALL, "--seeds", "2", "--out", "both", "--json")
        value = json.loads(result.stdout)
        assert [run["settings"]["seed"] for run in value["runs"]] == [0, 1]
        accuracies = [run["accuracy"] for run in value["runs"]]
        assert value["accuracy"] == pytest.approx(sum(accuracies) / 2)
        assert Path("both/seed-1/summary.json").exists()

    def test_runs_without_a_name_do_not_overwrite_each_other(self) -> None:
        names = [json.loads(call("run", *SMALL, "--json").stdout)["run"] for _ in range(2)]
        assert len(set(names)) == 2

    def test_resume_makes_a_finished_run_longer(self) -> None:
        call("run", *SMALL, "--out", "mine")
        result = call("run", "--resume", "--out", "mine", "--rounds", "4", "--json")
        assert json.loads(result.stdout)["rounds"] == 4

    def test_seeds_side_by_side_give_the_bytes_of_one_after_another(self) -> None:
        for jobs, out in (("1", "one"), ("2", "two")):
            result = call("run", *SMALL, "--seeds", "2", "--jobs", jobs, "--out", out, "--json")
            assert result.exit_code == 0, result.stderr
            assert len(json.loads(result.stdout)["runs"]) == 2
        for seed in ("seed-0", "seed-1"):
            for name in ("rounds.jsonl", "last.safetensors"):
                assert Path("one", seed, name).read_bytes() == Path("two", seed, name).read_bytes()

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--jobs", "2"], "--jobs 2: is for several seeds"),
            (["--jobs", "2", "--seeds", "2", "--workers", "2"], "--jobs 2 and --workers"),
            (["--jobs", "2", "--seeds", "2", "--overwrite"], "--jobs 2 and --overwrite"),
            (["--jobs", "2", "--seeds", "2", "--device", "cuda"], "start NVIDIA's MPS first"),
        ],
    )
    def test_jobs_that_make_no_sense_are_refused(
        self, arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "nowhere")
        result = call("run", *SMALL, *arguments)
        assert result.exit_code == 2
        assert sentence in " ".join(result.stderr.split())

    def test_resume_goes_on_with_the_seeds_that_are_missing(self) -> None:
        call("run", *SMALL, "--out", "both/seed-0")
        before = Path("both/seed-0/timing.jsonl").read_bytes()  # never the same twice
        result = call("run", *SMALL, "--seeds", "2", "--out", "both", "--resume", "--json")
        assert [run["rounds"] for run in json.loads(result.stdout)["runs"]] == [2, 2]
        assert Path("both/seed-0/timing.jsonl").read_bytes() == before

    def test_an_algorithm_of_ones_own_is_found_in_the_current_folder(self) -> None:
        Path("own_algorithm.py").write_text(
            "from dataclasses import dataclass\n"
            "from ternfed.algorithms import fedavg\n"
            "from ternfed.algorithms.algorithm import Algorithm, Network, Training\n"
            "@dataclass(frozen=True)\n"
            "class Settings:\n"
            "    strength: float = 1.0\n"
            "def mine(network: Network, training: Training, settings: Settings) -> Algorithm:\n"
            "    return fedavg.algorithm(network, training, fedavg.Settings())\n"
        )
        command = [sys.executable, "-m", "ternfed", "run", *SMALL, "--algorithm", "own_algorithm:mine"]
        done = subprocess.run([*command, "--set", "algorithm.strength=2", "--json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["settings"]["algorithm"] == {"name": "own_algorithm:mine", "strength": 2.0}


class TestWrongInput:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--dataset", "nope"], "data.dataset"),
            (["--clients", "10", "--participation", "0.01"], "federation.participation"),
            (["--classes-per-client", "11"], "data.classes_per_client"),
            (["--set", "federation.rouns=3"], "did you mean federation.rounds"),
            (["--set", "nonsense"], "key=value"),
            (["--algorithm", "nope"], "algorithm.name"),
            (["--algorithm", "no.such:module"], "cannot be imported"),
            (["--preset", "nope"], "algorithm.preset"),
            (["--device", "tpu"], "cpu, cuda or cuda:K"),
            (["missing.toml"], "cannot be read"),
            (["--resume", "--out", "missing"], "missing: holds no run to resume; --out names the folder of one"),
            (["--resume"], "--out names the run"),
            (["--dataset", "mnist", "--data", "empty"], "TERNFED_DATA"),
        ],
    )
    def test_is_one_sentence_on_standard_error_and_exit_code_two(self, arguments: list[str], sentence: str) -> None:
        Path("empty").mkdir()
        result = call("run", *arguments)
        assert result.exit_code == 2
        assert sentence in result.stderr.replace("\n", " ")
        assert result.stderr.startswith("ternfed: ")
        assert "Traceback" not in result.output
        assert result.stdout == ""
        assert not Path("runs").exists()

    def test_an_earlier_run_is_not_touched_unless_told(self) -> None:
        call("run", *SMALL, "--out", "mine")
        before = Path("mine/rounds.jsonl").read_bytes()
        result = call("run", *SMALL, "--out", "mine", "--seed", "5")
        assert result.exit_code == 2
        assert "--resume" in result.stderr
        assert Path("mine/rounds.jsonl").read_bytes() == before
        assert call("run", *SMALL, "--out", "mine", "--seed", "5", "--overwrite").exit_code == 0
        assert Path("mine/rounds.jsonl").read_bytes() != before

    def test_going_on_with_another_experiment_names_the_difference(self) -> None:
        call("run", *SMALL, "--out", "mine")
        result = call("run", *SMALL, "--out", "mine", "--resume", "--rate", "0.5")
        assert result.exit_code == 2
        assert "training.rate" in result.stderr

    def test_a_run_that_fails_after_it_began_ends_with_one(self) -> None:
        result = call("run", *SMALL, "--algorithm", "fedavg", "--rate", "1e30", "--out", "mine")
        assert result.exit_code == 1
        assert "lower training.rate" in result.stderr.replace("\n", " ")


class TestInspect:
    def test_prints_every_tensor_and_the_total(self) -> None:
        weight = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
        save_tern("model.tern", {"inner.weight": twn(weight), "last.bias": torch.ones(3)}, {"note": "mine"})
        result = call("inspect", "model.tern")
        assert result.exit_code == 0
        assert "inner.weight" in result.stdout
        assert "40×30" in result.stdout
        assert "times smaller than" in result.stdout
        value = json.loads(call("inspect", "model.tern", "--json").stdout)
        assert [row["name"] for row in value["rows"]] == ["inner.weight", "last.bias"]

    @pytest.mark.parametrize("content", [b"", b"hello", b"\xf3TF" + bytes(50)])
    def test_a_file_that_is_none_is_one_sentence(self, content: bytes) -> None:
        Path("model.tern").write_bytes(content)
        result = call("inspect", "model.tern")
        assert result.exit_code == 2
        assert "Traceback" not in result.output


class TestEdge:
    def test_a_finished_run_becomes_a_file_that_predicts_as_the_run_did(self) -> None:
        run = json.loads(call("run", *SMALL, "--out", "mine", "--json").stdout)
        accuracies = []
        for name in ("model.onnx", "model.tern", "model.safetensors"):
            exported = call("export", "mine", "--to", name, "--last")
            assert exported.exit_code == 0, exported.output
            assert "linear2.weight" in exported.stdout
            result = call("predict", name, "--out", "predictions.csv", "--json")
            accuracies.append(json.loads(result.stdout)["accuracy"])
            assert len(Path("predictions.csv").read_text().splitlines()) == 1 + 355
            assert "linear2.weight" in call("inspect", name).stdout
        assert accuracies == pytest.approx([run["accuracy"]] * 3)

    @pytest.mark.parametrize(
        "arguments",
        [
            ["export", "missing", "--to", "model.onnx"],
            ["export", "mine", "--to", "model.pdf"],
            ["predict", "missing.onnx"],
            ["predict", "own.toml"],
        ],
    )
    def test_wrong_input_is_one_sentence(self, arguments: list[str]) -> None:
        Path("own.toml").write_text("")
        result = call(*arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("ternfed: ")
        assert "Traceback" not in result.output


class TestDemo:
    def test_compares_algorithms_with_a_control_and_draws_a_picture(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ternfed.cli import demo

        monkeypatch.setattr(demo, "SETTINGS", (*demo.SETTINGS, "federation.rounds=2", "model.hidden=[32, 32, 32]"))
        result = call("demo", "--json")
        assert result.exit_code == 0
        value = json.loads(result.stdout)
        assert set(value) == {"FedAvg", "FedPAQ", "T-FedAvg", "trits frozen", "picture"}
        assert value["T-FedAvg"]["bytes_up"] < value["FedAvg"]["bytes_up"]
        assert Path(value["picture"]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.0%"), (0.0131, "1.3%"), (0.5, "50.0%"), (0.000213, "0.021%"), (1e-6, "0.0001%")]
)
def test_a_share_is_told_by_as_many_digits_as_it_needs(value: float, text: str) -> None:
    assert terminal.share(value) == text


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["plan", "--help"], ["bench", "--help"], ["server", "--help"]]
)
def test_help_comes_without_loading_torch(arguments: list[str]) -> None:
    code = f"import sys; from ternfed.cli import app; sys.argv = {['ternfed', *arguments]}\n"
    code += "try: app.main()\nexcept SystemExit: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Usage:" in done.stdout
    assert done.stdout.rstrip().endswith("False")


def test_python_m_ternfed_is_the_command_and_names_every_verb() -> None:
    done = subprocess.run([sys.executable, "-m", "ternfed", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    for verb in (
        "run",
        "plan",
        "demo",
        "reproduce",
        "report",
        "inspect",
        "bench",
        "server",
        "client",
        "certs",
        "export",
        "predict",
    ):
        assert verb in done.stdout

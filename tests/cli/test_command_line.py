"""The command line itself: version, groups, completion, near misses, errors in a user's code, stops from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from ternfed.cli import completion
from ternfed.cli.app import app
from ternfed.data.sets import FOLDERS, NAMES
from ternfed.engines.flower.certs import make_certificates
from ternfed.experiment.named import NETWORKS, built_in_algorithms
from ternfed.paper.rows import find_rows
from ternfed.track import tracker

SMALL = ["--dataset", "digits", "--clients", "5", "--participation", "1", "--rounds", "2", "--epochs", "1"]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TERNFED_TRACEBACK", raising=False)


def test_the_version_is_the_installed_one() -> None:
    assert call("--version").stdout == f"ternfed {metadata.version('ternfed')}\n"


def test_verbs_stand_in_groups_in_the_order_of_use() -> None:
    shown = call("--help").stdout
    places = [
        shown.index(f" {word} ") for word in ("demo", "run", "watch", "compare", "report", "server", "export", "bench")
    ]
    assert places == sorted(places)
    assert "Over a network" in shown


def test_options_of_run_stand_in_groups() -> None:
    shown = call("run", "--help").stdout
    for heading in ("Data and model", "Federation", "Training", "The run folder", "Watching it", "Output"):
        assert heading in shown


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def test_every_verb_argument_and_option_says_what_it_is() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert len(found) > 15
    assert [path for path, command in found.items() if not command.help] == []
    silent = [
        (*path, parameter.name) for path, command in found.items() for parameter in command.params if not parameter.help
    ]
    assert silent == []
    assert "An experiment as TOML" in call("run", "--help").stdout


class TestCompletion:
    def test_knows_every_name(self) -> None:
        assert set(completion.algorithms()) == set(built_in_algorithms())
        assert (*NAMES, *(f"{kind}:" for kind in FOLDERS)) == completion.DATASETS
        assert completion.MODELS == NETWORKS
        assert completion.TRACKERS == tracker.NAMES
        assert set(completion.rows()) == {*find_rows(), "all"}
        assert {"federation.rounds=", "training.rate="} <= set(completion.keys())

    def test_completes_what_was_begun(self) -> None:
        assert completion.one_of(completion.algorithms)("tf") == ["tfedavg"]
        command = typer.main.get_command(app)
        assert isinstance(command, click.Group)
        run = command.commands["run"]
        option = next(option for option in run.params if option.name == "algorithm")
        offered = option.shell_complete(click.Context(run), "fedp")
        assert [item.value for item in offered] == ["fedpaq", "fedpm", "fedprox"]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["run", "--algorithm", "tfedag"], '"tfedavg"'),
        (["run", "--dataset", "digit"], '"digits"'),
        (["run", "--model", "resnet"], '"resnet18"'),
        (["run", "--preset", "papr"], '"paper"'),
        (["run", "--set", "data.partition=idd"], '"iid"'),
        (["run", "--set", "training.optimizer=adm"], '"adam"'),
        (["run", "--set", "federation.aggregate=meen"], '"mean"'),
        (["run", "--set", "task.name=regresion"], '"regression"'),
        (["run", "--set", "federation.rouns=3"], "federation.rounds"),
        (["reproduce", "mnist-iid-tfedav"], "mnist-"),
        (["run", "--model", "ternfed.models:mpl"], '"ternfed.models:mlp"'),
        (["run", "--track", "tensorbord"], '"tensorboard"'),
        (["watch", "aruns"], "runs"),
        (["compare", "rns"], "runs"),
        (["report", "rns"], "runs"),
        (["rum"], "'run'"),
        (["run", "--algoritm", "x"], "'--algorithm'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_near_miss_is_answered_once_with_what_was_meant(arguments: list[str], meant: str) -> None:
    Path("runs").mkdir()
    result = call(*arguments)
    assert result.exit_code == 2
    text = " ".join(result.stderr.replace("│", " ").split())
    assert text.lower().count("did you mean") == 1
    assert meant in text.lower().partition("did you mean")[2]


def test_a_run_folder_is_no_model_and_the_way_to_one_is_said() -> None:
    Path("mine").mkdir()
    result = call("predict", "mine")
    assert result.exit_code == 2
    assert "ternfed export mine --to model.onnx" in " ".join(result.stderr.split())


def test_a_network_of_ones_own_may_take_whatever_comes() -> None:
    Path("takes_all.py").write_text(
        "import torch\n"
        "def net(classes, width=8, *more, **others):\n"
        "    inner = torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, classes)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.ReLU(), *inner)\n"
    )
    shown = call("run", *SMALL, "--model", "takes_all:net", "--out", "mine")
    assert shown.exit_code == 0, shown.output


def test_the_name_of_a_run_is_whole_in_its_table() -> None:
    shown = call("run", *SMALL, "--out", "mine", "--set", "name=a-name-that-is-longer-than-the-column-for-it").stdout
    column = "".join(line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│"))
    assert column == "a-name-that-is-longer-than-the-column-for-it"


class TestAnErrorInTheUsersOwnCode:
    def run(self, code: str, *more: str) -> subprocess.CompletedProcess[str]:
        Path("own.py").write_text(code)
        command = [sys.executable, "-m", "ternfed", "run", *SMALL, "--model", "own:net", "--out", "mine", *more]
        return subprocess.run(command, capture_output=True, text=True)

    def test_names_file_and_line_and_leaves_no_folder(self) -> None:
        done = self.run("def net(classes):\n    settings = {}\n    return settings['width']\n")
        assert done.returncode == 2
        assert done.stderr == "ternfed: KeyError: 'width' (own.py, line 3; --debug shows the whole way)\n"
        assert not Path("mine").exists()

    def test_shows_the_whole_way_to_who_asks_wherever_the_flag_stands(self) -> None:
        done = self.run("def net(classes):\n    raise ValueError('no')\n", "--debug")
        assert "Traceback" in done.stderr
        assert "own.py" in done.stderr


def test_a_stop_from_outside_is_like_ctrl_c_and_the_run_can_go_on() -> None:
    command = [sys.executable, "-m", "ternfed", "run", *SMALL, "--out", "mine"]
    process = subprocess.Popen([*command, "--rounds", "100000"], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not Path("mine/rounds.jsonl").exists():
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "interrupted; a run with a folder is resumed by --resume" in said
    assert "Traceback" not in said


class TestNothingIsDoneInVain:
    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_place_that_cannot_be_written_is_named_first(self) -> None:
        Path("locked").mkdir(mode=0o500)
        assert call("demo", "--out", "locked/in").exit_code == 2

    def test_a_file_where_a_folder_should_be_is_named_before_the_demo_trains(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Path("taken").write_text("")
        monkeypatch.setattr("ternfed.cli.demo.play_demo", lambda: pytest.fail("trained"))
        result = call("demo", "--out", "taken")
        assert result.exit_code == 2
        assert "cannot be written" in result.stderr

    def test_a_port_that_is_taken_leaves_no_folder(self) -> None:
        pytest.importorskip("uvicorn")
        result = call("run", *SMALL, "--out", "mine", "--metrics", "nonsense")
        assert result.exit_code == 2
        assert not Path("mine").exists()

    def test_predictions_that_cannot_be_written_are_not_made(self) -> None:
        result = call("predict", "missing.onnx", "--out", "predictions.pdf")
        assert result.exit_code == 2
        assert ".csv or .json" in result.stderr


def test_predict_shows_the_classes_of_samples_without_labels() -> None:
    call("run", *SMALL, "--out", "mine", "--json")
    call("export", "mine", "--to", "model.tern")
    np.save("some.npy", np.zeros((3, 1, 8, 8), np.float32))
    shown = call("predict", "model.tern", "--data", "some.npy")
    assert shown.exit_code == 0, shown.output
    line = next(line for line in shown.stdout.splitlines() if line.startswith("classes: "))
    assert len(line.removeprefix("classes: ").split(", ")) == 3
    assert len(json.loads(call("predict", "model.tern", "--data", "some.npy", "--json").stdout)["classes"]) == 3


class TestTheServersDefaults:
    @pytest.fixture
    def plans(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """What servers would have done."""
        seen: list[Any] = []

        def serve(plan: Any, *_: object) -> None:
            seen.append(plan)
            raise ValueError("far enough")

        monkeypatch.setattr("ternfed.engines.flower.deploy.serve", serve)
        return seen

    def test_are_the_same_by_hand_as_on_one_machine_and_the_clients_are_those_with_keys(self, plans: list[Any]) -> None:
        make_certificates(Path("certs"), [], 3)
        call("server", "--local", "3")
        call("server", "--certs", "certs")
        local, by_hand = (plan.experiment for plan in plans)
        assert by_hand == local
        assert (by_hand.federation.clients, by_hand.federation.participation) == (3, 1.0)

    def test_an_experiment_that_says_how_many_clients_there_are_is_believed(self, plans: list[Any]) -> None:
        make_certificates(Path("certs"), [], 3)
        Path("mine.toml").write_text("[federation]\nclients = 2\n")
        call("server", "mine.toml", "--certs", "certs")
        call("server", "mine.toml", "--certs", "certs", "--clients", "1")
        assert [plan.experiment.federation.clients for plan in plans] == [2, 1]

    def test_uploads_that_are_far_off_are_pulled_back_unless_the_experiment_says_how_to_combine_them(
        self, plans: list[Any]
    ) -> None:
        make_certificates(Path("certs"), [], 3)
        Path("mine.toml").write_text('[federation]\naggregate = "median"\n')
        call("server", "--local", "3")
        call("server", "--certs", "certs", "--set", "federation.aggregate=mean")
        call("server", "mine.toml", "--certs", "certs")
        assert [plan.experiment.federation.aggregate for plan in plans] == ["clipped_mean", "mean", "median"]
        assert [plan.experiment.federation.audit for plan in plans] == [0.03, None, None]

    def test_uploads_that_do_harm_are_left_out_where_few_are_asked_and_data_is_held_out(self, plans: list[Any]) -> None:
        for settings, audit in (
            (("--local", "20"), 0.03),
            (("--local", "21"), None),
            (("--local", "40", "--set", "federation.participation=0.5"), 0.03),
            (("--local", "3", "--set", "data.hold_out=0", "--set", "algorithm.name=fedavg"), None),
            (("--local", "3", "--set", "federation.audit=0.2"), 0.2),
            (("--local", "3", "--set", "federation.audit=none"), None),
        ):
            call("server", *settings)
            assert plans[-1].experiment.federation.aggregate == "clipped_mean"
            assert plans[-1].experiment.federation.audit == audit

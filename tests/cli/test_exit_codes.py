"""0; 1 for a run that failed; 2 for wrong input: one rule for all verbs, and one sentence on standard error."""

import errno
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from ternfed.cli.app import app
from ternfed.cli.terminal import answered
from ternfed.edge import ModelError
from ternfed.engines.flower.errors import NetworkError
from ternfed.engines.simulate import DivergedError
from ternfed.experiment.settings import ExperimentError
from ternfed.runs.folder import RunError, RunNotWritten
from ternfed.wire import WireError

SMALL = ["run", "--dataset", "digits", "--clients", "5", "--rounds", "1", "--epochs", "1"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TERNFED_DATA", "TERNFED_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)


def code_of(error: BaseException, **phase: bool) -> int:
    with pytest.raises(typer.Exit) as ended, answered(**phase):
        raise error
    return ended.value.exit_code


class TestTheRule:
    @pytest.mark.parametrize(
        "error",
        [
            ValueError("x"), ExperimentError("x"), RunError("x"), ModelError("x"), WireError("x"), ImportError("x"),
            FileNotFoundError("x"), NotADirectoryError("x"), IsADirectoryError("x"), FileExistsError("x"),
            OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300),
        ],
        ids=lambda error: type(error).__name__,
    )  # fmt: skip
    def test_wrong_input_is_two_and_one_once_the_run_has_begun(self, error: Exception) -> None:
        assert code_of(error) == 2
        assert code_of(error, begun=True) == 1

    @pytest.mark.parametrize(
        "error",
        [RuntimeError("x"), NetworkError("x"), DivergedError("x"), RunNotWritten("x"), PermissionError("x")],
        ids=lambda error: type(error).__name__,
    )
    def test_a_failure_is_one(self, error: Exception) -> None:
        assert code_of(error) == 1

    def test_the_sentence_is_the_errors_own(self, capsys: pytest.CaptureFixture[str]) -> None:
        code_of(ValueError("data.dataset = nope: [digits] is allowed"))
        assert capsys.readouterr().err == "ternfed: data.dataset = nope: [digits] is allowed\n"

    def test_an_error_of_the_system_says_which_file_and_why(self, capsys: pytest.CaptureFixture[str]) -> None:
        code_of(PermissionError(errno.EACCES, "Permission denied", "runs/a b"))
        assert capsys.readouterr().err == "ternfed: runs/a b: permission denied\n"

    def test_an_interrupted_verb_says_how_to_go_on(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(typer.Exit) as ended, answered(interrupted="start it again"):
            raise KeyboardInterrupt
        assert ended.value.exit_code == 1
        assert capsys.readouterr().err == "ternfed: interrupted; start it again\n"

    def test_one_inside_another_answers_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(typer.Exit) as ended, answered(), answered(begun=True):
            raise ValueError("x")
        assert ended.value.exit_code == 1
        assert capsys.readouterr().err == "ternfed: x\n"

    def test_a_mistake_of_ours_keeps_its_traceback(self) -> None:
        with pytest.raises(KeyError), answered():
            raise KeyError("x")

    def test_the_traceback_is_there_for_who_asks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERNFED_TRACEBACK", "1")
        with pytest.raises(ValueError, match="x"), answered():
            raise ValueError("x")


class TestInAProcess:
    def run(self, *arguments: str, most_bytes: int | None = None) -> "subprocess.CompletedProcess[str]":
        def limit() -> None:
            if most_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

        command = [sys.executable, "-m", "ternfed", *arguments]
        return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)

    def test_zero_for_a_run_that_is_finished(self) -> None:
        done = self.run(*SMALL, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rounds"] == 1

    def test_one_for_a_run_whose_files_cannot_be_written(self) -> None:
        done = self.run(*SMALL, "--out", "mine", most_bytes=4096)
        assert done.returncode == 1
        assert "state.safetensors cannot be written (File too large); see to it and go on by --resume" in done.stderr
        assert "Traceback" not in done.stderr

    def test_two_for_wrong_input(self) -> None:
        done = self.run("run", "--dataset", "nope")
        assert done.returncode == 2
        assert done.stderr.startswith("ternfed: data.dataset")
        assert done.stdout == ""


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from verbs(inner, (*path, name))


EVERY = list(verbs(typer.main.get_command(app)))


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) or "ternfed" for path, _ in EVERY])
def test_every_verb_and_every_option_has_help(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help
    silent = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
    assert silent == []
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


@pytest.mark.parametrize("arguments", [["certs", "add", "nowhere"], ["server", "--certs", "nowhere"]], ids=" ".join)
def test_a_folder_without_certificates_is_wrong_input_and_nothing_is_started(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert done.stderr == "ternfed: nowhere: holds no certificates; make them with: ternfed certs init nowhere\n"
    assert list(tmp_path.iterdir()) == []

"""With another version of Flower than those that ternfed is tested with, the commands say so in one sentence."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ternfed.cli import app
from ternfed.engines.flower.adapter import need_flower, version
from ternfed.engines.flower.errors import NetworkError

ROOT = Path(__file__).parents[3]


def install(monkeypatch: pytest.MonkeyPatch, number: str | None) -> None:
    """As if this version of Flower were installed, or none."""

    def found(name: str) -> str:
        if number is None or name != "flwr":
            raise PackageNotFoundError(name)
        return number

    monkeypatch.setattr(version, "version", found)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (None, "Flower is missing; install the extra [flower]"),
        ("1.20.0", "Flower is too old: flwr 1.20.0 is installed; ternfed is tested with 1.40 to 1.42: pip install"),
        ("0.19", "Flower is too old: flwr 0.19 is installed"),
        ("1.43.0", "flwr 1.43.0 is installed; ternfed is tested with 1.40 to 1.42: pip install 'ternfed[flower]'"),
        ("2.0.0rc1", "flwr 2.0.0rc1 is installed; ternfed is tested with 1.40 to 1.42"),
        ("unknown", "flwr unknown is installed; ternfed is tested with 1.40 to 1.42"),
    ],
)
def test_a_version_that_is_not_tested_is_named_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch, number: str | None, sentence: str
) -> None:
    install(monkeypatch, number)
    with pytest.raises(NetworkError) as caught:
        need_flower()
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("number", ["1.40.0", "1.41.3", "1.42.0.dev20260101"])
def test_a_tested_version_is_accepted(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    install(monkeypatch, number)
    need_flower()


@pytest.mark.parametrize("verb", ["server", "client"])
def test_the_commands_say_it_and_end_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str) -> None:
    install(monkeypatch, "1.43.0")
    options = {
        "server": ["--local", "2", "--out", str(tmp_path / "run")],
        "client": ["--server", "127.0.0.1:1", "--certs", str(tmp_path), "--data-partition", "0/2"],
    }
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app.app, [verb, *options[verb]])
    assert ended.exit_code == 1
    assert "ternfed is tested with 1.40 to 1.42" in " ".join(ended.output.split())


def test_the_tested_versions_are_those_of_the_package_and_of_the_page() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (major, oldest), (_, newest) = version.OLDEST, version.NEWEST
    assert extras["flower"][0] == f"flwr>={major}.{oldest},<{major}.{newest + 1}"
    assert extras["simulation"] == [f"flwr[simulation]>={major}.{oldest},<{major}.{newest + 1}"]
    assert f"tested with Flower {version.tested()}." in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["ternary_mod", "TernaryStrategy"])
def test_the_two_lines_say_it_too(tmp_path: Path, name: str) -> None:
    """As if an old Flower were installed: it has no `flwr.app`."""
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "__init__.py").touch()
    (tmp_path / "flwr-1.20.0.dist-info").mkdir()
    (tmp_path / "flwr-1.20.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: flwr\nVersion: 1.20.0\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from ternfed import {name}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Flower is too old: flwr 1.20.0 is installed" in said.stderr.splitlines()[-1]

"""The systemd units are right as far as systemd can tell without running them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UNITS = sorted((ROOT / "systemd").glob("*.service"))
INSTALLED = "/opt/ternfed/bin/ternfed"

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    """The units as they would be installed, client 0 of several; ternfed is a program that there is here."""
    made = []
    for unit in UNITS:
        made.append(tmp_path / unit.name.replace("@.", "@0."))
        made[-1].write_text(unit.read_text(encoding="utf-8").replace(INSTALLED, "/bin/true"), encoding="utf-8")
    return made


def asked(*words: str) -> str:
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_systemd
def test_systemd_has_nothing_to_say_against_them(units: list[Path]) -> None:
    found = asked("verify", "--man=no", *map(str, units))
    assert not [line for line in found.splitlines() if "ternfed" in line]


@needs_systemd
def test_they_may_do_little(units: list[Path]) -> None:
    for unit in units:
        level = re.search(
            r"exposure level for \S+: ([\d.]+)", asked("security", "--offline=yes", "--no-pager", str(unit))
        )
        assert level is not None
        assert float(level[1]) <= 2.0


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_every_option_of_the_command_exists(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8").replace("\\\n", " ")
    command = re.search(rf"{INSTALLED} (server|client) (.*)", text)
    assert command is not None
    from typer.testing import CliRunner

    from ternfed.cli.app import app

    wide = {**os.environ, "COLUMNS": "200", "TERM": "dumb"}
    known = CliRunner().invoke(app, [command[1], "--help"], env=wide).output
    assert all(option in known for option in re.findall(r"--[a-z-]+", command[2]))


def test_the_server_resumes_what_was_begun() -> None:
    text = (ROOT / "systemd" / "ternfed-server.service").read_text(encoding="utf-8")
    assert "if test -e run/state.safetensors; then resume=--resume; fi" in text
    assert "Restart=on-failure" in text
    assert "RestartPreventExitStatus=2" in text  # wrong input does not become right

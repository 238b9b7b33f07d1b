"""The container files: checked without a container runtime, and their commands run as plain processes."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
CLIENTS = [name for name in SERVICES if name.startswith("client-")]


def test_the_image_is_pinned_and_runs_without_rights() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", bases[0])
    assert re.findall(r"^USER (.*)", DOCKERFILE, re.MULTILINE) == ["10001:10001"]
    assert '"torch>=2.6,<2.14"' in DOCKERFILE
    assert '"torch>=2.6,<2.14"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_what_the_image_copies_is_there() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in re.findall(r"^COPY ((?!--).*) \S+$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists()
            assert f"!{name}" in ignored


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(["hadolint", ROOT / "docker" / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_service_is_held_short() -> None:
    for service in SERVICES.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_each_client_sees_its_own_volume_alone() -> None:
    assert len(CLIENTS) == 3
    for name in CLIENTS:
        assert SERVICES[name]["volumes"] == [f"{name}:/data"]
        assert "ports" not in SERVICES[name]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.slow
def test_the_commands_are_right_as_plain_processes(tmp_path: Path) -> None:
    port = free_port()
    programs = tmp_path / "bin"
    programs.mkdir()
    program = programs / "ternfed"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ternfed "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    nobody = tmp_path / "home"  # as in the image, nothing is written there
    environment = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"), "HOME": str(nobody)
    }  # fmt: skip
    own = f"{os.getuid()}:{os.getgid()}"

    def plain(text: str) -> str:
        """A command of the file with this machine's places in it: folders for volumes, this host, this user."""
        text = text.replace("$$", "$").replace("${ROUNDS:-10}", "2").replace("10001:10001", own)
        text = text.replace("--host server", "--host localhost").replace("server:8443", f"localhost:{port}")
        text = text.replace("ternfed server --certs", f"ternfed server --host 127.0.0.1 --port {port} --certs")
        return re.sub(r"(?<=[\s])/(server|client-)", rf"{tmp_path}/\1", text)

    (tmp_path / "server").mkdir()
    for name in CLIENTS:
        (tmp_path / name).mkdir()
    for _ in range(2):  # as by `up`, and by `up` again
        subprocess.run(["/bin/sh", "-ec", plain(SERVICES["certs"]["command"][0])], env=environment, check=True)
    for name in CLIENTS:
        number = name.removeprefix("client-")
        kept = {path.name for path in (tmp_path / name / "certs").iterdir()}
        assert kept == {"ca.crt", f"client-{number}", f"client-{number}.pub"}
    started = [
        subprocess.Popen(
            ["/bin/sh", "-ec", plain(SERVICES["server"]["command"][0])],
            cwd=tmp_path / "server", env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ),
        *(
            subprocess.Popen(
                ["ternfed", *shlex.split(plain(SERVICES[name]["command"]))],
                cwd=tmp_path / name, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for name in CLIENTS
        ),
    ]  # fmt: skip
    try:
        for process in started:  # the server first: without it clients wait for ever
            said = process.communicate(timeout=500)[0]
            assert process.returncode == 0, said
    finally:
        for process in started:
            process.kill()
    assert (tmp_path / "server" / "runs" / "first" / "summary.json").exists()
    assert all((tmp_path / name / "state").is_dir() for name in CLIENTS)
    assert not nobody.exists()

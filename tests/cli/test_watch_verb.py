"""`ternfed watch`, and `--watch` and `--metrics` beside a run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest
from typer.testing import CliRunner

from run_folders import known_run
from ternfed.cli.app import app

pytest.importorskip("uvicorn")
SMALL = ["--dataset", "digits", "--clients", "5", "--participation", "1", "--rounds", "2", "--epochs", "1"]


def test_it_says_where_the_page_is_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    known_run(tmp_path / "mine", ["data.dataset=digits", "federation.rounds=2"], [{}])
    command = [sys.executable, "-m", "ternfed", "watch", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        address = re.fullmatch(r"The live page is (http://127\.0\.0\.1:\d+/)\n", line)
        assert address is not None, line
        with build_opener(ProxyHandler({})).open(f"{address[1]}state", timeout=60) as answer:
            assert b'"name":"mine"' in answer.read()
    finally:
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (0, "")


def test_a_run_says_where_its_page_and_its_numbers_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", *SMALL, "--out", "mine", "--watch", "--metrics", "0"])
    assert result.exit_code == 0, result.output
    assert re.search(r"The live page is http://127\.0\.0\.1:\d+/\n", result.stderr)
    assert re.search(r"Prometheus finds http://127\.0\.0\.1:\d+/metrics\n", result.stderr)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
    assert not (tmp_path / "mine/live.json").exists()


def test_for_machines_every_line_is_json_that_of_the_page_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["run", *SMALL, "--out", "mine", "--watch", "--metrics", "0", "--log-json"]
    lines = [json.loads(line) for line in CliRunner().invoke(app, given).stderr.splitlines()]
    assert [line["event"] for line in lines][:4] == ["message", "message", "round", "round"]
    assert "The live page is http://127.0.0.1:" in lines[0]["text"]


@pytest.mark.parametrize("arguments", [["nowhere"], [".", "--port", "0", "--host", "256.0.0.1"]])
def test_wrong_input_is_one_sentence(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["watch", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith("ternfed: ")

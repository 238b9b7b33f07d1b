"""The commands of docs/deploy.md between processes, each client with data of its own."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

OWN = """
from ternfed.data.sets import from_arrays, load as digits

def load():
    data = digits("digits")
    return from_arrays("mine", data.train.inputs[:300], data.train.labels[:300], data.test.inputs, data.test.labels)
"""


def ternfed(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "ternfed", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_clients_bring_a_function_that_loads_their_own_data(tmp_path: Path) -> None:
    (tmp_path / "own_data.py").write_text(OWN)
    (tmp_path / "experiment.toml").write_text("[federation]\nparticipation = 1.0\nrounds = 2\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    made = ternfed(tmp_path, "certs", "init", "certs", "--host", "127.0.0.1", "--clients", "2")
    assert made.wait(60) == 0
    where = ("--host", "127.0.0.1", "--port", port, "--certs", "certs")
    server = ternfed(tmp_path, "server", "experiment.toml", *where, "--clients", "2", "--out", "run", "--json")
    own = ("--server", f"127.0.0.1:{port}", "--certs", "certs", "--data", "own_data:load")
    clients = [ternfed(tmp_path, "client", *own, "--data-partition", f"{index}/2") for index in range(2)]
    try:
        printed, said = server.communicate(timeout=240)
        assert server.returncode == 0, said
        assert json.loads(printed)["rounds"] == 2
        assert [client.wait(60) for client in clients] == [0, 0]
    finally:
        for process in (server, *clients):
            process.terminate()
    samples = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert len(samples) == 2

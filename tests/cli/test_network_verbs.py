"""Wrong input to `certs`, `server` and `client`: one sentence, exit code 2, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from ternfed.cli.app import app
from ternfed.engines.flower.certs import make_certificates

LONG = "x" * 300


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TERNFED_TRACEBACK", raising=False)
    Path("a file").touch()
    make_certificates(Path("ünï certs"), [], 2)


def refused(*arguments: str) -> str:
    """What a verb says that ends with exit code 2 and writes nothing."""
    before = sorted(Path().rglob("*"))
    ended = CliRunner().invoke(app, list(arguments))
    assert ended.exit_code == 2, ended.output
    assert sorted(Path().rglob("*")) == before
    assert ended.stderr.count("\n") == 1
    return ended.stderr.removeprefix("ternfed: ").rstrip("\n")


@pytest.mark.parametrize(
    "host",
    ["", "a b", "https://fed.example.org", "fed.example.org:8443", "fed.example.org/x", "ü.org", LONG, "a..b", "-"],
)
def test_a_name_that_no_client_could_ask_for_is_in_no_certificate(host: str) -> None:
    assert f"--host {host}: is no name or address that a certificate can hold" in refused(
        "certs", "init", "new", "--host", host
    )


@pytest.mark.parametrize(
    "host", ["fed.example.org", "localhost", "192.0.2.10", "2001:db8::1", "*.example.org", "a_b-1"]
)
def test_names_and_addresses_of_machines_are(host: str) -> None:
    assert CliRunner().invoke(app, ["certs", "init", "new", "--host", host, "--clients", "1"]).exit_code == 0


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("a file", "a file: is no folder"),
        ("a file/inside", "a file/inside: not a directory"),
        (LONG, f"{LONG}: file name too long"),
        ("ünï certs", "ünï certs: is there already; ternfed certs add gives it more clients"),
    ],
)
def test_certificates_go_to_a_folder_that_can_be_made(folder: str, says: str) -> None:
    assert refused("certs", "init", folder).startswith(says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--clients", "5"],
            "federation.clients = 5: ünï certs has keys for 2; make the others with: ternfed certs add",
        ),
        (["--wait-for", "3"], "--wait-for 3: there are 2 clients"),
        (["--least", "3"], "--least 3: a round asks 2 of the 2 clients"),
        (["--least", "2", "--set", "federation.participation=0.5"], "--least 2: a round asks 1 of the 2 clients"),
    ],
)
def test_a_server_does_not_wait_for_clients_that_cannot_come(arguments: list[str], says: str) -> None:
    assert refused("server", "--certs", "ünï certs", "--out", "run", *arguments).startswith(says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--server", "https://a.org:8443"], "--server https://a.org:8443: HOST:PORT is needed, without https://"),
        (["--server", "a.org:99999"], "--server a.org:99999: HOST:PORT is needed"),
        (["--server", "a.org:0"], "--server a.org:0: HOST:PORT is needed"),
        (["--device", "banana"], "--device banana: cpu, cuda or cuda:K is allowed"),
        (["--state", "a file"], "a file: is no folder for what this client must not forget"),
        (["--data", "text:a file"], "data.dataset = text:a file: there is no such folder"),
        (["--certs", "a file"], "a file/ca.crt: is missing; ask whoever runs the server for it"),
        (["--data-partition", "7/9"], "ünï certs/client-7: is missing; ask whoever runs the server for it"),
    ],
)
def test_a_client_says_what_is_wrong_before_it_connects(arguments: list[str], says: str) -> None:
    usual = {"--server": "127.0.0.1:1", "--certs": "ünï certs", "--data-partition": "0/2"}
    usual |= dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert refused("client", *(word for pair in usual.items() for word in pair)).startswith(says)

"""Who may talk to a server, and what may be said: one run that strangers knock at and liars take part in."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from harness import Clients, Server, certificates, replay, same_bits, small, wait

from ternfed.engines.flower.certs import Certificates, make_certificates

LIES = {
    2: {"1": "random", "2": "replayed", "3": "infinite", "4": "nothing"},
    3: {"1": "huge", "2": "another model", "3": "heavy", "4": "truncated"},
}
REASONS = {
    1: ("client 2: WrongMagic", "client 3: OutOfBounds"),
    2: ("client 2: WrongRound", "client 3: WrongSchema"),
    3: ("client 2: NotFinite", "client 3: OutOfBounds"),
    4: ("client 2: Truncated", "client 3: Truncated"),
}

FLOATS = ("algorithm.upload=trits", "algorithm.rest_bits_up=none")
"""Uploads with factors and floats in them, which can be huge or infinite."""


@dataclass
class Listening:
    """A server, clients that are registered, and a stranger."""

    server: Server
    clients: Clients
    stranger: Certificates
    """Certificates of another federation."""

    @property
    def port(self) -> int:
        return self.server.port


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """A server of four clients that waits for them."""
    place = tmp_path_factory.mktemp("refusals")
    server = Server(place / "run", certificates(place, 4), small(4, len(REASONS), *FLOATS))
    clients = Clients(place / "clients", 4)
    try:
        server.start("--deadline", "30", "--patience", "200")
        wait(lambda: "listening" in server.said(), 90, "the server to listen", server.said)
        yield Listening(server, clients, make_certificates(place / "stranger", ["127.0.0.1"], 1))
    finally:
        server.close()
        clients.close()


def ask(listening: Listening, path: str, context: ssl.SSLContext | None = None) -> http.client.HTTPResponse:
    context = context or listening.server.certificates.client_context()
    connection = http.client.HTTPSConnection("127.0.0.1", listening.port, timeout=10, context=context)
    connection.request("POST", path, b"", {"content-type": "application/x-protobuf"})
    return connection.getresponse()


def client_command(listening: Listening, certs: Path, state: Path) -> list[str]:
    """The command line's own client."""
    command = [sys.executable, "-m", "ternfed", "client", "--server", listening.server.address]
    return [*command, "--certs", str(certs), "--data-partition", "0/4", "--state", str(state)]


def run_client(listening: Listening, certs: Path, state: Path) -> subprocess.CompletedProcess[str]:
    """The same, for as long as it runs."""
    command = client_command(listening, certs, state)
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_a_key_that_is_not_registered_is_refused(listening: Listening, tmp_path: Path) -> None:
    # The right authority, but a key that the server never saw.
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for source, name in (
        (listening.server.certificates.authority, "ca.crt"),
        (listening.stranger.client_key(0), "client-0"),
    ):
        (mixed / name).write_bytes(source.read_bytes())
    ended = run_client(listening, mixed, tmp_path / "state")
    assert ended.returncode == 1
    assert "does not know this client's key" in ended.stderr


def test_a_second_process_with_a_clients_key_is_told_and_ends_and_it_is_logged(
    listening: Listening, tmp_path: Path
) -> None:
    certs = listening.server.certificates.folder
    with (tmp_path / "first.log").open("wb") as said:
        first = subprocess.Popen(client_command(listening, certs, tmp_path / "first"), stdout=said, stderr=said)
    try:
        wait(lambda: "1 of 4" in listening.server.said(), 90, "the first to be there", listening.server.said)
        second = run_client(listening, certs, tmp_path / "second")
        assert second.returncode == 1
        assert "another process" in second.stderr
        assert first.poll() is None, (tmp_path / "first.log").read_text()
    finally:
        first.terminate()
        first.wait(30)
    assert "client 0: a second process with its key" in (listening.server.out / "network" / "door.log").read_text()


def test_a_server_of_another_authority_is_refused_by_the_client(listening: Listening, tmp_path: Path) -> None:
    ended = run_client(listening, listening.stranger.folder, tmp_path / "state")
    assert ended.returncode == 1
    assert "certificate is not from the authority in ca.crt" in ended.stderr


def test_the_certificate_does_not_verify_against_another_authority(listening: Listening) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(listening, "/v1/fleet/pull-messages", listening.stranger.client_context())


def test_plain_http_is_refused_on_the_tls_port(listening: Listening) -> None:
    with socket.create_connection(("127.0.0.1", listening.port), timeout=10) as plain:
        plain.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        answer = b""
        while part := plain.recv(4096):
            answer += part
    assert b"HTTP" not in answer


@pytest.mark.parametrize(
    "path", ["/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/v1/fleet/../control/register-node"]
)
def test_nothing_but_the_calls_of_clients_comes_through_the_gate(listening: Listening, path: str) -> None:
    assert ask(listening, path).status == 404


def test_a_call_without_a_key_is_refused(listening: Listening) -> None:
    assert ask(listening, "/v1/fleet/pull-messages").status == 401


def test_two_lengths_in_one_request_end_the_connection(listening: Listening) -> None:
    context = listening.server.certificates.client_context()
    with (
        socket.create_connection(("127.0.0.1", listening.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"POST /v1/fleet/get-run HTTP/1.1\r\ncontent-length: 0\r\ncontent-length: 5\r\n\r\n")
        answer = b""
        while part := secure.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in answer.lower()


def test_liars_are_dropped_counted_and_named_and_do_not_move_the_model(listening: Listening) -> None:
    server = listening.server
    for index in range(4):
        listening.clients.start(index, server.address, server.certificates.folder, faults=LIES.get(index, {}))
    assert server.wait_for_end(240) == 0, server.said()
    for record in server.rounds():
        assert len(record.dropped) == 2
        assert all(
            said.startswith(reason) for said, reason in zip(record.dropped, REASONS[record.round], strict=True)
        ), record.dropped
    assert same_bits(server.model(), replay(server.experiment, server.rounds()))


def test_private_keys_are_for_their_owner_alone_and_in_no_log(listening: Listening) -> None:
    folder = listening.server.certificates.folder
    private = [file for file in folder.iterdir() if b"PRIVATE KEY" in file.read_bytes()]
    assert sorted(file.name for file in private) == ["ca.key", *(f"client-{i}" for i in range(4)), "server.key"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in private)
    secrets = {line for file in private for line in file.read_text().splitlines() if "-----" not in line}
    for log in [*listening.server.out.rglob("*"), *listening.clients.place.rglob("*"), listening.server.output]:
        if log.is_file():
            text = log.read_text(encoding="utf-8", errors="replace")
            assert not any(secret in text for secret in secrets if len(secret) > 20), log


def test_what_holds_ids_is_for_its_owner_alone(listening: Listening) -> None:
    network = listening.server.out / "network"
    logs = [network / "superlink.log", network / "door.log", network / "run"]
    logs += [listening.clients.place / str(index) / "supernode.log" for index in range(4)]
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in logs} == {file.name: 0o600 for file in logs}
    assert stat.S_IMODE(network.stat().st_mode) == 0o700
    assert "without a signature that holds" in (network / "door.log").read_text(encoding="utf-8")


def test_certificates_are_not_made_twice_in_one_folder(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs", ["example.org", "10.0.0.1"], 1)
    before = made.client_key(0).read_bytes()
    with pytest.raises(ValueError, match="is there already; ternfed certs add"):
        make_certificates(tmp_path / "certs", [], 1)
    assert made.client_key(0).read_bytes() == before
    assert os.path.exists(made.public_key(0))

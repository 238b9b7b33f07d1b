"""What a client says while its server is not there, and what the server knows of each client at a moment."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ternfed.engines.flower import reachable
from ternfed.engines.flower.certs import Certificates, add_clients, make_certificates
from ternfed.engines.flower.errors import NetworkError
from ternfed.engines.flower.moments import moment_of
from ternfed.engines.flower.processes import free_port
from ternfed.engines.flower.reachable import telling
from ternfed.engines.flower.server import names_of


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at once, not every ten seconds."""
    monkeypatch.setattr(reachable, "EVERY", 0.05)
    monkeypatch.setattr(reachable, "FIRST", 0.05)


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.usefixtures("soon")
def test_a_client_says_when_its_server_is_lost_and_when_it_is_back() -> None:
    said: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with telling(f"127.0.0.1:{port}", said.append):
        until(lambda: said == [f"connected to 127.0.0.1:{port}"])
        listener.close()
        until(lambda: len(said) > 2)
        assert said[1] == "lost the server (Connection refused), trying again in 0.05 s"
        assert said[2] == f"127.0.0.1:{port} does not answer (Connection refused), trying again in 0.1 s"
        with socket.create_server(("127.0.0.1", port)):
            until(lambda: said[-1] == f"connected to 127.0.0.1:{port}")


@pytest.mark.usefixtures("soon")
def test_a_client_whose_server_was_never_there_says_so_at_once() -> None:
    said: list[str] = []
    with telling(f"127.0.0.1:{(port := free_port())}", said.append, "Connection refused"):
        until(lambda: len(said) > 0)
    assert said[0] == f"127.0.0.1:{port} does not answer yet (Connection refused), trying again in 0.05 s"


def test_each_client_has_one_state_at_a_moment() -> None:
    gate = SimpleNamespace(is_ready=lambda client: client == 4, is_uploading=lambda client: client == 2, refused=7)
    moment = moment_of(
        gate, range(8), 3, 100.0, "train", asked={1, 2}, counted=[0],  # type: ignore[arg-type]
        dropped={3: "client 3: did not answer within 600 s", 5: "client 5: was not there", 6: "client 6: NotFinite: x"},
    )  # fmt: skip
    states = ["done", "training", "uploading", "late", "ready", "away", "dropped", "away"]
    assert list(moment.clients.values()) == states
    assert (moment.round, moment.done, moment.asked, moment.refused) == (3, 3, 5, 7)


class TestCertificates:
    def test_of_more_clients_are_added_and_those_that_are_there_stay(self, tmp_path: Path) -> None:
        made = make_certificates(tmp_path / "certs", [], 2)
        before = {file.name: file.read_bytes() for file in made.folder.iterdir()}
        assert add_clients(made.folder, 3) == (2, 4)
        assert made.count() == 5
        assert {name: (made.folder / name).read_bytes() for name in before} == before
        assert (made.folder / "client-4").stat().st_mode & 0o777 == 0o600

    def test_are_not_added_where_there_are_none(self, tmp_path: Path) -> None:
        with pytest.raises(NetworkError, match="certs init"):
            add_clients(tmp_path, 1)

    def test_that_a_client_misses_are_asked_for_and_not_made(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="ask whoever runs the server for it") as caught:
            Certificates(tmp_path).need_from_server(tmp_path / "ca.crt")
        assert "certs init" not in str(caught.value)

    def test_that_a_server_misses_are_made_by_the_verb_that_fits(self, tmp_path: Path) -> None:
        made = make_certificates(tmp_path / "certs", [], 1)
        with pytest.raises(ValueError, match="ternfed certs add"):
            made.need(made.public_key(1))
        with pytest.raises(ValueError, match="ternfed certs init"):
            Certificates(tmp_path / "none").need(tmp_path / "none/ca.crt")


@pytest.mark.parametrize(
    ("clients", "words"), [([], ""), ([3], "3"), ([1, 0], "0, 1"), ([0, 1, 2, 5, 7, 8, 9], "0 to 2, 5, 7 to 9")]
)
def test_many_clients_are_named_by_the_first_and_the_last_of_each_row(clients: list[int], words: str) -> None:
    assert names_of(clients) == words

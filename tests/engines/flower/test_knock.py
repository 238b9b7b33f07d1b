"""A client that may not come in is told exactly why, before a SuperNode is started."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from ternfed.engines.flower import client, processes
from ternfed.engines.flower.certs import Certificates, make_certificates, public_bytes
from ternfed.engines.flower.errors import InUse, NetworkError, Refused
from ternfed.engines.flower.gate import Gate
from ternfed.engines.flower.knock import check_clock, knock
from ternfed.engines.flower.signatures import read_private_key


def key_of(made: Certificates, index: int) -> Any:
    return read_private_key(made.client_key(index))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("knock") / "certs", [], 2)


@pytest.fixture(scope="module")
def gate(made: Certificates) -> Iterator[Gate]:
    """A gate that knows client 0. There is no SuperLink behind it: knocks do not go so far."""
    opened = Gate(made, "127.0.0.1", 0, ("127.0.0.1", 1), {public_bytes(made.public_key(0)): 0}, {0: 5})
    opened.open()
    yield opened
    opened.close()


def test_a_client_whose_key_is_registered_may_come_in(gate: Gate, made: Certificates) -> None:
    assert knock(f"127.0.0.1:{gate.port}", made.client_context(), key_of(made, 0)) is None
    assert gate.bytes_of(0) == (0, 0), "a knock is in nobody's count"


def test_one_whose_key_is_not_registered_is_told_so(gate: Gate, made: Certificates) -> None:
    with pytest.raises(Refused, match="does not know this client's key"):
        knock(f"127.0.0.1:{gate.port}", made.client_context(), key_of(made, 1))


def test_a_server_of_another_authority_is_not_trusted(gate: Gate, made: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "certs", [], 1)
    with pytest.raises(Refused, match=r"not from the authority in ca\.crt"):
        knock(f"127.0.0.1:{gate.port}", other.client_context(), key_of(made, 0))


def test_a_server_by_another_name_than_its_certificates_is_named(made: Certificates) -> None:
    elsewhere = Gate(made, "127.0.0.2", 0, ("127.0.0.1", 1), {}, {})
    elsewhere.open()
    try:
        with pytest.raises(Refused, match=r"not for 127\.0\.0\.2; it is made with: ternfed certs init DIR --host"):
            knock(f"127.0.0.2:{elsewhere.port}", made.client_context(), key_of(made, 0))
    finally:
        elsewhere.close()


def test_a_server_that_is_away_is_no_refusal(made: Certificates) -> None:
    assert knock(f"127.0.0.1:{processes.free_port()}", made.client_context(), key_of(made, 0))


def test_neither_is_a_server_that_speaks_no_tls(made: Certificates) -> None:
    class Plain(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Plain)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert knock(f"127.0.0.1:{server.server_port}", made.client_context(), key_of(made, 0))
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("offset", "words"),
    [(-400, "400 s behind the server's"), (-200, None), (0, None), (4, None), (60, "59 s ahead of the server's")],
)
def test_a_clock_with_which_flower_would_not_accept_the_signature_is_named(offset: float, words: str | None) -> None:
    here = 1_700_000_000.0
    there = formatdate(here - offset, usegmt=True)
    if words is None:
        check_clock(there, here, here + 0.1)
        return
    with pytest.raises(Refused, match=words):
        check_clock(there, here, here + 0.1)


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_an_answer_without_a_date_says_nothing_about_the_clock(date: str | None) -> None:
    check_clock(date, 0.0, 0.1)


def test_a_private_key_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "client-0").write_text("nonsense")
    with pytest.raises(NetworkError, match="is no private key in OpenSSH format"):
        read_private_key(tmp_path / "client-0")


def test_another_process_with_the_key_is_waited_for_a_while_and_then_named(monkeypatch: pytest.MonkeyPatch) -> None:
    left, said = [3], list[str]()

    def in_use(*_: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise InUse("another process is connected")

    monkeypatch.setattr(client, "knock", in_use)
    monkeypatch.setattr(client, "ANOTHER", 1.2)
    assert client._knock("x:1", None, None, said.append) is None  # type: ignore[arg-type]
    assert said == ["another process is connected; waiting for its end"] * 3
    left[0] = 1000
    with pytest.raises(InUse, match="another process is connected"):
        client._knock("x:1", None, None, said.append)  # type: ignore[arg-type]


def test_the_context_of_a_client_checks_names(made: Certificates) -> None:
    context = made.client_context()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED

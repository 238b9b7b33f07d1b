"""How many connections a server holds, whose go first, and what it does when the system has few descriptors."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ternfed.engines.flower import connections as c
from ternfed.engines.flower.connections import Bytes, Connection, Connections, Listener, listen, neighbourhood


@pytest.fixture
def near() -> Iterator[list[socket.socket]]:
    """The other ends; closed at the end."""
    opened: list[socket.socket] = []
    yield opened
    for each in opened:
        each.close()


def admit(held: Connections, near: list[socket.socket], address: str, port: int) -> Connection | None:
    ours, theirs = socket.socketpair()
    near.append(theirs)
    ours.close()
    listener = socket.create_server(("127.0.0.1", 0))
    outside = socket.create_connection(listener.getsockname())
    inside, _ = listener.accept()
    listener.close()
    near.append(outside)
    return held.admit(inside, (address, port))


def is_ended(connection: Connection) -> bool:
    return connection.is_leaving and connection.recv(1) == b""


def test_of_one_address_the_oldest_stranger_goes_when_there_are_too_many(near: list[socket.socket]) -> None:
    held = Connections(most=10, strangers=3)
    first, *others = [admit(held, near, "10.0.0.1", port) for port in range(3)]
    elsewhere = admit(held, near, "10.0.0.2", 0)
    newest = admit(held, near, "10.0.0.1", 9)
    assert first is not None
    assert is_ended(first)
    assert all(each is not None and not each.is_leaving for each in (*others, elsewhere, newest))
    assert held.turned_away == {"too many strangers at one address": 1}
    for each in held.all():
        each.close()
    assert len(held) == 0


def test_one_that_is_in_the_middle_of_its_handshake_stays_before_those_that_say_nothing(
    near: list[socket.socket],
) -> None:
    held = Connections(most=10, strangers=3)
    speaking = admit(held, near, "10.0.0.1", 0)
    assert speaking is not None
    near[-1].sendall(b"hello")
    speaking.recv(100)
    silent = [admit(held, near, "10.0.0.1", port) for port in range(1, 4)]
    assert not speaking.is_leaving
    assert silent[0] is not None
    assert is_ended(silent[0])
    for each in held.all():
        each.close()


def test_a_clients_connections_are_never_closed_for_others(near: list[socket.socket]) -> None:
    held = Connections(most=3, strangers=3)
    known = [admit(held, near, "10.0.0.1", port) for port in range(2)]
    for each in known:
        assert each is not None
        each.known_as(0, Bytes())
    stranger = admit(held, near, "10.0.0.3", 1)
    client = admit(held, near, "10.0.0.4", 1)
    assert stranger is not None
    assert is_ended(stranger)
    stranger.close()
    assert client is not None
    client.known_as(1, Bytes())
    assert admit(held, near, "10.0.0.5", 1) is None, "there is nobody who could go"
    assert not any(each.is_leaving for each in held.all())
    for each in held.all():
        each.close()


def test_silence_ends_a_stranger(near: list[socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    held = Connections(most=3)
    assert c.FIRST <= 10, "a short time before handshake and head"
    monkeypatch.setattr(c, "FIRST", 0.05)
    quiet = admit(held, near, "10.0.0.1", 1)
    busy = admit(held, near, "10.0.0.1", 2)
    assert quiet is not None
    assert busy is not None
    busy.until = time.monotonic() + 60
    time.sleep(0.1)
    held.sweep()
    assert is_ended(quiet)
    assert not busy.is_leaving
    quiet.close()
    busy.close()


def test_bytes_are_counted_from_the_first_on_and_given_to_the_client(near: list[socket.socket]) -> None:
    held, total = Connections(most=3), Bytes(100, 200)
    connection = admit(held, near, "10.0.0.1", 1)
    assert connection is not None
    other = near[-1]
    other.sendall(b"x" * 7)
    connection.recv(100)
    connection.send(b"y" * 5)
    connection.known_as(0, total)
    other.sendall(b"x" * 3)
    connection.recv_into(bytearray(10))
    connection.sendmsg([b"y", b"yy"])
    assert (total.down, total.up) == (108, 210)
    connection.close()


def test_no_more_are_taken_while_ended_ones_are_not_closed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c, "LEAVING", 2)
    held = Connections(most=2, strangers=2)
    (listener,) = listen("127.0.0.1", 0, held)
    assert isinstance(listener, Listener)
    listener.listen(16)
    outside = [socket.create_connection(listener.getsockname()) for _ in range(6)]
    for _ in range(4):
        listener.accept()
    with pytest.raises(BlockingIOError):
        listener.accept()
    for each in held.all():
        if each.is_leaving:
            each.close()
    listener.accept()
    for each in (*held.all(), *outside, listener):
        each.close()


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("no address", "no address"),
    ],
)
def test_one_customer_counts_as_one_address(address: str, place: str) -> None:
    assert neighbourhood(address) == place


@pytest.mark.parametrize(
    ("soft", "hard", "most", "after"),
    [(1024, 1024, 768, 1024), (256, 256, 64, 256), (512, 3000, 2744, 3000), (900, 20_000, 4096, 20_000)],
)
def test_the_soft_limit_is_raised_where_allowed_and_a_reserve_is_left(
    soft: int, hard: int, most: int, after: int
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("the system allows fewer descriptors")
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from ternfed.engines.flower.connections import room
print(room(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert said.stdout.split() == [str(most), str(after)]

"""Sockets of the door: how many may be open, how long, and every byte that passes, TLS and all.

The server above them (asyncio and uvicorn) does TLS and HTTP and knows nothing of this. It sees ordinary sockets.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

FIRST = 10.0
"""Seconds from the first packet to the end of the first signed head: handshake and all."""
MOST = 4096
"""Connections, where the system allows so many descriptors."""
RESERVE = 256
"""Descriptors that are kept for everything else: files, the SuperLink, data."""
STRANGERS = 256
"""Connections of one address that no client has signed on."""
OWN = 16
"""Connections of one client; a SuperNode has four at most."""
LEAVING = 64
"""Connections that were told to end and are not closed yet; no new one is taken while there are so many."""
QUEUE = 1024
"""Connections that the system keeps for us until they are taken."""
WANTED = 65_536
"""Descriptors that a server asks the system for."""

Ends = tuple[str, int, str]
"""Address and port of the other side, and our address: no two connections have the same."""


@dataclass
class Bytes:
    """Of one client or connection, as the server sees them."""

    down: int = 0
    up: int = 0


class Connection(socket.socket):
    """An accepted connection."""

    def __init__(self, accepted: socket.socket, ends: Ends, ended: Callable[[Connection], None]) -> None:
        family, kind, protocol = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, protocol, fileno=accepted.detach())
        self.ends, self.neighbourhood, self._ended = ends, neighbourhood(ends[0]), ended
        self.bytes = Bytes()
        self.client: int | None = None
        """Whose it is, once a call of its was accepted."""
        self.until = time.monotonic() + FIRST
        """When it is closed, unless something is heard."""
        self.is_leaving = False

    def known_as(self, client: int, total: Bytes) -> None:
        """From now on its bytes are added to those of a client; so are all that passed before."""
        if self.client is None:
            total.down += self.bytes.down
            total.up += self.bytes.up
            self.client, self.bytes = client, total

    def leave(self) -> None:
        """End it: the server above finds it at its end, and closes it."""
        if not self.is_leaving:
            self.is_leaving = True
            try:
                self.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side was faster
                return

    def recv(self, *arguments: Any) -> bytes:
        data = super().recv(*arguments)
        self.bytes.up += len(data)
        return data

    def recv_into(self, *arguments: Any) -> int:
        count = super().recv_into(*arguments)
        self.bytes.up += count
        return count

    def send(self, *arguments: Any) -> int:
        count = super().send(*arguments)
        self.bytes.down += count
        return count

    def sendmsg(self, *arguments: Any) -> int:
        count = super().sendmsg(*arguments)
        self.bytes.down += count
        return count

    def close(self) -> None:
        self._ended(self)
        super().close()


@dataclass
class Connections:
    """Those that are open. Strangers make room: first those that have said nothing, and of these the oldest.

    A client's are never closed for another's.
    """

    most: int
    strangers: int = STRANGERS
    turned_away: Tally[str] = field(default_factory=Tally)
    """How many connections ended before their time, by reason."""
    _open: dict[Ends, Connection] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._open)

    def of(self, ends: Ends) -> Connection | None:
        return self._open.get(ends)

    def all(self) -> list[Connection]:
        return list(self._open.values())

    def others_of(self, client: int, own: Connection) -> list[Connection]:
        """A client's other connections."""
        return [each for each in self._open.values() if each.client == client and each is not own]

    def bound(self, client: int) -> None:
        """Where a client has too many connections, its oldest go."""
        own = [each for each in self._open.values() if each.client == client and not each.is_leaving]
        for each in own[: max(len(own) - OWN, 0)]:
            self._end(each, "too many of one client")

    def is_busy(self) -> bool:
        """Whether connections that were ended must be closed before another is taken."""
        return sum(each.is_leaving for each in self._open.values()) >= LEAVING

    def admit(self, accepted: socket.socket, address: Any) -> Connection | None:
        """A new connection, for which others may have to go; None where none of them can."""
        ends = (str(address[0]), int(address[1]), str(accepted.getsockname()[0]))
        strangers = [each for each in self._open.values() if each.client is None and not each.is_leaving]
        place = neighbourhood(ends[0])
        near = [each for each in strangers if each.neighbourhood == place]
        if len(near) >= self.strangers:
            self._end(_first_to_go(near), "too many strangers at one address")
        elif len(self._open) >= self.most:
            if not strangers:
                self.turned_away["no room"] += 1
                accepted.close()
                return None
            self._end(_first_to_go(strangers), "too many strangers")
        _find_dead_peers(accepted)
        connection = self._open[ends] = Connection(accepted, ends, self._forget)
        return connection

    def sweep(self) -> None:
        """End those whose time is over."""
        now = time.monotonic()
        for each in self.all():
            if now > each.until and not each.is_leaving:
                self._end(each, "silent")

    def _end(self, connection: Connection, reason: str) -> None:
        self.turned_away[reason] += 1
        connection.leave()

    def _forget(self, connection: Connection) -> None:
        if self._open.get(connection.ends) is connection:
            del self._open[connection.ends]


class Listener(socket.socket):
    """A listening socket whose accepted sockets are `Connection`s."""

    connections: Connections

    def listen(self, at_once: int = 0) -> None:
        """Wait for connections. `at_once` is how many asyncio takes before it reads again; more of them may queue."""
        super().listen(QUEUE)

    def accept(self) -> tuple[socket.socket, Any]:
        if self.connections.is_busy():
            raise BlockingIOError  # asyncio comes again, after it has closed what was ended
        accepted, address = super().accept()
        connection = self.connections.admit(accepted, address)
        if connection is None:
            raise BlockingIOError
        return connection, address


def listen(host: str, port: int, connections: Connections) -> list[Listener]:
    """Sockets on every address of a host, all with one port; OSError where it is taken."""
    found: list[Listener] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            listener = Listener(family, kind, protocol)
            found.append(listener)
            listener.connections = connections
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], port or found[0].getsockname()[1], *address[2:]))
            listener.setblocking(False)
    except OSError:
        for each in found:
            each.close()
        raise
    return found


def neighbourhood(address: str) -> str:
    """What counts as one address: an IPv4 address, or the 64 bits of IPv6 that one customer has."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


def room() -> int:
    """How many connections this process may hold open, after it has asked the system for more descriptors."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):  # some systems have a lower limit that they do not tell
            pass
    return MOST if soft == resource.RLIM_INFINITY else min(MOST, max(soft - RESERVE, soft // 4))


def _first_to_go(strangers: list[Connection]) -> Connection:
    return next((each for each in strangers if each.bytes.up == 0), strangers[0])


def _find_dead_peers(accepted: socket.socket) -> None:
    """A machine that lost its power is noticed within half a minute."""
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

"""How a server and its clients come together: behind a door of our own, or in a SuperLink that somebody else runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ternfed.algorithms.algorithm import Network
from ternfed.engines.flower.certs import Certificates, public_bytes
from ternfed.engines.flower.desk import Desk
from ternfed.engines.flower.errors import NetworkError
from ternfed.engines.flower.gate import Gate
from ternfed.engines.flower.link import Link, Place, attach_link, open_link
from ternfed.engines.flower.presence import Bytes, Presence
from ternfed.round.federation import Federation
from ternfed.runs.live import Tell, tell_nobody

Say = Callable[[str], None]


@dataclass(frozen=True)
class ListenAddress:
    """Where clients reach the server."""

    certificates: Certificates
    host: str = "0.0.0.0"
    port: int = 8443


@dataclass(frozen=True)
class SharedSuperLink:
    """Somebody else's SuperLink, in which the run is to be played."""

    place: Place
    others: bool = False
    """Whether runs of others that it hands out are given to Flower's own program."""


@dataclass
class ClientTraffic:
    """What one client of a round sent and received."""

    payload_down: int = 0
    payload_up: int = 0
    socket_down: int = 0
    socket_up: int = 0
    seconds: float | None = None
    """From its message to its upload, as the server sees it."""


@dataclass
class Connections:
    """A federation's connections: a SuperLink, and who knows which clients are there."""

    link: Link
    gate: Presence
    clients: int
    """How many there may be."""
    counted: dict[int, Bytes]
    """Each client's bytes that were given to rounds before this."""
    answering: set[int] = field(default_factory=set)
    """Clients whose upload counted when they were last asked, in this round or an earlier one."""
    tell: Tell = tell_nobody
    """Hears what clients are doing."""
    place: str = ""
    """Where clients find the server, in words."""

    def ready(self) -> list[int]:
        return [client for client in range(self.clients) if self.gate.is_ready(client)]

    def count(self, by_client: dict[int, ClientTraffic]) -> None:
        """Give the round all bytes since the one before: its messages, and every sign of life between them."""
        for client, before in self.counted.items():
            now = self.gate.bytes_of(client)
            if now != before:
                traffic = by_client.setdefault(client, ClientTraffic())
                traffic.socket_down += now.down - before.down
                traffic.socket_up += now.up - before.up
            self.counted[client] = now


@contextmanager
def open_connections(federation: Federation, listen: ListenAddress, folder: Path, run: str) -> Iterator[Connections]:
    """The SuperLink and the gate in front of it, from start to stop; clients are told when it is over."""
    clients = federation.experiment.federation.clients
    with open_link(listen.certificates, clients, _config(federation, run), folder) as link:
        keys = {public_bytes(listen.certificates.public_key(index)): index for index in range(clients)}
        most = largest_upload(federation.network)
        log = folder / "door.log"
        gate = Gate(listen.certificates, listen.host, listen.port, link.address, keys, link.nodes, most, log)
        try:
            gate.open()
        except OSError as error:
            raise NetworkError(f"{listen.host}:{listen.port}: cannot listen there ({error.strerror})") from error
        try:
            counted = {client: Bytes(0, 0) for client in range(clients)}
            yield Connections(link, gate, clients, counted, place=f"listening on {listen.host}:{gate.port}")
        finally:
            gate.close()


@contextmanager
def attach(
    federation: Federation, superlink: SharedSuperLink, folder: Path, run: str, say: Say
) -> Iterator[Connections]:
    """A run in a SuperLink that somebody else runs, for the time being."""
    others = folder / "others.log" if superlink.others else None
    with attach_link(superlink.place, _config(federation, run), others) as link:
        clients = federation.experiment.federation.clients
        yield Connections(
            link, Desk(link, clients, say), clients, {}, place=f"attached to the SuperLink at {superlink.place.address}"
        )


def _config(federation: Federation, run: str) -> dict[str, str]:
    """What clients are told of a run (`told.py`)."""
    return {
        "experiment": federation.told.to_toml(),
        "run": run,
        "frozen": federation.network.digest or "",
        "outline": json.dumps(federation.outline._asdict()),
    }


def largest_upload(network: Network) -> int:
    """Bytes that an upload may have: four times the model, whatever the algorithm sends, and a megabyte besides."""
    return 4 * network.schema().size + (1 << 20)

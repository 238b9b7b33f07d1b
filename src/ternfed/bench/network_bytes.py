"""Bytes of a round for each client, payload and on the socket: FedAvg against T-FedAvg over TLS on this machine.

    ternfed bench network-bytes --set data.dataset=mnist          # the MLP 784-30-20-10

Medians over the clients of all rounds but the first, which also fetches the run's configuration.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ternfed.bench.tables import markdown

ALGORITHMS = ("fedavg", "tfedavg")


@dataclass(frozen=True)
class ClientBytes:
    """Median bytes of one client in one round."""

    algorithm: str
    payload_down: float
    payload_up: float
    socket_down: float
    socket_up: float


def run(clients: int = 5, rounds: int = 4, settings: Sequence[str] = ()) -> Iterator[ClientBytes]:
    """Both algorithms, one after the other."""
    with tempfile.TemporaryDirectory(prefix="ternfed-bytes-") as place:
        for algorithm in ALGORITHMS:
            out = Path(place) / algorithm
            serve_locally(out, clients, [f"federation.rounds={rounds}", *settings, f"algorithm.name={algorithm}"])
            lines = (out / "network" / "bytes.jsonl").read_text(encoding="utf-8").splitlines()[1:]
            own = [client for line in lines for client in json.loads(line)["clients"].values()]
            keys = ("payload_down", "payload_up", "socket_down", "socket_up")
            yield ClientBytes(algorithm, *(statistics.median(client[key] for client in own) for key in keys))


def table(rows: Iterable[ClientBytes]) -> str:
    """The rows as a Markdown table."""
    return markdown(
        ("algorithm", "payload down", "payload up", "socket down", "socket up"),
        [
            (row.algorithm, *(f"{n:,.0f}" for n in (row.payload_down, row.payload_up, row.socket_down, row.socket_up)))
            for row in rows
        ],
    )


def serve_locally(out: Path, clients: int, settings: Sequence[str]) -> None:
    """`ternfed server --local` with every client in every round; RuntimeError with what it said where it fails."""
    command = [sys.executable, "-m", "ternfed", "server", "--local", str(clients), "--out", str(out)]
    command += [word for each in ("federation.participation=1.0", *settings) for word in ("--set", each)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"`ternfed server` ended with {done.returncode}: {done.stderr.strip()}")

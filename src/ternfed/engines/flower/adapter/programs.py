"""Flower's settings, and the command lines of its two programs."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from ternfed.engines.flower.errors import NetworkError

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Nothing phones home, and nothing is fetched."""
CHUNK = 1 << 20
"""Bytes of a message in one call. Flower gives a call 30 s: for its own 5 MiB a link of 1.4 Mbit/s is too slow."""


class End(StrEnum):
    """How a SuperNode ended."""

    LOST = "lost"
    """Its connection did, or was never made; another try may succeed."""
    TURNED_AWAY = "turned away"
    """By itself, because its signature was not accepted."""
    FAILED = "failed"
    """It cannot start, and another try would not help."""


class Ended(NamedTuple):
    end: End
    reason: str
    """In Flower's words; empty unless it failed."""


def set_up(home: Path) -> None:
    """Flower in this process and its children: no telemetry, no update check, its files under `home`.

    To be called before Flower is imported, which reads its settings then.
    """
    os.environ.update(OFFLINE, FLWR_HOME=str(home), FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE=str(CHUNK))


def quiet() -> None:
    """Flower's messages about its own doings stay away from the terminal."""
    import logging

    logging.getLogger("flwr").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def program(name: str) -> str:
    """A program of Flower's in this environment."""
    file = Path(sys.executable).with_name(name)
    if not file.exists():
        raise NetworkError(f"{name} is not installed; install the extra [flower]: pip install 'ternfed[flower]'")
    return str(file)


def superlink_command(port: int, authority: Path, certificate: Path, key: Path, secret: Path) -> list[str]:
    """A SuperLink on loopback, with TLS, that accepts registered SuperNodes and lets us take its tasks."""
    return [
        program("flower-superlink"),
        "--ssl-ca-certfile", str(authority),
        "--ssl-certfile", str(certificate),
        "--ssl-keyfile", str(key),
        "--enable-supernode-auth",
        "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        "--host", "127.0.0.1", "--port", str(port),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def supernode_command(server: str, port: int, authority: Path, key: Path, secret: Path, report: Path) -> list[str]:
    """A SuperNode that lets us take its tasks on loopback, and writes into `report` how it ended."""
    return [
        sys.executable, "-P", "-m", "ternfed.engines.flower.adapter.supernode", str(report),
        "--root-certificates", str(authority),
        "--auth-supernode-private-key", str(key),
        "--superlink", server,
        "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip


def how_it_ended(report: Path) -> Ended:
    """What a SuperNode that is gone has left in its report; one that was killed has left none."""
    try:
        said = json.loads(report.read_text(encoding="utf-8"))
        return Ended(End(said["end"]), str(said["reason"]))
    except (OSError, ValueError, KeyError):
        return Ended(End.LOST, "")

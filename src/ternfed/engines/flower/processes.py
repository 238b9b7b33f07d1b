"""Flower's own programs as child processes: offline, quiet, and gone when their parent is."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ternfed.engines.flower.errors import NetworkError

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Nothing phones home, and nothing is fetched."""
CHUNK = 1 << 20
"""Bytes of a message in one call. Flower gives a call 30 s: for its own 5 MiB a link of 1.4 Mbit/s is too slow."""


def set_up_flower(home: Path) -> None:
    """Flower in this process and its children: no telemetry, no update check, its files under `home`.

    To be called before Flower is imported, which reads its settings then.
    """
    os.environ.update(OFFLINE, FLWR_HOME=str(home), FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE=str(CHUNK))


def start(program: str, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A Flower program of this environment, its output in a file, in a process group of its own."""
    file = Path(sys.executable).with_name(program)
    if not file.exists():
        raise NetworkError(f"{program} is not installed; install the extra [flower]: pip install 'ternfed[flower]'")
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(file), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def stop(process: subprocess.Popen[bytes], patience: float = 5.0) -> None:
    """End a child and everything it started: asked first, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
            break
        except subprocess.TimeoutExpired:
            continue
    process.poll()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def write_secret(file: Path) -> bytes:
    """A new secret that two processes of one machine share, readable by this user alone."""
    secret = secrets.token_bytes(32)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(secret)
    return secret


def _die_with_parent() -> None:
    """Linux: the child gets SIGTERM when the parent ends, however it ends."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)

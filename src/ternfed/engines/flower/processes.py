"""Flower's programs as child processes that are gone when their parent is."""

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


def start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A program, its output in a file, in a process group of its own."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
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
    write_private(file, secret)
    return secret


def write_private(file: Path, data: bytes = b"") -> None:
    """A new file, readable by this user alone: a secret, or a log with ids in it."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(data)


def _die_with_parent() -> None:
    """Linux: the child gets SIGTERM when the parent ends, however it ends."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)

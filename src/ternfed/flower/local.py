"""A whole federation on one machine, for a first try: temporary certificates, clients as processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ternfed.flower.certs import Certificates
from ternfed.flower.client import Place, run_client
from ternfed.flower.half import Own


@contextmanager
def local_clients(count: int, server: str, certificates: Certificates, folder: Path) -> Iterator[list[BaseProcess]]:
    """Clients of a server on this machine; ended with it.

    On Linux they are forked from this process, which has PyTorch loaded, so that five of them start as fast as one.
    Call it before any thread is started and before PyTorch has computed anything: a fork has no threads but its own.
    """
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    processes = [
        context.Process(target=_client, args=(index, count, server, certificates, folder / str(index)), daemon=True)
        for index in range(count)
    ]
    for process in processes:
        process.start()
    try:
        yield list(processes)
    finally:
        for process in processes:
            process.join(4.0)
            if process.is_alive():
                process.terminate()
        for process in processes:
            process.join(3.0)
            if process.is_alive():
                process.kill()


def _client(index: int, count: int, server: str, certificates: Certificates, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its clients
    with (folder / "client.log").open("a", encoding="utf-8", buffering=1) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        run_client(Place(server, certificates, Own(index, count), folder), lambda text: print(text, file=log))


def _leave(number: int, frame: object) -> None:
    """Through the `finally` blocks, so that the SuperNode goes too."""
    raise SystemExit(0)

"""Flower as it comes: a SuperLink, SuperNodes and `flwr run`, on loopback, offline, in a folder of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ternfed.engines.flower import adapter, processes


@contextmanager
def stock_flower(place: Path, nodes: int) -> Iterator[dict[str, str]]:
    """The environment in which `flwr run APP here` reaches a SuperLink with so many SuperNodes."""
    home = place / "flower"
    home.mkdir(parents=True)
    port = processes.free_port()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    before = dict(os.environ)
    os.environ.update(adapter.OFFLINE, FLWR_HOME=str(home))
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    children = []
    try:
        link = [adapter.program("flower-superlink"), "--insecure", "--port", str(port)]
        link += ["--disable-runtime-dependency-installation"]
        children.append(processes.start(link, place / "superlink.log"))
        _wait_for(port)
        for index in range(nodes):
            node = [adapter.program("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
            node += ["--port", str(processes.free_port())]
            node += ["--node-config", f"partition-id={index} num-partitions={nodes}"]
            children.append(processes.start(node, place / f"supernode-{index}.log"))
        yield dict(os.environ)
    finally:
        for child in children:
            processes.stop(child, patience=3.0)
        os.environ.clear()
        os.environ.update(before)


def _wait_for(port: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def run_app(app: Path, environment: dict[str, str], *settings: str, seconds: float = 300) -> list[tuple[float, str]]:
    """The lines that `flwr run --stream` shows, each with the moment that it came."""
    command = [str(Path(sys.executable).with_name("flwr")), "run", str(app), "here", "--stream"]
    command += [word for setting in settings for word in ("-c", setting)]
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        end = time.monotonic() + seconds
        for line in process.stdout:
            text = line.decode(errors="replace").rstrip()
            lines.append((time.monotonic(), text))
            if time.monotonic() > end or "Run finished" in text or "ServerApp failed" in text:
                break
        processes.stop(process)
    return lines

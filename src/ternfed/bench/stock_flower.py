"""Flower as it comes: a SuperLink, SuperNodes and `flwr run`, on loopback, offline, in a folder of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ternfed.engines.flower import adapter, processes
from ternfed.engines.flower.errors import NetworkError

INSTALL = "pip install 'ternfed[simulation]'"


class Stock(NamedTuple):
    """Flower's processes, as they run."""

    environment: dict[str, str]
    """In which `flwr run APP here` reaches the SuperLink."""
    superlink: str
    """HOST:PORT"""
    supernodes: list[str]
    """Where each hands out its tasks."""


@contextmanager
def stock_flower(place: Path, nodes: int) -> Iterator[dict[str, str]]:
    """The environment in which `flwr run APP here` reaches a SuperLink with so many SuperNodes."""
    with flower_processes(place, nodes) as stock:
        yield stock.environment


@contextmanager
def flower_processes(place: Path, nodes: int, *options: str) -> Iterator[Stock]:
    """A SuperLink and so many SuperNodes, all of them with these options too."""
    own = [processes.free_port() for _ in range(nodes)]
    with _superlink(place, *options) as (link, children):
        for index, tasks in enumerate(own):
            command = [adapter.program("flower-supernode"), "--insecure", "--superlink", link, *options]
            command += ["--port", str(tasks), "--node-config", f"partition-id={index} num-partitions={nodes}"]
            children.append(processes.start(command, place / f"supernode-{index}.log"))
        yield Stock(dict(os.environ), link, [f"127.0.0.1:{tasks}" for tasks in own])


@contextmanager
def simulated_flower(place: Path, nodes: int) -> Iterator[dict[str, str]]:
    """The environment in which `flwr run APP here` is Flower's simulation with so many SuperNodes; it needs Ray."""
    need_ray()
    control = f"127.0.0.1:{processes.free_port()}"
    with _superlink(place, "--simulation", "--host", "127.0.0.1", "--control-api-address", control):
        words = ["federation", "simulation-config", "@none/default", "here", "--num-supernodes", str(nodes)]
        subprocess.run([adapter.program("flwr"), *words], check=True, capture_output=True, timeout=120)
        yield dict(os.environ)


@contextmanager
def _superlink(place: Path, *options: str) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """(HOST:PORT of a SuperLink, a list of processes to end with it); the environment is theirs as long."""
    home = place / "flower"
    home.mkdir(parents=True)
    port = processes.free_port()
    link = f"127.0.0.1:{port}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{link}"\ninsecure = true\n'
    )
    before = dict(os.environ)
    os.environ.update(adapter.OFFLINE, FLWR_HOME=str(home), OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    children: list[subprocess.Popen[bytes]] = []
    try:
        command = [adapter.program("flower-superlink"), "--insecure", "--port", str(port), *options]
        command += ["--disable-runtime-dependency-installation"]
        children.append(processes.start(command, place / "superlink.log"))
        _wait_for(port)
        yield link, children
    finally:
        for child in children:
            processes.stop(child, patience=3.0)
        os.environ.clear()
        os.environ.update(before)


def need_ray() -> None:
    """NetworkError where Flower's simulation cannot run."""
    if find_spec("ray") is None:
        raise NetworkError("Flower's simulation needs Ray; install the extra [simulation]: " + INSTALL)


def _wait_for(port: int, seconds: float = 120.0) -> None:
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

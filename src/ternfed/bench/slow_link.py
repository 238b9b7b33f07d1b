"""A server and five clients on links as slow as the paper's, for real: network namespaces, `tc`, TLS.

    sudo ternfed bench slow-link                      # ResNet18*, FedAvg against T-FedAvg, 26.36 / 11.05 Mbit/s
    sudo ternfed bench slow-link --down 1 --up 1      # the same at 1 Mbit/s

Each client has a namespace of its own and a link to the server that is shaped in both directions (token bucket). The
data is random and of CIFAR-10's shape: what is measured is the way of the bytes, not what is learned. Seconds of
communication are those of a round less those that the slowest client spent training, as it says itself.

Needs Linux, root, iproute2 (`ip`, `tc`), and the extra [flower]; where namespaces cannot be made, it says so and stops.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ternfed.bench.tables import markdown
from ternfed.data.images import Augment
from ternfed.data.values import DataSet, Samples

PORT = 8443
MODULE = "ternfed.bench.slow_link"


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    down: float = 26.36
    """Mbit/s from the server to each client."""
    up: float = 11.05
    """Mbit/s from each client to the server."""
    clients: int = 5
    rounds: int = 4
    """The first is not counted."""
    model: str = "resnet18"
    limit: float = 1800.0
    """Seconds for one federation."""
    algorithms: tuple[str, ...] = ("fedavg", "tfedavg")


@dataclass(frozen=True)
class LinkCost:
    """Medians of one algorithm's rounds: seconds of communication, and bytes of a client."""

    algorithm: str
    seconds: float
    payload_down: float
    payload_up: float
    socket_down: float
    socket_up: float


def run(plan: Plan) -> Iterator[LinkCost]:
    """Every algorithm, one after another."""
    check_machine()
    with tempfile.TemporaryDirectory(prefix="ternfed-slow-") as place:
        for algorithm in plan.algorithms:
            folder = Path(place) / algorithm
            folder.mkdir()
            with links(plan.clients, plan.down, plan.up) as addresses:
                yield federate(algorithm, plan, folder, addresses)


def random_images() -> DataSet:
    """Random images of CIFAR-10's shape: 40 for each of five clients, and a few to evaluate on."""
    source = torch.Generator().manual_seed(0)
    train, test = (
        Samples(
            torch.randint(256, (count, 3, 32, 32), generator=source).to(torch.uint8),
            torch.arange(count) % 10,
        )
        for count in (220, 20)
    )
    return DataSet("random", train, test, 10, (0.5,) * 3, (0.25,) * 3, Augment(padding=4, flip=True))


def experiment(algorithm: str, plan: Plan) -> str:
    """The experiment as TOML."""
    extra = 'judging = "off"\nstatistics = "average"\n' if algorithm == "tfedavg" else ""
    return (
        f'[data]\ndataset = "{MODULE}:random_images"\nhold_out = 0.05\n[model]\nname = "{plan.model}"\n'
        f"[federation]\nclients = {plan.clients}\nparticipation = 1.0\nrounds = {plan.rounds}\n"
        f'[training]\nepochs = 1\nbatch = 20\n[algorithm]\nname = "{algorithm}"\n{extra}'
    )


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def shape(namespace: str, device: str, mbit: float) -> None:
    """Let a device send no faster; bursts of at most 32 kB."""
    command = ["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", device, "root", "tbf"]
    rate = ["rate", f"{mbit * 1000:.0f}kbit", "burst", "32kbit" if mbit < 2 else "256kbit", "latency", "400ms"]
    subprocess.run([*command, *rate], check=True, capture_output=True, text=True)


@contextmanager
def links(clients: int, down: float, up: float) -> Iterator[list[str]]:
    """Namespaces `tf-server` and `tf-0`, `tf-1`, … with a shaped link each; the server's address on each link."""
    names = ["tf-server", *(f"tf-{index}" for index in range(clients))]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        addresses = []
        for index in range(clients):
            near, far, client = f"tfs{index}", f"tfc{index}", f"tf-{index}"
            ip("-n", "tf-server", "link", "add", near, "type", "veth", "peer", "name", far, "netns", client)
            ip("-n", "tf-server", "addr", "add", f"10.77.{index}.1/24", "dev", near)
            ip("-n", client, "addr", "add", f"10.77.{index}.2/24", "dev", far)
            ip("-n", "tf-server", "link", "set", near, "up")
            ip("-n", client, "link", "set", far, "up")
            shape("tf-server", near, down)
            shape(client, far, up)
            addresses.append(f"10.77.{index}.1")
        yield addresses
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def check_machine() -> None:
    """RuntimeError where namespaces or shaping are not to be had."""
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            raise RuntimeError(f"{program} is missing: install iproute2")
    try:
        with links(1, 10.0, 10.0):
            pass
    except subprocess.CalledProcessError as error:
        raise RuntimeError(
            f"this machine cannot make shaped namespaces ({error.stderr.strip()}); root is needed"
        ) from error


def federate(algorithm: str, plan: Plan, folder: Path, addresses: list[str]) -> LinkCost:
    """One federation; medians over its rounds but the first."""
    file = folder / "experiment.toml"
    file.write_text(experiment(algorithm, plan), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ternfed = [sys.executable, "-m", "ternfed"]
    hosts = [word for address in addresses for word in ("--host", address)]
    certs = [str(folder / "certs"), *hosts, "--clients", str(plan.clients)]
    subprocess.run([*ternfed, "certs", "init", *certs], check=True, capture_output=True, env=environment)
    children: list[subprocess.Popen[bytes]] = []

    def start(namespace: str, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = ["ip", "netns", "exec", namespace, *ternfed, *arguments]
        with (folder / log).open("wb") as output:
            child = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        children.append(child)
        return child

    try:
        server = start(
            "tf-server", "server.log", "server", str(file), "--certs", str(folder / "certs"), "--port", str(PORT),
            "--out", str(folder / "run"), "--deadline", "900", "--patience", "300",
        )  # fmt: skip
        for index, address in enumerate(addresses):
            start(
                f"tf-{index}", f"client-{index}.log", "client", "--server", f"{address}:{PORT}",
                "--certs", str(folder / "certs"), "--data-partition", f"{index}/{plan.clients}",
                "--allow", MODULE, "--state", str(folder / f"state-{index}"),
            )  # fmt: skip
        if server.wait(plan.limit) != 0:
            raise RuntimeError((folder / "server.log").read_text(encoding="utf-8"))
    finally:
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, 15)
        for child in children:
            child.wait(20)
    return figures(algorithm, folder, plan.clients)


def figures(algorithm: str, folder: Path, clients: int) -> LinkCost:
    """What the run's own records say."""
    lines = (folder / "run" / "network" / "bytes.jsonl").read_text(encoding="utf-8").splitlines()
    rounds = [json.loads(line)["clients"].values() for line in lines]
    work = [
        [float(seconds) for seconds in re.findall(r"([\d.]+) s$", (folder / f"client-{i}.log").read_text(), re.M)]
        for i in range(clients)
    ]
    communication = [
        max(each["seconds"] for each in own) - max(work[i][number] for i in range(clients))
        for number, own in enumerate(rounds)
    ]
    keys = ("payload_down", "payload_up", "socket_down", "socket_up")
    means = {key: statistics.median(statistics.mean(each[key] for each in own) for own in rounds[1:]) for key in keys}
    return LinkCost(algorithm, statistics.median(communication[1:]), **means)


def table(plan: Plan, rows: Sequence[LinkCost]) -> str:
    """The algorithms as a Markdown table, and how the first compares with the last."""
    head = f"{plan.model}, {plan.clients} clients, {plan.down:g} Mbit/s down, {plan.up:g} Mbit/s up"
    whole = markdown(
        ("algorithm", "communication, seconds per round", "payload down / up, kB", "on the socket down / up, kB"),
        [
            (
                row.algorithm,
                f"{row.seconds:.2f}",
                f"{row.payload_down / 1e3:.1f} / {row.payload_up / 1e3:.1f}",
                f"{row.socket_down / 1e3:.1f} / {row.socket_up / 1e3:.1f}",
            )
            for row in rows
        ],
    )
    ratio = f"\n\nratio of communication seconds: {rows[0].seconds / rows[-1].seconds:.1f}" if len(rows) > 1 else ""
    return f"{head}\n\n{whole}{ratio}"

"""A federation of real processes for the tests: started, watched through its run folder, and always cleaned up."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ternfed.data.sets import load
from ternfed.engines.flower import processes
from ternfed.engines.flower.certs import Certificates, make_certificates
from ternfed.experiment.experiment import Experiment
from ternfed.round.exchange import Broadcasts, collect
from ternfed.round.federation import Federation, RoundOutcome, Site, answer, conclude, open_federation
from ternfed.round.intake import Intake
from ternfed.round.state import State
from ternfed.round.traffic import Clock, Traffic
from ternfed.runs.folder import Round
from ternfed.runs.records import read_rounds

HERE = Path(__file__).parent
SETTINGS = ("federation.participation=1.0", "training.epochs=1")


def small(clients: int, rounds: int, *settings: str) -> Experiment:
    """Digits and the small perceptron: a round's work takes a tenth of a second."""
    start = Experiment.from_toml("")
    return start.with_settings([f"federation.clients={clients}", f"federation.rounds={rounds}", *SETTINGS, *settings])


class Clients:
    """Client processes, by index."""

    def __init__(self, place: Path, count: int) -> None:
        self.place, self.count = place, count
        self.pids: dict[int, int] = {}
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.starter = subprocess.Popen(
            [sys.executable, str(HERE / "clients.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def start(self, index: int, server: str, certs: Path, **more: Any) -> None:
        spec = {"index": index, "count": self.count, "server": server, "certs": str(certs)}
        spec["state"] = str(self.place / str(index))
        assert self.starter.stdin is not None
        assert self.starter.stdout is not None
        self.starter.stdin.write(json.dumps({**spec, **more}) + "\n")
        self.starter.stdin.flush()
        self.pids[index] = int(self.starter.stdout.readline())

    def kill(self, index: int) -> None:
        os.kill(self.pids.pop(index), signal.SIGKILL)

    def fault(self, index: int, what: str) -> None:
        """Let something happen to a client in its next round."""
        (self.place / str(index) / "fault").write_text(what)

    def is_alive(self, index: int) -> bool:
        return Path(f"/proc/{self.pids[index]}").exists()

    def log(self, index: int) -> str:
        file = self.place / str(index) / "client.log"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def close(self) -> None:
        for pid in self.pids.values():
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        wait(lambda: not any(map(self.is_alive, self.pids)), 5, "clients to end", strict=False)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.starter.pid, signal.SIGKILL)
        self.starter.wait()


class Server:
    """A server process in a folder."""

    def __init__(self, out: Path, certificates: Certificates, experiment: Experiment, port: int = 0) -> None:
        self.out, self.certificates, self.experiment = out, certificates, experiment
        self.port = port or processes.free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        self.output = out.with_suffix(".log")

    def start(self, *options: str, descriptors: int = 0) -> None:
        """Start it, where wanted with so few descriptors that it cannot have more."""
        file = self.out.with_suffix(".toml")
        file.write_text(self.experiment.to_toml(), encoding="utf-8")
        command = [sys.executable, "-m", "ternfed", "server", str(file), "--certs"]
        command += [str(self.certificates.folder), "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--out", str(self.out), *options]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors,) * 2))
                if descriptors
                else None,
            )

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8") if self.output.exists() else ""

    def rounds(self) -> list[Round]:
        return read_rounds(self.out / "rounds.jsonl")[0]

    def bytes(self, rounds: int = 0) -> list[dict[str, Any]]:
        """The bytes of each round; of at least `rounds`, whose lines come a moment after their records."""
        file = self.out / "network" / "bytes.jsonl"
        wait(lambda: file.read_bytes().count(b"\n") >= rounds, 10, f"the bytes of {rounds} rounds")
        whole = file.read_text(encoding="utf-8").rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def model(self) -> dict[str, Tensor]:
        return load_file(self.out / "last.safetensors")

    def wait_for(self, holds: Callable[[list[Round]], bool], seconds: float, what: str) -> list[Round]:
        """Until the records so far fulfil something; fails, with what the server said, when it takes too long."""

        def looks() -> bool:
            assert self.process is not None
            if self.process.poll() not in (None, 0):
                raise AssertionError(f"the server ended: {self.said()}")
            return holds(self.rounds())

        wait(looks, seconds, what, self.said)
        return self.rounds()

    def wait_for_end(self, seconds: float) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            processes.stop(self.process, patience=10.0)


class Crowd:
    """Connections to a server on which nothing is said; those that it closes are opened again, at a measured pace."""

    def __init__(self, port: int, count: int, pace: float = 200.0) -> None:
        self.port, self.count, self.pace = port, count, pace
        self.sockets: list[socket.socket] = []
        self.opened = 0
        self.is_over = False
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < count + 500:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count + 500, hard))
        self.thread = threading.Thread(target=self._hold, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.is_over = True
        self.thread.join(30)
        for each in self.sockets:
            each.close()

    def _hold(self) -> None:
        while not self.is_over:
            alive = []
            for each in self.sockets:
                if _is_open(each):
                    alive.append(each)
                else:
                    each.close()
            self.sockets = alive
            missing = self.count - len(alive)
            for _ in range(min(missing, self.count if not self.opened else int(self.pace / 4))):
                with contextlib.suppress(OSError):
                    self.sockets.append(socket.create_connection(("127.0.0.1", self.port), timeout=5))
                    self.opened += 1
            time.sleep(0.25)


def _is_open(each: socket.socket) -> bool:
    each.setblocking(False)
    try:
        return each.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


class Cable:
    """A connection to a server that can be cut: forwards a port of its own, byte for byte."""

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self.target = host, int(port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.is_cut = False
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self.is_cut = True
        for each in self.sockets:
            with contextlib.suppress(OSError):  # one that has ended by itself
                each.shutdown(socket.SHUT_RDWR)
        self.sockets.clear()

    def mend(self) -> None:
        self.is_cut = False

    def close(self) -> None:
        self.listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
                if self.is_cut:
                    near.close()
                    continue
            except OSError:
                return
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            self.sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def wait(
    holds: Callable[[], bool], seconds: float, what: str, said: Callable[[], str] = str, strict: bool = True
) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            if strict:
                raise AssertionError(f"waited {seconds} s for {what}\n{said()}")
            return
        time.sleep(0.05)


def certificates(place: Path, clients: int) -> Certificates:
    return make_certificates(place / "certs", ["127.0.0.1"], clients)


def open_digits(experiment: Experiment) -> Federation:
    torch.set_num_threads(1)
    return open_federation(experiment, load("digits"))


def replay(experiment: Experiment, rounds: list[Round], sites: Sequence[Site] = ()) -> State:
    """The same run in this process with the clients that the records do not name as missing: what must come out.

    `sites` are those of clients with data of their own.
    """
    federation = open_digits(experiment)
    state = federation.open()
    algorithm = federation.algorithm
    for record in rounds:
        missing = {int(reason.split(":")[0].removeprefix("client ")) for reason in record.dropped}
        broadcasts = Broadcasts(algorithm, state.server, record.round)
        broadcast, chosen = broadcasts.any(), federation.chosen(record.round)
        arrived = Intake.of(algorithm, broadcast, federation.registered, len(chosen))
        for index in chosen:
            if index not in missing:
                site = sites[index] if sites else federation.site(index)
                upload, _ = answer(site, record.round, broadcast, algorithm.client_memory())
                message = collect(algorithm, upload, broadcast)
                arrived.add(index, algorithm.meaning(message, site.client(record.round)))
        state, _ = conclude(federation, state, arrived.finish(), Traffic(), Clock(), RoundOutcome(broadcasts, ()))
    return state


def same_bits(model: dict[str, Tensor], state: State) -> bool:
    expected = state.server.weights
    return model.keys() == expected.keys() and all(torch.equal(model[name], expected[name]) for name in expected)

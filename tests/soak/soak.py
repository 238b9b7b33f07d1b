"""A federation that is ill-treated for as long as one likes: `make soak`.

A server and many clients on loopback, with kills, cuts, lost disks and restarts of both sides at random, and hostile
neighbours at the door all the while. It ends with the rounds or with the time, whichever is first. Then the model must
have the bits of a calm run, in one process, of the uploads that counted; and memory and descriptors of the server must
not have grown. All draws come from `--seed`; what the system makes of them does not repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engines" / "flower"))

from behind import filled, forged, send_raw
from harness import Cable, Clients, Crowd, Server, certificates, replay, same_bits, small

from ternfed.engines.flower import adapter
from ternfed.engines.flower.certs import public_bytes
from ternfed.engines.flower.signatures import read_private_key, sign

HEADS = [file.read_bytes() for file in sorted((Path(__file__).parents[1] / "attacks" / "heads").glob("*.http"))]
KEPT = 40 << 20
"""Bytes by which a process may be larger in the last quarter than in the second, beside a tenth of its size."""


@dataclass
class Soak:
    """One run, and what happened in it."""

    place: Path
    clients: int
    rounds: int
    minutes: float
    pace: float
    deadline: float
    draw: random.Random
    events: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, float]] = field(default_factory=list)

    def run(self) -> dict[str, object]:
        """All of it; the report."""
        self.began = time.monotonic()
        self.server = Server(
            self.place / "run", certificates(self.place, self.clients), small(self.clients, self.rounds)
        )
        self.people = Clients(self.place / "clients", self.clients)
        self.cables = {index: Cable(self.server.address) for index in range(0, self.clients, 3)}
        self.away: dict[int, float] = {}
        self.cut: dict[int, float] = {}
        self.options = ("--deadline", f"{self.deadline:g}", "--patience", "600")
        crowd: Crowd | None = None
        neighbours = Neighbours(self)
        try:
            self.server.start(*self.options)
            for index in range(self.clients):
                self._start(index)
            self.server.wait_for(lambda rounds: len(rounds) >= 1, 900, "the first round")
            crowd = Crowd(self.server.port, 300, pace=40)
            neighbours.start()
            self._play()
            neighbours.stop()
            return self._report(crowd, neighbours)
        finally:
            neighbours.stop()
            if crowd is not None:
                crowd.close()
            self.server.close()
            self.people.close()
            for cable in self.cables.values():
                cable.close()

    def _play(self) -> None:
        """Until the rounds or the minutes are over."""
        process, next_event = self.server.process, time.monotonic()
        assert process is not None
        while self.server.process is not None and self.server.process.poll() is None:
            now = time.monotonic()
            self._sample()
            self._mend(now)
            if now - self.began > 60 * self.minutes:
                self.server.close()
                break
            if now > next_event and len(self.server.rounds()) < self.rounds - 2:
                self._happen()
                next_event = now + self.draw.expovariate(1 / self.pace)
            time.sleep(1.0)
        self.ended = self.server.process.returncode if self.server.process is not None else None

    def _happen(self) -> None:
        """Something goes wrong. The server is killed in the first half alone: its memory is judged in the second."""
        index = self.draw.randrange(self.clients)
        kinds = ["kill", "kill", "die", "slow", "disk", "cut", "cut"]
        if len(self.server.rounds()) < self.rounds // 2 and self.events["server killed"] < 5:
            kinds.append("server")
        kind = self.draw.choice(kinds)
        if kind == "server":
            self.server.kill()
            self.server.start(*self.options, "--resume")
            self.events["server killed"] += 1
        elif kind == "cut":
            index = self.draw.choice(list(self.cables))
            self.cables[index].cut()
            self.cut[index] = time.monotonic() + self.draw.uniform(2, 20)
            self.events["cable cut"] += 1
        elif index in self.away or not self.people.is_alive(index):
            return
        elif kind == "kill":
            self.people.kill(index)
            self.away[index] = time.monotonic() + self.draw.uniform(0, 15)
            self.events["client killed"] += 1
        elif kind == "die":
            self.people.fault(index, "die")
            self.events["client killed in a round"] += 1
        elif kind == "slow":
            self.people.fault(index, f"sleep {self.draw.uniform(1, 40):.0f}")
            self.events["client slow"] += 1
        else:
            shutil.rmtree(self.people.place / str(index) / "runs", ignore_errors=True)
            self.events["disk lost"] += 1

    def _mend(self, now: float) -> None:
        """Cables are repaired, and clients that are gone are started, as an init system would."""
        for index, until in list(self.cut.items()):
            if now > until:
                self.cables[index].mend()
                del self.cut[index]
        for index in range(self.clients):
            if index in self.away:
                if now > self.away[index]:
                    del self.away[index]
                    self._start(index)
            elif not self.people.is_alive(index):
                self.events["client started again"] += 1
                self._start(index)

    def _start(self, index: int) -> None:
        address = self.cables[index].address if index in self.cables else self.server.address
        self.people.start(index, address, self.server.certificates.folder)

    def _sample(self) -> None:
        """Size and descriptors of each process, every few seconds."""
        now = time.monotonic() - self.began
        if self.samples and now - self.samples[-1]["seconds"] < 5:
            return
        assert self.server.process is not None
        sample: dict[str, float] = {"seconds": now, "rounds": len(self.server.rounds())}
        server = self.server.process.pid
        for name, pids in (("server", [server]), ("superlink", children(server)), ("client", self._pids())):
            sizes = [size for pid in pids if (size := resident(pid))]
            files = [count for pid in pids if (count := descriptors(pid))]
            if sizes and files:
                sample[f"{name} bytes"], sample[f"{name} files"] = statistics.median(sizes), statistics.median(files)
        sample["pid"] = server
        self.samples.append(sample)

    def _pids(self) -> list[int]:
        return [pid for pid in self.people.pids.values() if Path(f"/proc/{pid}").exists()]

    def _report(self, crowd: Crowd, neighbours: Neighbours) -> dict[str, object]:
        rounds = self.server.rounds()
        missing = sum(len(record.dropped) for record in rounds)
        # A server that was stopped may have written a record and not yet its model: it plays that round again.
        ends = [rounds] if self.ended == 0 else [rounds, rounds[:-1]]
        model = self.server.model()
        is_same = any(same_bits(model, replay(self.server.experiment, each)) for each in ends)
        report: dict[str, object] = {
            "clients": self.clients,
            "rounds": len(rounds),
            "minutes": round((time.monotonic() - self.began) / 60, 1),
            "server ended with": self.ended,
            "same bits as a calm run": is_same,
            "uploads that counted": sum(record.clients for record in rounds) - missing,
            "uploads missing": missing,
            "events": dict(self.events),
            "idle connections opened": crowd.opened,
            "requests of hostile neighbours": dict(neighbours.sent),
            "answers to them": dict(neighbours.answers),
        }
        last = [each for each in self.samples if each["pid"] == self.samples[-1]["pid"]]
        grown = []
        for name in ("server", "superlink", "client"):
            for what in ("bytes", "files"):
                line = [each[f"{name} {what}"] for each in last if f"{name} {what}" in each]
                if len(line) >= 8:
                    quarter = len(line) // 4
                    second, fourth = (statistics.median(line[k * quarter : (k + 1) * quarter]) for k in (1, 3))
                    report[f"{name} {what}, second and last quarter"] = [int(second), int(fourth), int(max(line))]
                    if fourth > 1.1 * second + (KEPT if what == "bytes" else 20):
                        grown.append(f"{name} {what}")
        report["grown"] = grown
        return report


class Neighbours:
    """Whoever else reaches the port: strangers, and a registered client that is not what it seems."""

    def __init__(self, soak: Soak) -> None:
        self.soak, self.sent, self.answers = soak, Counter[str](), Counter[str]()
        self.draw = random.Random(soak.draw.random())
        self.is_over = False
        self.thread = threading.Thread(target=self._bother, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.is_over = True
        if self.thread.ident is not None:
            self.thread.join(30)

    def _bother(self) -> None:
        made, port = self.soak.server.certificates, self.soak.server.port
        keys = [read_private_key(made.client_key(index)) for index in range(self.soak.clients)]
        context = made.client_context()
        while not self.is_over:
            index = self.draw.randrange(len(keys))
            kind = self.draw.choice(["noise", "plain", "forged", "signed", "second", "large"])
            answer = b""
            with contextlib.suppress(OSError, TimeoutError):
                if kind in ("noise", "plain"):
                    data = os.urandom(2000) if kind == "noise" else self.draw.choice(HEADS)
                    with socket.create_connection(("127.0.0.1", port), timeout=2) as raw:
                        raw.sendall(data)
                        answer = raw.recv(100)
                else:
                    request = self._request(kind, keys[index], public_bytes(made.public_key(index)))
                    answer = asyncio.run(send_raw(port, context, request, 1.0))
            self.sent[kind] += 1
            self.answers[
                f"{kind}: {answer[9:12].decode('ascii', 'replace') if answer[:5] == b'HTTP/' else 'none'}"
            ] += 1
            time.sleep(self.draw.uniform(0.1, 0.6))

    def _request(self, kind: str, key: object, public: bytes) -> bytes:
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
        from flwr.proto.node_pb2 import Node

        signed = sign(key)  # type: ignore[arg-type]
        pull = PullMessagesRequest(node=Node(node_id=self.draw.getrandbits(60))).SerializeToString()
        head = b"POST %s HTTP/1.1\r\nhost: x\r\n{SIGNED}content-length: {LENGTH}\r\n\r\n{BODY}"
        if kind == "second":
            body = ActivateNodeRequest(public_key=public, heartbeat_interval=30).SerializeToString()
            return filled(
                head % adapter.ACTIVATE.encode(), forged(signed) if self.draw.random() < 0.5 else signed, body
            )
        if kind == "large":
            return filled(head % adapter.PUSH_OBJECT.encode(), forged(signed), os.urandom(3 << 20))
        return filled(self.draw.choice(HEADS), signed if kind == "signed" else forged(signed), pull)


def children(pid: int) -> list[int]:
    """The SuperLink that a server started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"superlink" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--pace", type=float, default=8.0, help="seconds between two events, on average")
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds that a round waits for its clients")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="ternfed-soak-") as place:
        draw = random.Random(given.seed)
        limits = (given.clients, given.rounds, given.minutes)
        report = Soak(Path(place), *limits, given.pace, given.deadline, draw).run()
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["same bits as a calm run"] and not report["grown"] else 1)


if __name__ == "__main__":
    main()

"""1,500 connections on which nothing is said, at a server that may have 1,024 descriptors."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
from behind import NODES
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from harness import Clients, Crowd, Server, certificates, replay, same_bits, small, wait

from ternfed.engines.flower import adapter
from ternfed.engines.flower.certs import make_certificates
from ternfed.engines.flower.signatures import read_private_key, sign

pytestmark = pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2_500, reason="this system does not let a test open 1,500 sockets"
)
IDLE = 1_500
DESCRIPTORS = 1_024


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors_of(server: Server) -> int:
    assert server.process is not None
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_a_door_with_1024_descriptors_serves_a_client_while_1500_idle_connections_are_held(tmp_path: Path) -> None:
    # The same without Flower's processes, in seconds: the door in a process of its own, and what is behind it.
    program = f"""
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
sys.path.insert(0, {str(Path(__file__).parent)!r})
from behind import open_door
from ternfed.engines.flower.certs import Certificates
with open_door(Certificates(Path({str(tmp_path / "certs")!r}))) as opened:
    print(opened.gate.port, flush=True)
    sys.stdin.read()
    print(max(opened.gate.connections.turned_away.values()))
"""
    made = make_certificates(tmp_path / "certs", [], 2)
    door = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert door.stdin is not None
    assert door.stdout is not None
    port = int(door.stdout.readline())
    before = resident(door.pid)
    crowd = Crowd(port, IDLE)
    try:
        wait(lambda: crowd.opened >= IDLE, 60, "the crowd")
        beat = SendNodeHeartbeatRequest(node=Node(node_id=NODES[0]), heartbeat_interval=30).SerializeToString()
        url = f"https://127.0.0.1:{crowd.port}{adapter.HEARTBEAT}"
        transport = httpx.HTTPTransport(verify=made.client_context(), retries=5)
        with httpx.Client(transport=transport, timeout=30) as client:
            for _ in range(50):
                answer = client.post(url, content=beat, headers=sign(read_private_key(made.client_key(0))))
                assert answer.status_code == 200
                time.sleep(0.05)
        assert len(os.listdir(f"/proc/{door.pid}/fd")) < DESCRIPTORS
        assert resident(door.pid) - before < 400 << 20
        turned_away, _ = door.communicate("", timeout=30)
        assert int(turned_away) > IDLE // 2
    finally:
        crowd.close()
        door.kill()
        door.wait()


@pytest.mark.slow
def test_a_run_goes_on_and_a_new_client_joins_while_1500_idle_connections_are_held(tmp_path: Path) -> None:
    server = Server(tmp_path / "run", certificates(tmp_path, 3), small(3, 10_000))
    clients = Clients(tmp_path / "clients", 3)
    crowd: Crowd | None = None
    try:
        server.start("--deadline", "60", "--patience", "200", "--wait-for", "2", descriptors=DESCRIPTORS)
        for index in range(2):
            clients.start(index, server.address, server.certificates.folder)
        server.wait_for(lambda rounds: len(rounds) >= 2, 240, "two rounds")
        crowd = Crowd(server.port, IDLE)
        begun = len(server.rounds())
        server.wait_for(lambda rounds: len(rounds) >= begun + 3 and crowd.opened >= IDLE, 240, "three more rounds")
        clients.start(2, server.address, server.certificates.folder)
        server.wait_for(lambda rounds: not rounds[-1].dropped, 240, "a round with the new client")
        joined = len(server.rounds())
        most = 0
        while len(server.rounds()) < joined + 3:
            most = max(most, descriptors_of(server))
            server.wait_for(lambda rounds: True, 1, "a look")
        assert most < DESCRIPTORS
        assert crowd.opened > IDLE, "the crowd has gone home"
        done = server.rounds()[: len(server.bytes(joined + 3))]  # the bytes of a round are noted after its model
        model = server.model()
        server.close()
        assert "Too many open files" not in server.said()
        assert "Too many open files" not in (server.out / "network" / "superlink.log").read_text()
        assert same_bits(model, replay(server.experiment, done))
    finally:
        if crowd is not None:
            crowd.close()
        server.close()
        clients.close()

"""Over TLS, with a process for each client, the same bits as in the simulator."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from harness import Clients, Server, certificates, open_digits, same_bits, small, wait
from safetensors.torch import load_file

from ternfed.engines import simulate
from ternfed.engines.flower import processes
from ternfed.engines.flower.connected import ListenAddress
from ternfed.engines.flower.deploy import Plan, serve
from ternfed.engines.flower.server import Terms
from ternfed.runs.folder import read_run


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    started = Clients(tmp_path / "clients", 5)
    yield started
    started.close()


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (2, "tfedavg"),
        (2, "eden"),
        *(pytest.param(2, name, marks=pytest.mark.slow) for name in ("fedpaq", "fedpm")),
        pytest.param(20, "tfedavg", marks=pytest.mark.slow),
    ],
)
def test_five_nodes_end_every_round_with_the_bits_and_the_record_of_the_simulator(
    tmp_path: Path, clients: Clients, wanted: int, name: str
) -> None:
    experiment = small(5, wanted, f"algorithm.name={name}")
    keys, port = certificates(tmp_path, 5), processes.free_port()
    for index in range(5):
        clients.start(index, f"127.0.0.1:{port}", keys.folder)
    plan = Plan(experiment, tmp_path / "run", ListenAddress(keys, "127.0.0.1", port), Terms(60, 120))
    expected = simulate.play(open_digits(experiment))
    rounds = 0
    for outcome in serve(plan, lambda text: None):
        state, record = next(expected)
        assert same_bits(load_file(tmp_path / "run" / "last.safetensors"), state)
        assert outcome.to_line() == record.to_line()
        rounds += 1
    assert rounds == wanted
    assert read_run(tmp_path / "run").data_name == "digits"

    lines = Server(tmp_path / "run", keys, experiment).bytes()
    assert [sorted(line["clients"]) for line in lines] == [["0", "1", "2", "3", "4"]] * wanted
    for line, outcome in zip(lines, Server(tmp_path / "run", keys, experiment).rounds(), strict=True):
        own = line["clients"].values()
        assert sum(each["payload_up"] for each in own) == outcome.bytes_up
        assert sum(each["payload_down"] for each in own) == outcome.bytes_down
        # On the socket there are at least the payload and, with TLS and Flower's calls, a few kilobytes more.
        assert all(0 < each["socket_up"] - each["payload_up"] < 60_000 for each in own)
        assert all(0 < each["socket_down"] - each["payload_down"] < 60_000 for each in own)


def test_clients_that_sit_rounds_out_end_with_the_bits_and_the_record_of_the_simulator(
    tmp_path: Path, clients: Clients
) -> None:
    experiment = small(5, 6, "federation.participation=0.5")
    federation = open_digits(experiment)
    chosen = [set(federation.chosen(number)) for number in range(1, 7)]
    # Some hold the broadcast of the round before, some held one and sat a round out, some never had any.
    pairs = list(pairwise(chosen))
    assert any(now & before for before, now in pairs)
    assert any((now - before) & set().union(*chosen[:number]) for number, (before, now) in enumerate(pairs))
    assert any(now - before - set().union(*chosen[:number]) for number, (before, now) in enumerate(pairs))

    keys, port = certificates(tmp_path, 5), processes.free_port()
    for index in range(5):
        clients.start(index, f"127.0.0.1:{port}", keys.folder)
    plan = Plan(experiment, tmp_path / "run", ListenAddress(keys, "127.0.0.1", port), Terms(60, 120))
    expected = simulate.play(federation)
    for outcome in serve(plan, lambda text: None):
        state, record = next(expected)
        assert same_bits(load_file(tmp_path / "run" / "last.safetensors"), state)
        assert outcome.to_line() == record.to_line()
    lines = Server(tmp_path / "run", keys, experiment).bytes()
    asked = [{int(name) for name, cost in line["clients"].items() if cost["payload_down"]} for line in lines]
    assert asked == chosen
    # What a client pays for a broadcast says which one it was coded given: the newest it had, if it had any.
    held: dict[int, int] = {}
    ages = set()
    for number, (now, line) in enumerate(zip(chosen, lines, strict=True), 1):
        costs: dict[int, set[int]] = {}
        for index in now:
            costs.setdefault(held.get(index, 0), set()).add(line["clients"][str(index)]["payload_down"])
            ages.add(number - held[index] if index in held else None)
        assert all(len(each) == 1 for each in costs.values())
        (alone,) = costs.pop(0, {sys.maxsize})
        assert all(max(each) < alone for each in costs.values())
        held |= dict.fromkeys(now, number)
    assert {None, 1, 2} <= ages


def test_what_clients_remember_survives_the_restart_of_every_process(tmp_path: Path, clients: Clients) -> None:
    # STC: a client that had lost its residual, or the model that updates are added to, would upload something else.
    keys, port = certificates(tmp_path, 2), processes.free_port()
    clients.count = 2
    for resume, rounds in ((False, 1), (True, 3)):
        experiment = small(2, rounds, "algorithm.name=stc")
        for index in range(2):
            clients.start(index, f"127.0.0.1:{port}", keys.folder)
        plan = Plan(experiment, tmp_path / "run", ListenAddress(keys, "127.0.0.1", port), Terms(60, 120), resume=resume)
        for _ in serve(plan, lambda text: None):
            pass
        wait(lambda: not any(map(clients.is_alive, range(2))), 15, "the clients to end")
    *_, (state, _) = simulate.play(open_digits(experiment))
    assert same_bits(load_file(tmp_path / "run" / "last.safetensors"), state)
    lines = Server(tmp_path / "run", keys, experiment).bytes()
    # Round 2 is the first after the restart: coded given what they still hold, as in the round after it.
    assert lines[1]["clients"]["0"]["payload_down"] < 2 * lines[2]["clients"]["0"]["payload_down"]

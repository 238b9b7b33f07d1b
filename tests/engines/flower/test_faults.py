"""What goes wrong on a real network, one thing after another in one run of three real clients.

The run as a whole must then equal, bit for bit, a run in this process without the uploads that the records name as
missing: so weights were renormalised, nothing was counted twice, and nothing was lost.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

pytest.importorskip("flwr")

from harness import Cable, Clients, Server, certificates, replay, same_bits, small

DEADLINE = 8.0
OPTIONS = ("--deadline", str(DEADLINE), "--patience", "60")


@dataclass
class Story:
    """The run so far."""

    server: Server
    clients: Clients
    cable: Cable
    """Client 0 is connected through it."""

    def start(self, index: int) -> None:
        address = self.cable.address if index == 0 else self.server.address
        self.clients.start(index, address, self.server.certificates.folder)

    def wait_for_everyone(self, seconds: float = 150.0) -> int:
        """Until a round from now on has all three clients; its number."""
        done = len(self.server.rounds())
        rounds = self.server.wait_for(
            lambda rounds: any(not record.dropped for record in rounds[done:]), seconds, "a round with everyone"
        )
        return next(record.round for record in rounds[done:] if not record.dropped)

    def wait_for_reason(self, words: str, seconds: float = 90.0) -> int:
        """Until a round from now on names this reason; its number."""
        done = len(self.server.rounds())
        rounds = self.server.wait_for(
            lambda rounds: any(words in reason for record in rounds[done:] for reason in record.dropped), seconds, words
        )
        return next(record.round for record in rounds[done:] if any(words in reason for reason in record.dropped))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    place = tmp_path_factory.mktemp("faults")
    server = Server(place / "run", certificates(place, 3), small(3, 10_000))
    cable = Cable(server.address)
    clients = Clients(place / "clients", 3)
    told = Story(server, clients, cable)
    try:
        server.start(*OPTIONS)
        for index in range(3):
            told.start(index)
        server.wait_for(lambda rounds: len(rounds) >= 2, 90, "two rounds")
        yield told
    finally:
        server.close()
        clients.close()
        cable.close()


def test_a_client_killed_in_a_round_is_left_out_after_the_deadline_and_named(story: Story) -> None:
    story.clients.fault(2, "die")
    number = story.wait_for_reason("client 2: did not answer within 8 s")
    record = story.server.rounds()[number - 1]
    assert record.clients == 3
    assert len(record.dropped) == 1
    after = story.server.wait_for(lambda rounds: len(rounds) >= number + 2, 30, "two more rounds")[number:]
    assert all(record.dropped == ("client 2: was not there",) for record in after[:2])


def test_a_client_that_comes_back_takes_part_again(story: Story) -> None:
    story.start(2)
    number = story.wait_for_everyone()
    assert "2" in story.server.bytes(number)[number - 1]["clients"]


def test_a_client_that_is_slow_is_left_out_until_it_is_done(story: Story) -> None:
    story.clients.fault(1, "sleep 14")
    number = story.wait_for_reason("client 1: did not answer within 8 s")
    again = story.wait_for_everyone()
    assert again > number


def test_a_client_that_lost_its_disk_is_sent_the_whole_and_stays_in_the_round(story: Story) -> None:
    story.wait_for_everyone()
    for file in (story.clients.place / "2" / "runs").glob("*/*.safetensors"):
        file.unlink(missing_ok=True)
    done = len(story.server.rounds())
    story.server.wait_for(lambda rounds: len(rounds) >= done + 3, 30, "three more rounds")
    costs = [line["clients"] for line in story.server.bytes(done + 3)[done : done + 3]]
    assert any(cost["2"]["payload_down"] > 1.5 * cost["1"]["payload_down"] for cost in costs)
    assert all("client 2" not in reason for record in story.server.rounds()[done:] for reason in record.dropped)


def test_a_network_cut_of_20_seconds_costs_one_client_some_rounds_and_nothing_else(story: Story) -> None:
    start = len(story.server.rounds())
    story.cable.cut()
    time.sleep(20)
    story.cable.mend()
    during = story.server.rounds()[start:]
    assert len(during) >= 2
    assert any(reason.startswith("client 0: ") for record in during for reason in record.dropped)
    story.wait_for_everyone()


def test_a_server_that_was_killed_goes_on_where_it_was(story: Story) -> None:
    before = story.server.rounds()
    story.server.kill()
    assert story.server.process is not None
    story.server.start(*OPTIONS, "--resume")
    story.wait_for_everyone()
    rounds = story.server.rounds()
    assert [record.to_line() for record in rounds[: len(before)]] == [record.to_line() for record in before]
    mine = f"--ssl-keyfile {story.server.certificates.server_key}"
    found = subprocess.run(["pgrep", "-fc", "--", mine], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "1", "the SuperLink of the killed server is still there"


def test_when_every_client_is_gone_the_server_waits_then_stops_and_nothing_is_lost(story: Story) -> None:
    server = story.server
    server.close()
    server.start("--deadline", "8", "--patience", "40", "--resume")
    story.wait_for_everyone()
    for index in range(3):
        story.clients.kill(index)
    assert server.wait_for_end(240) == 1
    assert "0 of 1 clients came within 40 s" in server.said()
    assert same_bits(server.model(), replay(server.experiment, server.rounds()))


def test_the_run_then_goes_on_to_its_end_as_if_nothing_had_happened(story: Story) -> None:
    server = story.server
    last = len(server.rounds()) + 2
    server.experiment = server.experiment.with_settings([f"federation.rounds={last}"])
    server.start(*OPTIONS, "--resume")
    for index in range(3):
        story.start(index)
    assert server.wait_for_end(240) == 0
    assert (server.out / "summary.json").exists()
    assert len(server.rounds()) == last
    assert same_bits(server.model(), replay(server.experiment, server.rounds()))
    deadline = time.monotonic() + 60
    while any(map(story.clients.is_alive, range(3))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(story.clients.is_alive, range(3))), "the clients were not told that the run is over"

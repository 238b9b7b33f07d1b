"""The server's rounds over a network: push, wait, check, average; who is missing is left out and named."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ternfed.aggregation.aggregation import Uploads
from ternfed.engines.flower import adapter, processes
from ternfed.engines.flower.client_round import END, RoundRequest
from ternfed.engines.flower.connected import ClientTraffic, Connections
from ternfed.engines.flower.envelope import content, unwrap
from ternfed.engines.flower.errors import NetworkError
from ternfed.engines.flower.moments import moment_of
from ternfed.engines.flower.uploads import accept
from ternfed.round.acceptance import Bounds
from ternfed.round.audit import finished, is_audited
from ternfed.round.exchange import Broadcast, Broadcasts
from ternfed.round.federation import Federation, RoundOutcome, conclude, let_go
from ternfed.round.intake import Intake
from ternfed.round.state import State, pack, unpack
from ternfed.round.traffic import Clock, Traffic
from ternfed.runs.folder import Round, RunFolder, Saved
from ternfed.runs.live import Phase

GRACE = 6.0
"""Seconds that a round waits at least for a client that was there a moment ago to ask for its next message, …"""
PER_CLIENT = 0.25
"""… for so many seconds per client of the round, because many on one machine come one after another, …"""
TIMES = 3.0
"""… and so many times as long as the slowest of them took lately; …"""
MOST_GRACE = 120.0
"""… but no longer than this."""
LOOK = 0.5
"""Seconds between two looks for replies when nothing is heard."""
FAREWELL = 30.0
"""Seconds in which clients that are away may come back to hear that the run is over."""

TRIES = 3
"""So often a round is played whose clients answer but send nothing that counts: it would not get better."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Terms:
    """How long the server waits, and what it accepts."""

    deadline: float = 600.0
    """Seconds that the clients of a round have to answer."""
    patience: float = 600.0
    """Seconds to wait for clients, before the first round and when none answers any more."""
    least: int = 1
    """Uploads that a round needs; with fewer it is played again."""
    grace: float | None = None
    """Seconds that a round waits for clients of the last one to ask for the next; None: by their number and pace."""
    bounds: Bounds = field(default_factory=Bounds)

    def grace_for(self, clients: int, latency: float) -> float:
        """The grace of a round with so many clients, the slowest of which took so long to ask again."""
        if self.grace is not None:
            return self.grace
        return min(MOST_GRACE, max(GRACE, PER_CLIENT * clients, TIMES * latency))


def wait_for_clients(connections: Connections, count: int, terms: Terms, say: Say, round: int = 1) -> None:
    """Until so many clients are there for a round; NetworkError after the patience."""
    end, seen, began = time.monotonic() + terms.patience, -1, time.time()
    while len(there := connections.ready()) < count:
        connections.tell(moment_of(connections.gate, range(connections.clients), round, began, "waiting"))
        if len(there) != seen:
            seen = len(there)
            say(f"{seen} of {connections.clients} clients are there" + (f": {names_of(there)}" if there else ""))
        if time.monotonic() > end:
            raise NetworkError(
                f"{len(there)} of {count} clients came within {terms.patience:g} s; "
                "start them with ternfed client, then go on by --resume"
            )
        connections.gate.wait(0.2)
    connections.answering.update(there)  # they are waited for if they are late for the first message
    say(f"{len(there)} of {connections.clients} clients are there: {names_of(there)}")


def record(
    federation: Federation, connections: Connections, folder: RunFolder, saved: Saved | None, terms: Terms, say: Say
) -> Iterator[Round]:
    """The rounds that are left, each written to the run folder with a checkpoint and the bytes of its clients."""
    state = federation.open()
    if saved is not None:
        state = unpack(federation.algorithm, saved.round, saved.tensors, saved.facts, federation.network.digest)
        del saved
    let_go(federation.network, federation.algorithm)
    folder.note_partition(None, federation.data_name)  # which samples a client has, only it knows
    while state.round < federation.experiment.federation.rounds:
        state, outcome, by_client = play_round(federation, connections, state, terms, say)
        folder.append(outcome)
        folder.save_checkpoint(
            outcome, *pack(state, federation.network.digest), is_best=state.best_round == state.round
        )
        note_bytes(folder.path, outcome.round, by_client)
        connections.link.log(f"round {outcome.round}: {outcome.metric} {outcome.score:.4g}, loss {outcome.loss:.4g}")
        yield outcome
    _say_goodbye(connections, state.took_part)


def play_round(
    federation: Federation, connections: Connections, state: State, terms: Terms, say: Say
) -> tuple[State, Round, dict[int, ClientTraffic]]:
    """One round; played again, after waiting for clients, where too few uploads came."""
    by_client: dict[int, ClientTraffic] = {}
    answered = 0
    while True:
        attempt = _Attempt(federation, connections, state, terms, by_client)
        attempt.play()
        connections.count(by_client)
        connections.answering = connections.answering.difference(attempt.chosen).union(attempt.holders)
        if len(attempt.holders) >= terms.least:
            after = RoundOutcome(
                attempt.broadcasts,
                tuple(sorted(attempt.holders)),
                missing=tuple(sorted(set(attempt.chosen) - set(attempt.holders))),
                dropped=tuple(attempt.dropped[client] for client in sorted(attempt.dropped)),
            )
            uploads = attempt.finished()
            return *conclude(federation, state, uploads, attempt.traffic, attempt.clock, after), by_client
        for client in sorted(attempt.dropped):
            say(f"round {state.round + 1}: {attempt.dropped[client]}")
        answered += attempt.answered
        if answered >= TRIES:
            reasons = "; ".join(attempt.dropped[client] for client in sorted(attempt.dropped))
            raise NetworkError(f"round {state.round + 1} failed {TRIES} times though clients answered: {reasons}")
        say(f"round {state.round + 1}: {len(attempt.holders)} uploads came, {terms.least} are needed; waiting")
        wait_for_clients(connections, min(terms.least, len(attempt.chosen)), terms, say, state.round + 1)


class _Attempt:
    """A round as far as it has come."""

    def __init__(
        self,
        federation: Federation,
        connections: Connections,
        state: State,
        terms: Terms,
        by_client: dict[int, ClientTraffic],
    ) -> None:
        self.federation, self.connections, self.state, self.terms = federation, connections, state, terms
        self.number = state.round + 1
        self.chosen = federation.chosen(self.number)
        self.traffic, self.clock = Traffic(), Clock()
        self.holders: list[int] = []
        self.dropped: dict[int, str] = {}
        self.answered = False
        """Some client did, whatever it said."""
        self.by_client = by_client
        algorithm = federation.algorithm
        self.broadcasts = Broadcasts(algorithm, state.server, self.number, state.broadcasts, state.holders)
        self._pending: dict[str, tuple[int, int | None]] = {}
        """Messages without a reply: to whom, and coded given which older broadcast."""
        self._pushed: dict[int, float] = {}
        self._arrived: Intake | None = None
        self._began = time.time()

    def _intake(self, broadcast: Broadcast) -> Intake:
        """Where uploads go; made with the first of them, because before that nobody may have been sent anything."""
        if self._arrived is None:
            known, asked = self.federation.registered, len(self.chosen)
            keeps = is_audited(self.federation, asked)
            self._arrived = Intake.of(self.federation.algorithm, broadcast, known, asked, keeps)
        return self._arrived

    def finished(self) -> Uploads:
        """All uploads made one; their sums, twice as large as the model, are gone then."""
        arrived, self._arrived = self._intake(self.broadcasts.any()), None
        return finished(self.federation, self.state, arrived)

    def _tell(self, phase: Phase) -> None:
        """Who watches hears what this round's clients are doing."""
        asked = {client for client, _ in self._pending.values()}
        gate, clients, known = self.connections.gate, range(len(self.federation.parts)), self.dropped
        self.connections.tell(
            moment_of(gate, clients, self.number, self._began, phase, asked=asked, counted=self.holders, dropped=known)
        )

    def play(self) -> None:
        self._tell("broadcast")
        ready = self._wait_for_ready()
        self.clock.lap("wait")
        self.dropped |= {client: f"client {client}: was not there" for client in set(self.chosen) - ready}
        for held, clients in self.broadcasts.groups(client for client in self.chosen if client in ready).items():
            self.broadcasts.given(held)
            self.clock.lap("broadcast")
            self._push(clients, held)
            self.clock.lap("push")
        end = time.monotonic() + self.terms.deadline
        while self._pending and time.monotonic() < end:
            self.connections.gate.wait(min(LOOK, max(end - time.monotonic(), 0.0)))
            for reply in self.connections.link.pull(self._whole()):
                self._take(reply, end)
            self._give_up(self._broken(), "its upload broke off")
            self._tell("train")
        self._give_up(list(self._pending), f"did not answer within {self.terms.deadline:g} s")
        self.clock.lap("clients")
        self._tell("aggregate")

    def _whole(self) -> list[str]:
        """The messages whose replies are there, or have not been begun: nobody waits for one that is on its way."""
        gate = self.connections.gate
        return [identity for identity, (client, _) in self._pending.items() if not gate.is_coming(client, identity)]

    def _broken(self) -> list[str]:
        """The messages whose replies were begun by clients that ask for the next: a SuperNode does not try again."""
        gate, pending = self.connections.gate, self._pending.items()
        return [identity for identity, (one, _) in pending if gate.is_coming(one, identity) and gate.is_ready(one)]

    def _give_up(self, identities: list[str], reason: str) -> None:
        """Wait for these replies no more."""
        for identity in identities:
            client, _ = self._pending.pop(identity)
            self.dropped[client] = f"client {client}: {reason}"
            self.connections.link.discard([identity, *self.connections.gate.forget(client)])

    def _wait_for_ready(self) -> set[int]:
        """Who of the chosen is there. One that did not answer when it was last asked is not waited for."""
        end = time.monotonic() + self.terms.grace_for(len(self.chosen), self.connections.gate.latency)
        known = self.connections.answering.union(self.state.took_part)
        expected = {client for client in self.chosen if client in known}
        while True:
            ready = {client for client in self.chosen if self.connections.gate.is_ready(client)}
            if expected <= ready or time.monotonic() > end:
                return ready
            self.connections.gate.wait(0.05)

    def _push(self, clients: list[int], held: int | None) -> None:
        data = self.broadcasts.given(held).data
        group, seconds = RoundRequest(self.number, held).group, self.terms.deadline + 5.0
        identities = self.connections.link.push(clients, group, content(data), seconds)
        self.connections.gate.wake()
        for client, identity in zip(clients, identities, strict=True):
            self._pending[identity] = client, held
            self._pushed.setdefault(client, time.monotonic())
            self.traffic.add_download(data)
            self.by_client.setdefault(client, ClientTraffic()).payload_down += len(data)

    def _take(self, reply: Any, end: float) -> None:
        """A reply: into the average, or the reason why not; without reference again where the client has lost it."""
        client, held = self._pending.pop(reply.metadata.reply_to_message_id)
        self.answered = self.answered or not adapter.is_from_flower(reply)
        if reply.has_error():
            reason = str(reply.error.reason)
            if (
                held is not None
                and reason.startswith(("MissingReference", "WrongReference"))
                and time.monotonic() < end
            ):
                self._push([client], None)
            else:
                self.dropped[client] = f"client {client}: {_short(reason)}"
            return
        try:
            data = unwrap(reply.content)
            traffic = self.by_client[client]
            traffic.payload_up += len(data)
            traffic.seconds = time.monotonic() - self._pushed[client]
            algorithm, network = self.federation.algorithm, self.federation.network
            broadcast, bounds = self.broadcasts.given(held).broadcast, self.terms.bounds
            sender = self.federation.site(client).client(self.number)
            upload = accept(algorithm, network, data, broadcast, sender, self.number, bounds)
            self._intake(broadcast).add(client, upload.meaning)
            self.traffic.add_upload(data, upload.message, algorithm, broadcast)
            self.holders.append(client)
        except Exception as error:  # whatever a client sends must not stop the others
            self.dropped[client] = f"client {client}: {type(error).__name__}: {_short(str(error))}"


def new_run(folder: Path) -> str:
    """A name for a new run, by which clients know what they remember of it."""
    network = folder / "network"
    network.mkdir(parents=True, exist_ok=True, mode=0o700)
    run = secrets.token_hex(8)
    processes.write_private(network / "run", run.encode("ascii"))
    (network / "bytes.jsonl").unlink(missing_ok=True)
    return run


def known_run(folder: Path) -> str:
    """The name of a run that is resumed; a new one where it had none."""
    file = folder / "network" / "run"
    return file.read_text(encoding="ascii") if file.is_file() else new_run(folder)


def note_bytes(folder: Path, round: int, by_client: dict[int, ClientTraffic]) -> None:
    """Add a round's line to network/bytes.jsonl: payload and socket bytes of each client."""
    clients = {str(client): vars(by_client[client]) for client in sorted(by_client)}
    with (folder / "network" / "bytes.jsonl").open("ab") as stream:
        stream.write(json.dumps({"round": round, "clients": clients}).encode() + b"\n")


def _say_goodbye(connections: Connections, expected: Collection[int]) -> None:
    """Tell the clients that the run is over, so that they end.

    One of the last round that is just connecting again is waited for; whoever comes later finds the port closed.
    """
    from flwr.app import RecordDict

    told: dict[str, int] = {}
    heard: set[int] = set()
    end = time.monotonic() + FAREWELL
    while time.monotonic() < end:
        there = [client for client in connections.ready() if client not in heard and client not in told.values()]
        if there:
            told.update(zip(connections.link.push(there, END, RecordDict(), FAREWELL), there, strict=True))
            connections.gate.wake()
        for reply in connections.link.pull(list(told)):
            client = told.pop(str(reply.metadata.reply_to_message_id))
            if not adapter.is_from_flower(reply):
                heard.add(client)
        if not told and heard.issuperset(expected):
            return
        connections.gate.wait(LOOK)


def names_of(clients: Sequence[int]) -> str:
    """`0 to 33, 36, 37`: three and more in a row by the first and the last of them."""
    by_row = groupby(enumerate(sorted(clients)), key=lambda pair: pair[1] - pair[0])
    rows = [[client for _, client in row] for _, row in by_row]
    return ", ".join(f"{row[0]} to {row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows)


def _short(text: str) -> str:
    """A client's words on one line of the record, and not many."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]

"""Run folders followed while they grow: what was new since the last look is read, nothing twice."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ternfed.experiment.settings import Table
from ternfed.files import read_json
from ternfed.runs.folder import RunError, being_written, read_run
from ternfed.runs.live import Moment, read_moment
from ternfed.runs.partition import FILE, read_partition
from ternfed.runs.records import Round
from ternfed.runs.several import run_folders, setting

State = Literal["starting", "waiting", "running", "finished", "stopped"]
"""Of a run: no round yet; for clients; at work; all rounds done; nobody works on it and rounds are left."""

RECENT = 10
"""Rounds that tell how long the next ones will take."""


@dataclass(frozen=True)
class ClientTotals:
    """What one client of a network has sent and received, and how long it took when it last took part."""

    rounds: int = 0
    up: int = 0
    down: int = 0
    """Bytes of messages."""
    socket_up: int = 0
    socket_down: int = 0
    """Bytes on the wire, TLS and all."""
    seconds: float | None = None

    def plus(self, values: Mapping[str, Any]) -> ClientTotals:
        seconds = values.get("seconds")
        return ClientTotals(
            rounds=self.rounds + (seconds is not None),
            up=self.up + int(values.get("payload_up") or 0),
            down=self.down + int(values.get("payload_down") or 0),
            socket_up=self.socket_up + int(values.get("socket_up") or 0),
            socket_down=self.socket_down + int(values.get("socket_down") or 0),
            seconds=self.seconds if seconds is None else float(seconds),
        )


@dataclass(frozen=True)
class Snapshot:
    """A run as it stands."""

    folder: Path
    settings: Table
    data_name: str | None
    """What its data set calls itself, as soon as that is known."""
    state: State
    rounds: Sequence[Round]
    live: Moment | None
    clients: Mapping[int, ClientTotals]
    """By index, of a run over a network."""
    warnings: tuple[str, ...] = ()
    generation: int = 0
    """Another one when the run began anew: what was seen of it before is of another run."""

    @property
    def total(self) -> int:
        """Rounds that it is to have."""
        return int(setting(self.settings, "federation.rounds") or 0)

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes up and down so far."""
        return sum(record.bytes_up for record in self.rounds), sum(record.bytes_down for record in self.rounds)

    def phases(self) -> dict[str, float]:
        """Mean seconds of a round by phase, over the recent ones that were timed."""
        timed = [record.seconds for record in self.rounds if record.seconds][-RECENT:]
        names = dict.fromkeys(name for seconds in timed for name in seconds)
        return {name: statistics.fmean(seconds.get(name, 0.0) for seconds in timed) for name in names}

    def seconds_left(self, now: float) -> float | None:
        """How long the rounds that are left will take, if they take as long as the recent ones."""
        lengths = [sum(record.seconds.values()) for record in self.rounds if record.seconds][-RECENT:]
        if self.state != "running" or not lengths:
            return None
        one, left = statistics.median(lengths), self.total - len(self.rounds)
        inside = 0.0 if self.live is None or self.live.round <= len(self.rounds) else now - self.live.began
        return max(0.0, one * left - min(max(inside, 0.0), one))


@dataclass
class Follower:
    """One run folder, looked at again and again."""

    folder: Path
    _generation: int = 0
    _config: tuple[int, int] | None = None
    _settings: Table = field(default_factory=dict)
    _rounds: list[Round] = field(default_factory=list)
    _seconds: dict[int, dict[str, float]] = field(default_factory=dict)
    _clients: dict[int, ClientTotals] = field(default_factory=dict)
    _named: tuple[tuple[int, int] | None, str | None] = None, None
    """Which file the name of its data set was read from, and that name."""
    _read: dict[str, int] = field(default_factory=dict)
    """Bytes of each file that were read."""

    def look(self) -> Snapshot | None:
        """The run as it stands now; None where the folder holds none."""
        config = _identity(self.folder / "config.toml")
        if config is None:
            return None
        if config != self._config or self._has_shrunk():
            try:
                self._settings = read_run(self.folder).settings
            except RunError:
                return None
            self._config, self._generation = config, self._generation + 1
            self._rounds, self._seconds, self._clients, self._read = [], {}, {}, {}
        self._read_on()
        summary, live = read_json(self.folder / "summary.json"), read_moment(self.folder)
        warnings = summary.get("warnings") if isinstance(summary, dict) else None
        state = self._state(isinstance(summary, dict), live)
        known = tuple(map(str, warnings)) if isinstance(warnings, list) else ()
        moment = live if state in ("running", "waiting") else None
        return Snapshot(
            self.folder, self._settings, self._data_name(), state, tuple(self._rounds), moment, dict(self._clients),
            known, self._generation,
        )  # fmt: skip

    def _data_name(self) -> str | None:
        """Written after the settings, and so looked for until it is there; read again when it is another file."""
        now = _identity(self.folder / FILE)
        if now != self._named[0]:
            self._named = now, read_partition(self.folder).data_name
        return self._named[1]

    def _state(self, summarised: bool, live: Moment | None) -> State:
        wanted = setting(self._settings, "federation.rounds")
        if summarised or (isinstance(wanted, int) and len(self._rounds) >= wanted):
            return "finished"
        if not being_written(self.folder):
            return "stopped"
        if live is None:
            return "running" if self._rounds else "starting"
        return "waiting" if live.phase == "waiting" else "running"

    def _has_shrunk(self) -> bool:
        """A run that is resumed at an older round, or begun anew, has shorter files."""
        return any(_size(self.folder / name) < size for name, size in self._read.items())

    def _read_on(self) -> None:
        for line in self._new_lines("timing.jsonl"):
            values = _object(line)
            if isinstance(values.get("round"), int) and isinstance(values.get("seconds"), dict):
                self._seconds[values["round"]] = values["seconds"]
        known = len(self._rounds)
        for line in self._new_lines("rounds.jsonl"):
            try:
                record = Round.from_line(line)
            except (ValueError, TypeError):
                continue
            if record.round == len(self._rounds) + 1:
                self._rounds.append(record)
        late = max(0, min(known, len(self._rounds) - 2 * RECENT))
        for place in range(late, len(self._rounds)):  # those that are new, and a few whose timing may come later
            record = self._rounds[place]
            if not record.seconds and record.round in self._seconds:
                self._rounds[place] = Round(**{**vars(record), "seconds": self._seconds[record.round]})
        for line in self._new_lines("network/bytes.jsonl"):
            for client, values in (_object(line).get("clients") or {}).items():
                if client.isdigit() and isinstance(values, dict):
                    before = self._clients.get(int(client), ClientTotals())
                    self._clients[int(client)] = before.plus(values)

    def _new_lines(self, name: str) -> Iterator[bytes]:
        """Whole lines that were added since the last look."""
        before = self._read.get(name, 0)
        try:
            with (self.folder / name).open("rb") as stream:
                stream.seek(before)
                data = stream.read()
        except OSError:
            return
        end = data.rfind(b"\n") + 1
        self._read[name] = before + end
        yield from data[:end].splitlines()


class Board:
    """Runs of several folders side by side; runs that come later are found too."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._followers: dict[Path, Follower] = {}

    def find(self) -> None:
        """Look for runs that are new."""
        for folder in self._folders:
            for found in run_folders(folder):
                self._followers.setdefault(found, Follower(found))

    def look(self) -> list[Snapshot]:
        """Every run as it stands now, in the order in which they were found."""
        seen = (follower.look() for follower in self._followers.values())
        return [snapshot for snapshot in seen if snapshot is not None]


def _object(line: bytes) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0

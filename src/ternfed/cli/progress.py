"""Rounds as they come: a bar in a terminal, timestamped lines without one, JSON lines for machines; or nothing."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from ternfed.cli import terminal
from ternfed.cli.terminal import round_facts

if TYPE_CHECKING:
    from ternfed.runs.live import Moment
    from ternfed.runs.records import Round

WARNED = "frozen"
"""A progress line's word for trits that do not move."""
SILENCE = 60.0
"""Seconds without a line after which one tells how far a long round is."""

RECENT = 10
"""Rounds that tell how long the next ones will take."""

Style = Literal["bar", "lines", "json", "quiet"]


def style_of(quiet: bool, log_json: bool) -> Style:
    """How to show progress: as asked for, and otherwise as standard error is a terminal or not."""
    if log_json:
        return "json"
    if quiet:
        return "quiet"
    return "bar" if terminal.err.is_terminal else "lines"


class Shown:
    """A run's progress on standard error."""

    def __init__(self, total: int, label: str, style: Style, past: Sequence[Round] = ()) -> None:
        self.total, self.label, self.style = total, label, style
        self._seen = list(past)
        self._up = sum(record.bytes_up for record in past)
        self._down = sum(record.bytes_down for record in past)
        self._facts, self._inside = "starting", ""
        self._bar: tuple[Progress, TaskID] | None = None
        self._spoke = time.monotonic()

    def follow(
        self, rounds: Iterable[Round], warns: Callable[[Sequence[Round]], Sequence[str]] = lambda rounds: ()
    ) -> Iterator[Round]:
        """Pass the rounds on and show each: the score, bytes up and down, strategy, flips, time left.

        `warns` tells of the rounds so far what to be warned of: the line says so, and the sentence follows at the end.
        """
        warned, start, done = False, time.monotonic(), 0
        recent: deque[float] = deque(maxlen=RECENT)
        with _bars(self.style != "bar") as progress:
            task = progress.add_task(self.label, total=self.total, completed=len(self._seen), facts=self._facts)
            self._bar = (progress, task) if self.style == "bar" else None
            for record in rounds:
                self._seen.append(record)
                done += 1
                self._up, self._down = self._up + record.bytes_up, self._down + record.bytes_down
                warned = warned or (record.changed is not None and bool(warns(self._seen)))
                self._facts = round_facts(record, record.score, self._up, self._down)
                self._facts += f", {WARNED}" if warned else ""
                self._inside = ""
                # What waiting for clients before the first round took says nothing of the rounds to come.
                recent.append(sum(record.seconds.values()) or (time.monotonic() - start) / done)
                self._round(record, statistics.median(recent) * (self.total - record.round))
                yield record
        self._bar = None

    def tell(self, moment: Moment) -> None:
        """What happens inside a round: in the bar's line, or once in a while as a line of its own."""
        if moment.phase == "waiting":
            return
        self._inside = f" · round {moment.round}: {moment.done} of {moment.asked} clients" if moment.asked else ""
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, facts=self._facts + self._inside)
        elif self.style in ("lines", "json") and time.monotonic() - self._spoke > SILENCE:
            self._line(
                f"round {moment.round}/{self.total} {moment.done} of {moment.asked} clients done",
                event="progress", round=moment.round, clients_done=moment.done, clients=moment.asked,
            )  # fmt: skip

    def say(self, text: str) -> None:
        """A sentence about the run."""
        if self.style == "bar":
            terminal.err.print(terminal.plain(text), highlight=False, soft_wrap=True)
        else:
            self._line(text, event="message", text=text)

    def warn(self, text: str) -> None:
        """A sentence at its end, about something that may not be what was meant."""
        if self.style == "json":
            self._line(text, event="warning", text=text)
        elif self.style != "quiet":
            terminal.warn(text)

    def _round(self, record: Round, left: float) -> None:
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=record.round, facts=self._facts)
            return
        seconds = sum(record.seconds.values())
        loss = f" · loss {record.loss:.4g}"
        text = f"{self.label} round {record.round}/{self.total} {self._facts}{loss} · {seconds:.1f} s"
        text += f" · {span(left)} left" if record.round < self.total else ""
        values = {key: value for key, value in vars(record).items() if key not in ("seconds", "layer_bits")}
        values |= {"phases": dict(record.seconds), "seconds": seconds, "seconds_left": left, "rounds": self.total}
        values |= {"total_up": self._up, "total_down": self._down, "run": self.label}
        self._line(text, event="round", **values)

    def _line(self, line: str, **values: Any) -> None:
        """One line, with the time in front, or as JSON with the time in it."""
        self._spoke = time.monotonic()
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        if self.style == "json":
            finite = {key: None if _is_not_finite(value) else value for key, value in values.items()}
            sys.stderr.write(json.dumps({"time": now, **finite}, ensure_ascii=False, default=str) + "\n")
            sys.stderr.flush()
        elif self.style == "lines":
            terminal.err.print(f"{now} {terminal.plain(line)}", highlight=False, soft_wrap=True)


def span(seconds: float) -> str:
    """So many seconds as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _bars(disable: bool) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=terminal.err, disable=disable, transient=False)


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)

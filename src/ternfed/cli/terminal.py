"""What the command line shows: tables, one-line errors; `progress.py` shows rounds. Nothing else prints."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from ternfed.named_function import users_line

if TYPE_CHECKING:
    from ternfed.runs.folder import Round
    from ternfed.task import Measure

out = Console()
err = Console(stderr=True)


def round_facts(record: Round, score: float, up: int, down: int) -> str:
    """A round in a progress line: a score of it, bytes so far, and where trits travel the share that flipped."""
    strategy = f" · strategy {record.strategy}" if record.strategy else ""
    flips = "" if record.changed is None else f" · flips {share(record.changed)}"
    return f"{record.measure.text(score)} · ↑ {size(up)} ↓ {size(down)}{strategy}{flips}"


def share(value: float) -> str:
    """A share in percent as a person reads it: 12.3%, 0.0021%, 0%."""
    return f"{100 * value:.1f}%" if value >= 1e-3 or value == 0 else f"{100 * value:.2g}%"


def size(count: float) -> str:
    """Bytes as a person reads them, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def summary_table(rows: Mapping[str, Mapping[str, Any]], measure: Measure, title: str = "") -> Table:
    """Runs side by side: their scores, bytes, and how they compare with the first."""
    table = Table(title=title or None, title_justify="left")
    table.add_column("run", overflow="fold")  # a name that is cut is none
    flips = any(row.get("flips_mean") is not None for row in rows.values())
    headings = (measure.name, "uploaded", "downloaded", "bits per weight up", *(["flips"] if flips else []), "seconds")
    for heading in headings:  # which breaks between its words, and not within one
        table.add_column(heading, justify="right", min_width=max(map(len, heading.split())))
    first = next(iter(rows.values()))
    for name, row in rows.items():
        table.add_row(
            plain(name),
            "–" if row[measure.name] is None else _score(row[measure.name], measure),
            _against(row["bytes_up"], first["bytes_up"]),
            _against(row["bytes_down"], first["bytes_down"]),
            "–" if row["bits_per_weight_up"] is None else f"{row['bits_per_weight_up']:.3f}",
            *(["–" if row.get("flips_mean") is None else share(row["flips_mean"])] if flips else []),
            f"{row['seconds']:.1f}",
        )
    return table


def _score(score: float, measure: Measure) -> str:
    return f"{100 * score:.2f}%" if measure.percent else f"{score:.4g}"


def _against(count: int, first: int) -> str:
    if count == first or not count:
        return size(count)
    times = first / count
    return f"{size(count)} (1/{times:.{0 if times >= 100 else 1}f})"


WIDE = 220
"""Columns of a table that goes to a file, where nothing needs to be wrapped."""


def print_wide(table: Table) -> None:
    """A table as wide as the terminal, or as it likes where it goes to a file."""
    (out if out.is_terminal else Console(width=WIDE)).print(table)


def print_json(value: Any) -> None:
    """One object on standard output, and nothing else there."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def warn(message: object) -> None:
    """A sentence on standard error about something that worked but may not be what was meant."""
    err.print(f"[yellow]ternfed: warning:[/yellow] {plain(message)}", highlight=False, soft_wrap=True)


def fail(message: object) -> None:
    """One clear sentence on standard error."""
    err.print(f"[red]ternfed:[/red] {plain(' '.join(str(message).splitlines()))}", highlight=False, soft_wrap=True)


def plain(message: object) -> str:
    """A text as it may be shown: no markup of rich's, and nothing that a terminal obeys."""
    letters = (letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in str(message))
    return "".join(letters).replace("[", r"\[")


def rows_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Plain rows; numbers to the right of the first column."""
    table = Table()
    for place, heading in enumerate(headings):
        if place == 0:
            table.add_column(heading, overflow="fold")  # a name that is cut is none
        else:
            table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*map(plain, row))
    return table


NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError)
"""Errors of the system that tell of a path that was given wrong."""


@contextmanager
def answered(*, begun: bool = False, interrupted: str = "") -> Iterator[None]:
    """The exit code of every verb: 0; 1 for a run that failed; 2 for wrong input. One sentence for both.

    Wrong input is what Python calls ValueError, ImportError or a path that is not there. RuntimeError and other errors
    of the system are failures; once a run has `begun`, so is everything. An error that came through the user's own code
    is of either kind, and the sentence names the line. TERNFED_TRACEBACK, which `--debug` sets, shows the whole way.
    """
    try:
        yield
    except (typer.Exit, typer.Abort):  # RuntimeErrors to Python
        raise
    except Exception as error:
        place = users_line(error, skip=2)
        known = isinstance(error, ValueError | ImportError | RuntimeError | OSError | MemoryError)
        if os.environ.get("TERNFED_TRACEBACK") or not (known or place):
            raise
        text = _words(error) if known else f"{type(error).__name__}: {error}"
        fail(text if place is None else f"{text} ({place}; --debug shows the whole way)")
        raise typer.Exit(1 if begun or _is_failure(error) else 2) from error
    except KeyboardInterrupt as error:
        fail(f"interrupted; {interrupted}" if interrupted else "interrupted")
        raise typer.Exit(1) from error


def _is_failure(error: Exception) -> bool:
    if isinstance(error, OSError):
        return not isinstance(error, NOT_THERE) and error.errno != errno.ENAMETOOLONG
    return isinstance(error, RuntimeError | MemoryError)


def _words(error: Exception) -> str:
    """What an error says; of one of the system, which file and why."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error) or type(error).__name__

"""What benchmarks show: Markdown tables, and promises beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ternfed.files import write_atomically


@dataclass(frozen=True)
class Promise:
    """What should hold, what was measured, and whether it does."""

    what: str
    promised: str
    measured: str
    kept: bool


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table ready for a page."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows))


def write_into(page: Path, name: str, text: str) -> None:
    """Put a text between the comments `<!-- begin NAME -->` and `<!-- end NAME -->` of a page."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    whole = page.read_text(encoding="utf-8")
    if whole.count(begin) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page}: needs the comments {begin} and {end} once each")
    front, back = whole.split(begin)[0], whole.split(end)[1]
    write_atomically(page, f"{front}{begin}\n{text}\n{end}{back}".encode())

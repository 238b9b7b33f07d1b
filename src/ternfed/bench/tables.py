"""What benchmarks show: Markdown tables, and promises beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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

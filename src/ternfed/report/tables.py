"""A table as plain values, and how it reads as Markdown; as HTML, `templates/table.html` says it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from textwrap import wrap
from typing import Protocol

WIDTH = 120
"""Letters of a line in a Markdown page."""

COLUMNS = 8
"""Of a table in a Markdown page, at most; a wider one becomes several."""

NONE = "–"
"""In a cell that has nothing to say."""


@dataclass(frozen=True)
class Sheet:
    """A table: every cell is text, nothing is escaped yet."""

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: int = 1
    """So many columns are words, to the left; the others are numbers, to the right."""
    notes: tuple[str, ...] = ()
    links: tuple[str | None, ...] = ()
    """Of each row: the id of what it tells about, on the page."""
    quiet: tuple[int, ...] = ()
    """Rows that stand back: the paper's beside ours."""
    names: int | None = None
    """So many columns name a row, and stand in each part of a wide table; all those that are words unless told."""

    def without_empty(self) -> Sheet:
        """Columns of numbers in which no row has anything are left out."""
        kept = [
            place
            for place in range(len(self.headings))
            if place < self.texts or any(row[place] not in (NONE, "") for row in self.rows)
        ]
        headings = tuple(self.headings[place] for place in kept)
        return replace(self, headings=headings, rows=tuple(tuple(row[place] for place in kept) for row in self.rows))

    def markdown(self) -> str:
        """The table and its notes; no heading, because the page it goes into has its own."""
        parts = ["\n".join(self._part(places)) for places in self._parts()]
        return "\n\n".join([*parts, *map(paragraph, self.notes)])

    def _parts(self) -> list[tuple[int, ...]]:
        """The columns of each part: those that name a row, and an equal share of the others."""
        count = len(self.headings)
        if count <= COLUMNS:
            return [tuple(range(count))]
        names = self.texts if self.names is None else self.names
        parts = -(-(count - names) // max(COLUMNS - names, 1))
        edges = [names + (count - names) * place // parts for place in range(parts + 1)]
        return [(*range(names), *range(first, last)) for first, last in pairwise(edges)]

    def _part(self, places: Sequence[int]) -> list[str]:
        """A part of the columns; of a wide table, only the rows that have something there."""
        whole = len(places) == len(self.headings)
        names = self.texts if self.names is None else self.names
        rows = [
            [row[place] for place in places]
            for row in self.rows
            if whole or any(row[place] not in (NONE, "") for place in places if place >= names)
        ]
        sides = ["---" if place < self.texts else "--:" for place in places]
        return [_line([self.headings[place] for place in places]), f"|{'|'.join(sides)}|", *map(_line, rows)]


class Block(Protocol):
    """What a page can have between its marks: a table, or a chapter."""

    def markdown(self) -> str: ...


def into_page(page: str, blocks: Mapping[str, Block | None], where: str) -> tuple[str, list[str]]:
    """A Markdown page with its tables new, and the names of those that were asked for and are empty.

    A table stands between `<!-- report: NAME -->` and `<!-- /report -->`, each on a line of its own.
    """
    lines: list[str] = []
    empty: list[str] = []
    open_name: str | None = None
    for line in page.splitlines():
        mark = line.strip()
        if mark.startswith("<!-- report:") and mark.endswith("-->"):
            name = mark.removeprefix("<!-- report:").removesuffix("-->").strip()
            if open_name is not None:
                raise ValueError(f"{where}: <!-- report: {open_name} --> has no <!-- /report --> before the next one")
            if name not in blocks:
                raise ValueError(f"{where}: <!-- report: {name} --> names no table; there are {', '.join(blocks)}")
            block, open_name = blocks[name], name
            empty += [name] if block is None else []
            lines += [line, "", "*There are no runs for this table yet.*" if block is None else block.markdown(), ""]
        elif mark == "<!-- /report -->":
            if open_name is None:
                raise ValueError(f"{where}: <!-- /report --> stands where no table began")
            open_name = None
            lines.append(line)
        elif open_name is None:
            lines.append(line)
    if open_name is not None:
        raise ValueError(f"{where}: <!-- report: {open_name} --> has no <!-- /report --> after it")
    return "\n".join(lines) + "\n", empty


def paragraph(text: str, width: int = WIDTH) -> str:
    """Plain text as Markdown, in lines of a page's width, none of which looks like a heading, a quotation or a list."""
    lines = wrap(_plain(text), width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(re.sub(r"^(\d*)([-+#=]|[.)](?!\d))", r"\1\\\2", line) for line in lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: no tag, no column, no emphasis, no line of its own."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`|\[\]])", r"\\\1", text)
    # N_c and ResNet18* need no backslash: there, neither sign can begin an emphasis.
    return re.sub(r"(?<!\w)_|_(?!\w)|(?<!\w)\*|\*(?=\w)", r"\\\g<0>", text)

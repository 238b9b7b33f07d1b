"""A chapter: sentences, figures and tables that belong together, as plain values and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ternfed.report.style import Picture
from ternfed.report.tables import WIDTH, Sheet, paragraph


@dataclass(frozen=True)
class Part:
    """What is said about one comparison."""

    title: str
    texts: tuple[str, ...]
    picture: Picture
    sheets: tuple[Sheet, ...]


@dataclass(frozen=True)
class Chapter:
    """Several parts under one heading."""

    name: str
    title: str
    parts: tuple[Part, ...]
    reading: tuple[tuple[str, str], ...] = ()
    """How the tables of all parts are read: title and sentences."""
    notes: tuple[str, ...] = ()

    @property
    def sheets(self) -> tuple[Sheet, ...]:
        return tuple(sheet for part in self.parts for sheet in part.sheets)

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(part.picture for part in self.parts)

    def markdown(self, images: str = "images") -> str:
        """The parts; no heading for all of them, because the page has its own. `images` is where the figures lie."""
        return "\n\n".join(self._blocks(images))

    def _blocks(self, images: str) -> Iterator[str]:
        if self.reading:
            yield "\n".join(_item(title, text) for title, text in self.reading)
        for part in self.parts:
            yield f"## {paragraph(part.title)}"
            yield from map(paragraph, part.texts)
            yield f"![{paragraph(part.picture.caption)}]({images}/{part.picture.name}.png)".replace("\n", " ")
            for sheet in part.sheets:
                yield f"### {paragraph(sheet.title)}"
                yield sheet.markdown()
        yield from map(paragraph, self.notes)


def _item(title: str, text: str) -> str:
    """One of a list, its title in bold."""
    narrow = WIDTH - len("- ****")
    return f"- {paragraph(f'{title}. {text}', narrow).replace(title, f'**{title}**', 1)}".replace("\n", "\n  ")

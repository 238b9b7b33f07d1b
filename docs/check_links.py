"""Looks for links of a built site that lead nowhere, and for anything that a page would load from elsewhere.

python docs/check_links.py docs/_build/html
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a page loads by itself, and where its address stands."""
NOT_LOADED = {"canonical", "next", "prev", "index", "search", "author", "copyright"}
"""Relations of `link` that only tell."""


@dataclass
class Page(HTMLParser):
    """The ids, links and loaded files of a page."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {key: value or "" for key, value in attrs}
        self.ids |= {known[key] for key in ("id", "name") if key in known}
        if tag == "a" and "href" in known:
            self.links.append(known["href"])
        if tag in LOADED and LOADED[tag] in known and known.get("rel") not in NOT_LOADED:
            self.loaded.append(known[LOADED[tag]])


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def faults(site: Path) -> Iterator[str]:
    """One sentence for each link or file that is not there, and for each file from elsewhere."""
    pages = {path.resolve(): read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for address in page.loaded:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                yield f"{name}: loads {address}"
            elif not (path.parent / unquote(parts.path)).exists():
                yield f"{name}: loads {address}, which is not there"
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{name}: {address} leads nowhere"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{name}: {address} names no place of that page"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1])))
    sys.exit("\n".join(found) if found else 0)

"""How Sphinx builds the site from this folder (`make docs`); warnings are errors there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ternfed

HERE = Path(__file__).parent

project = "ternfed"
author = "the authors of ternfed"
copyright = "the authors of ternfed, Apache-2.0"
version = release = ternfed.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "draw_*.py", "LOG_*.md"]  # the last: entries that wait for their place in LOG.md
language = "en"
nitpicky = False  # PyTorch's and numpy's types in signatures have no page here

html_theme = "furo"
html_title = f"ternfed {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None  # the same pages from the same sources

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "off"  # a notebook's outputs are those that were committed; a test makes them again
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # nothing is loaded from elsewhere

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

OUTSIDE = {
    "contributing": "CONTRIBUTING.md",
    "changes": "CHANGELOG.md",
    "reporting": "SECURITY.md",
    "flower_examples": "examples/flower/README.md",
}
"""Pages that lie elsewhere in the repository, where their readers look for them; each has a stub here."""


def take_from_repository(app: object, name: str, source: list[str]) -> None:
    """A stub becomes the page it stands for, and links between the two worlds become links of the site."""
    if name in OUTSIDE:
        source[0] = (HERE.parent / OUTSIDE[name]).read_text(encoding="utf-8")
    for page, path in OUTSIDE.items():
        source[0] = source[0].replace(f"](../{path}", f"]({page}.md")
    source[0] = re.sub(r"\]\((?:\.\./)*docs/", "](", source[0])


def as_restructured(app: object, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text with `code` in it: no other sign of theirs has a meaning."""
    for place, line in enumerate(lines):
        words = line.split("`")
        words[::2] = [re.sub(r"[*|_]", r"\\\g<0>", text) for text in words[::2]]
        lines[place] = "``".join(words)


def setup(app: Any) -> None:
    app.connect("source-read", take_from_repository)
    app.connect("autodoc-process-docstring", as_restructured)

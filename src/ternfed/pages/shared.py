"""The templates of a room, which stand on the shared ones: `layout.html` for the head, `base.css` for the looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def templates(room: str, folder: str = "templates") -> Environment:
    """The templates of a room and the shared ones; all of them escape all they get."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "a report needs jinja2: pip install 'ternfed[report]'; the live page, 'ternfed[watch]'"
        ) from error
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(f"ternfed.{room}", folder), jinja2.PackageLoader("ternfed.pages")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

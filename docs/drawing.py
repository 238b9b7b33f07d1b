"""What the drawings of docs/ share: colours that follow the reader's, words, boxes, arrows, the file itself."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

STYLE = """
svg { --ink: #1f2328; --soft: #59636e; --line: #c4ccd4; --page: #ffffff; --room: #f4f6f8;
      --server: #dbe8f6; --client: #fbe4d5; --bytes: #e7e3f4; --kept: #e2f0dd;
      --minus: #3d7ab8; --zero: #d5dae0; --plus: #d9772b; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6edf3; --soft: #9aa5b1; --line: #4a5561; --page: #0d1117; --room: #1b222b;
        --server: #1c3350; --client: #4d2f1c; --bytes: #332b52; --kept: #1f3b22;
        --minus: #5b9bd8; --zero: #3a434d; --plus: #e58a43; } }
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--ink); }
.head { font-size: 19px; font-weight: 600; } .name { font-size: 15px; font-weight: 600; }
.note { font-size: 12px; fill: var(--soft); } .box { stroke: var(--line); stroke-width: 1; }
.large { font-size: 22px; font-weight: 600; } .words { font-size: 17px; }
.arrow { stroke: var(--soft); stroke-width: 1.6; fill: none; marker-end: url(#tip); }
"""

TIP = (
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M 0 0.5 L 7.5 4 L 0 7.5 z" fill="var(--soft)"/></marker>'
)


def text(x: float, y: float, words: str, kind: str, anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" class="box" fill="var(--{colour})"/>'
    )


def arrow(*points: tuple[float, float]) -> str:
    path = " L ".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path class="arrow" d="M {path}"/>'


def drawn(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """The parts as a file, on a ground of its own."""
    front = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{title}">'
    )
    ground = f'<rect width="{width:g}" height="{height:g}" fill="var(--page)"/>'
    before = (front, f"<title>{title}</title>", f"<style>{STYLE}</style>", f"<defs>{TIP}</defs>", ground)
    return "\n".join([*before, *parts, "</svg>"]) + "\n"

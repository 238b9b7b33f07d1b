"""Draws docs/images/round.svg: one round between a server and its clients, for the first page (`make pictures`)."""

from __future__ import annotations

from pathlib import Path

from drawing import arrow, box, drawn, text

PICTURE = Path(__file__).parent / "images" / "round.svg"

WIDTH, HEIGHT = 760, 560
MODEL = "+0-+0 0+-0- +-00+"
"""Some weights of a model: -1, 0 or +1 each."""
CHANGES = ("0+000 00-00 0000+", "00-00 0+000 000-0", "-0000 000+0 0+000")
"""What three clients send of theirs."""
SIGNS = {"-": "minus", "0": "zero", "+": "plus"}


def trits(x: float, y: float, rows: str, side: float) -> list[str]:
    """A small matrix of coloured squares."""
    step = side * 1.15
    return [
        box(x + across * step, y + down * step, side, side, SIGNS[sign])
        for down, row in enumerate(rows.split())
        for across, sign in enumerate(row)
    ]


def picture() -> str:
    """The server above, three clients below, trits between them."""
    parts = [
        box(40, 24, 680, 152, "server"),
        text(64, 58, "Server", "large", "start"),
        text(64, 92, "4. averages what came", "words", "start"),
        text(64, 118, "5. rounds it to trits again;", "words", "start"),
        text(84, 144, "what rounding loses is kept", "words", "start"),
        *trits(500, 52, MODEL, 26),
        text(575, 162, "one model: \u22121, 0, +1", "words"),
        arrow((230, 178), (230, 366)),
        arrow((530, 366), (530, 180)),
        text(212, 236, "1. trits go down,", "words", "end"),
        text(212, 260, "coded given what", "words", "end"),
        text(212, 284, "the client holds", "words", "end"),
        text(548, 236, "3. trits or changes", "words", "start"),
        text(548, 260, "of a bit or two", "words", "start"),
        text(548, 284, "go up", "words", "start"),
        *trits(318, 222, MODEL, 22),
    ]
    for place, changes in enumerate(CHANGES):
        x = 40 + place * 232
        parts += [
            box(x, 370, 216, 164, "client"),
            text(x + 108, 402, f"Client {place + 1}", "large"),
            text(x + 108, 430, "2. trains on its own", "words"),
            text(x + 108, 454, "data, which stay", "words"),
            *trits(x + 66, 468, changes, 15),
        ]
    return drawn("One round: trits go down, clients train on their own data, trits go up", WIDTH, HEIGHT, parts)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")

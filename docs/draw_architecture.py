"""Draws docs/images/architecture.svg: one round as data walks it, and the rooms from the table in architecture.md.

Run by `make pictures`. One file serves light and dark pages: its colours follow the reader's.
"""

from __future__ import annotations

import re
from pathlib import Path

from drawing import arrow, box, drawn, text

HERE = Path(__file__).parent
PAGE, PICTURE = HERE / "architecture.md", HERE / "images" / "architecture.svg"

WIDTH = 1200
BANDS = (
    ("tensors and bytes", "files named_function quantize task wire"),
    ("uploads, draws, data", "aggregation draws data models"),
    ("what is computed", "algorithms training"),
    ("what is asked, what is kept", "experiment runs"),
    ("one round", "round"),
    ("who carries the bytes", "engines"),
    ("what is made of it", "edge plan sweep paper"),
    ("how it is seen", "track pages watch report"),
    ("measured and called", "bench cli"),
)
"""The rooms of the table, in its order, in groups."""
INSIDE = {
    "quantize": "ternary · fused · layers",
    "wire": "forms · codecs · .tern",
    "aggregation": "mean · trimmed · median",
    "data": "sets · partitions",
    "algorithms": "tfedavg · fedavg · fedprox · fedopt · cmfl · stc · centralized",
    "training": "plain · batched · captured · choose · evaluation",
    "experiment": "typed settings ⇄ TOML",
    "runs": "records · checkpoints",
    "round": "exchange · federation · crew · traffic · state",
    "engines": "simulate  |  ranks  |  flower behind its adapter",
    "edge": "ONNX · .tern · predict",
    "plan": "costs before training",
    "sweep": "trials · grids",
    "paper": "rows · numbers · reproduce",
    "track": "TensorBoard · MLflow",
    "pages": "one head for all",
    "watch": "live page · metrics",
    "report": "tables · figures · page",
    "bench": "both sides in one run",
    "cli": "the verbs",
    "task": "loss · metric · prediction",
    "files": "written whole or not at all",
    "named_function": "module:function",
    "draws": "all randomness from one seed",
    "models": "the paper's networks",
}


def rooms() -> list[str]:
    """The rooms of the table, in its order."""
    table = PAGE.read_text(encoding="utf-8").partition("## Rooms")[2].partition("\n## ")[0]
    return [re.sub(r"/$|\.py$", "", name) for name in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)]


def step(x: float, y: float, width: float, name: str, note: str, colour: str) -> str:
    """One station of a round: what happens, and in which room."""
    middle = x + width / 2
    return box(x, y, width, 50, colour) + text(middle, y + 22, name, "name") + text(middle, y + 40, note, "note")


def one_round() -> list[str]:
    """The path of a round: the server above, the clients below, bytes between them."""
    top, wire, low = 60.0, 158.0, 256.0
    return [
        text(24, 34, "One round", "head", "start"),
        text(24, top + 16, "server", "note", "start"),
        text(24, wire + 28, "bytes", "note", "start"),
        text(24, low + 30, "clients", "note", "start"),
        step(90, top, 150, "broadcast", "algorithms", "server"),
        step(90, wire, 150, "encode ▶ decode", "round/exchange, wire", "bytes"),
        step(90, low, 150, "start", "algorithms", "client"),
        step(290, low, 290, "local steps, quantized", "training, quantize, task, data, draws", "client"),
        step(630, low, 150, "finish", "algorithms", "client"),
        step(630, wire, 150, "encode ▶ decode", "round/exchange, wire", "bytes"),
        step(630, top, 150, "aggregate", "aggregation", "server"),
        step(290, top, 290, "update: Strategy I or II", "algorithms: requantize, judge, choose", "server"),
        step(860, top, 140, "evaluate", "training, task", "server"),
        step(1036, top, 140, "record", "runs", "kept"),
        step(1036, wire, 140, "report, export", "report, edge", "kept"),
        arrow((165, top + 50), (165, wire - 3)),
        arrow((165, wire + 50), (165, low - 3)),
        arrow((240, low + 25), (287, low + 25)),
        arrow((580, low + 25), (627, low + 25)),
        arrow((705, low), (705, wire + 53)),
        arrow((705, wire), (705, top + 53)),
        arrow((630, top + 25), (583, top + 25)),
        arrow((290, top + 25), (243, top + 25)),
        arrow((435, top + 50), (435, top + 72), (820, top + 72), (820, top + 25), (857, top + 25)),
        arrow((1000, top + 25), (1033, top + 25)),
        arrow((1106, top + 50), (1106, wire - 3)),
        text(262, top + 45, "next", "note"),
        text(830, low + 16, "One process carries the bytes", "note", "start"),
        text(830, low + 32, "(engines/simulate), or Flower", "note", "start"),
        text(830, low + 48, "(engines/flower): the same bits.", "note", "start"),
    ]


def the_rooms(top: float) -> tuple[list[str], float]:
    """The rooms in bands, the lowest at the bottom; each uses only what stands below it, or left of it in its band."""
    parts = [
        text(24, top, "Rooms", "head", "start"),
        text(104, top, "imports go down, and to the left within a band", "note", "start"),
    ]
    left, right, height, gap = 230.0, WIDTH - 24.0, 52.0, 12.0
    y = top + 20
    for title, names in reversed(BANDS):
        inside = names.split()
        width = (right - left - gap * (len(inside) - 1)) / len(inside)
        parts.append(text(left - 16, y + 31, title, "note", "end"))
        for place, name in enumerate(inside):
            x = left + place * (width + gap)
            parts += [box(x, y, width, height, "room"), text(x + width / 2, y + 23, name, "name")]
            parts.append(text(x + width / 2, y + 41, INSIDE[name] if len(INSIDE[name]) * 6.1 < width else "", "note"))
        y += height + gap
    return parts, y


def picture() -> str:
    """The whole drawing as SVG."""
    named = [name for _, names in BANDS for name in names.split()]
    if named != rooms():
        raise SystemExit(f"the bands of the picture are not the rooms of {PAGE.name}: {named} and {rooms()}")
    below, height = the_rooms(370)
    return drawn("One round of ternfed, and its rooms", WIDTH, height, [*one_round(), *below])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")

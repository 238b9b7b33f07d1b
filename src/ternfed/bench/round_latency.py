"""What a round costs besides training: ternfed's server and clients against Flower as it comes, in one run.

Both sides train small perceptrons on the digits (not the same one), well under a second per client. Flower as it comes
is `examples/flower/updates` under `flower-superlink`, `flower-supernode` and `flwr run`, all with their defaults.
Medians over all rounds but the first.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ternfed.bench.network_bytes import serve_locally
from ternfed.bench.stock_flower import run_app, stock_flower
from ternfed.bench.tables import markdown

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower" / "updates"


@dataclass(frozen=True)
class Latency:
    """Seconds of each round of one side."""

    who: str
    seconds: tuple[float, ...]


def run(nodes: int = 5, rounds: int = 5) -> Iterator[Latency]:
    """Both sides, one after the other."""
    if not EXAMPLE.is_dir():
        raise FileNotFoundError(f"{EXAMPLE}: is only there in a checkout of the sources")
    with tempfile.TemporaryDirectory(prefix="ternfed-latency-") as place:
        for who, measure in (("Flower as it comes", stock_rounds), ("`ternfed server`", own_rounds)):
            folder = Path(place) / measure.__name__
            folder.mkdir()
            yield Latency(who, tuple(measure(folder, nodes, rounds)))


def stock_rounds(place: Path, nodes: int, rounds: int) -> list[float]:
    """Seconds of each round under Flower as it comes, from the lines that it shows."""
    app = place / EXAMPLE.name
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    with stock_flower(place, nodes) as environment:
        settings = f"num-server-rounds={rounds} min-nodes={nodes} local-epochs=1"
        lines = run_app(app, environment, settings, seconds=60 + 60 * rounds)
    starts = [moment for moment, line in lines if re.search(r"\[ROUND \d+/\d+\]", line)]
    ends = [moment for moment, line in lines if "Strategy execution finished" in line]
    if len(starts) != rounds or not ends:
        raise RuntimeError("\n".join(["Flower did not finish its rounds:", *(line for _, line in lines)]))
    return [after - before for before, after in pairwise([*starts, ends[0]])]


def own_rounds(place: Path, nodes: int, rounds: int) -> list[float]:
    """Seconds of each round of `ternfed server --local`."""
    out = place / "run"
    serve_locally(out, nodes, [f"federation.rounds={rounds}", "training.epochs=1"])
    lines = (out / "timing.jsonl").read_text(encoding="utf-8").splitlines()
    return [sum(json.loads(line)["seconds"].values()) for line in lines]


def table(rows: Iterable[Latency]) -> str:
    """The sides as a Markdown table."""
    return markdown(
        ("who", "seconds per round", "slowest", "first round"),
        [
            (row.who, *(f"{n:.2f}" for n in (statistics.median(row.seconds[1:]), max(row.seconds[1:]), row.seconds[0])))
            for row in rows
        ],
    )

"""What a round costs beside training: ternfed's server and clients against Flower as it comes, in one run.

    python benchmarks/round_latency.py            # five nodes on this machine, a few rounds each

Both sides train small perceptrons on the digits (not the same one), well under a second a client. Flower as it comes
is `examples/flower` under `flower-superlink`, `flower-supernode` and `flwr run`, all with their defaults. Medians over
all rounds but the first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "flower"))

from stock import run_app, stock_flower  # noqa: E402


def stock_rounds(place: Path, nodes: int, rounds: int) -> list[float]:
    """Seconds of each round under Flower as it comes, from the lines that it shows."""
    app = place / "ternary-digits"
    shutil.copytree(HERE.parent / "examples" / "flower", app, ignore=shutil.ignore_patterns("__pycache__"))
    with stock_flower(place, nodes) as environment:
        settings = f"num-server-rounds={rounds} min-nodes={nodes} local-epochs=1"
        lines = run_app(app, environment, settings, seconds=60 + 60 * rounds)
    starts = [moment for moment, line in lines if re.search(r"\[ROUND \d+/\d+\]", line)]
    ends = [moment for moment, line in lines if re.search(r"down \d+ bytes", line)]
    if len(starts) != rounds or not ends:
        raise SystemExit("\n".join(line for _, line in lines))
    marks = [*starts, ends[0]]
    return [after - before for before, after in pairwise(marks)]


def own_rounds(place: Path, nodes: int, rounds: int) -> list[float]:
    """Seconds of each round of `ternfed server --local`."""
    out = place / "run"
    settings = [f"federation.rounds={rounds}", "federation.participation=1.0", "training.epochs=1"]
    command = [sys.executable, "-m", "ternfed", "server", "--local", str(nodes), "--out", str(out)]
    command += [word for setting in settings for word in ("--set", setting)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = (out / "timing.jsonl").read_text(encoding="utf-8").splitlines()
    return [sum(json.loads(line)["seconds"].values()) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| who | s a round | slowest | first round |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="ternfed-latency-") as place:
        for name, measure in (("Flower as it comes", stock_rounds), ("`ternfed server`", own_rounds)):
            folder = Path(place) / measure.__name__
            folder.mkdir()
            seconds = measure(folder, options.nodes, options.rounds)
            later = seconds[1:]
            print(f"| {name} | {statistics.median(later):.2f} | {max(later):.2f} | {seconds[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()

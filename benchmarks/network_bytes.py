"""Bytes of a round for each client, payload and on the socket: FedAvg against T-FedAvg over TLS on this machine.

    python benchmarks/network_bytes.py --set data.dataset=mnist          # the MLP 784-30-20-10

Medians over the clients of all rounds but the first, which also fetches the run's configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

KEYS = ("payload_down", "payload_up", "socket_down", "socket_up")


def measure(place: Path, algorithm: str, clients: int, rounds: int, settings: list[str]) -> dict[str, float]:
    out = place / algorithm
    given = ["federation.participation=1.0", f"federation.rounds={rounds}", *settings, f"algorithm.name={algorithm}"]
    command = [sys.executable, "-m", "ternfed", "server", "--local", str(clients), "--out", str(out)]
    command += [word for setting in given for word in ("--set", setting)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = (out / "network" / "bytes.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    own = [client for line in lines for client in json.loads(line)["clients"].values()]
    return {key: statistics.median(client[key] for client in own) for key in KEYS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], dest="settings", help="key=value of the experiment")
    options = parser.parse_args()
    print("| algorithm | payload down | payload up | socket down | socket up |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="ternfed-bytes-") as place:
        for algorithm in ("fedavg", "tfedavg"):
            row = measure(Path(place), algorithm, options.clients, options.rounds, options.settings)
            print(f"| {algorithm} | " + " | ".join(f"{row[key]:,.0f}" for key in KEYS) + " |", flush=True)


if __name__ == "__main__":
    main()

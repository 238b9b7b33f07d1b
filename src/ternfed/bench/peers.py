"""Other simulators on the same round as `ternfed bench rounds`, each in a virtual environment of its own.

An environment is made once, in a folder of the user's cache, from pinned packages. One that does not install is said in
a sentence; it stops nobody else.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ternfed.bench import rounds
from ternfed.bench.tables import markdown


@dataclass(frozen=True)
class PeerSpeed:
    """What came of one peer."""

    name: str
    ratio: float | None
    """Its seconds for a round by ours; None: it was not measured."""
    said: str


def folder() -> Path:
    """Where the environments lie."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ternfed" / "peers"


def run(repeats: int = 5, tell: Callable[[str], None] = lambda text: None) -> Iterator[PeerSpeed]:
    """Every peer beside our own FedAvg."""
    for peer in PEERS:
        tell(f"{peer.name}: preparing its environment")
        python, problem = environment(folder() / peer.folder, peer.needs)
        if problem:
            yield PeerSpeed(peer.name, None, f"does not install here: {problem}")
            continue
        tell(f"{peer.name}: measuring")
        try:
            yield peer.measure(peer.name, python, repeats)
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            yield PeerSpeed(peer.name, None, f"does not run here: {error}")


def _in_turns(script: str) -> Callable[[str, Path, int], PeerSpeed]:
    """One that plays a round when it is asked to: in turns with our own, on one core."""

    def measure(name: str, python: Path, repeats: int) -> PeerSpeed:
        found = {row.who: row for row in rounds.run(repeats, scripts={name: (str(python), script)})}
        return PeerSpeed(name, found[name].against_fedavg, f"{found[name].seconds:.3f} s per round")

    return measure


def _flower(name: str, python: Path, repeats: int, limit: float = 600.0) -> PeerSpeed:
    """Its rounds one after another on all cores, as Ray wants it, then ours on one."""
    sizes = (rounds.CLIENTS, rounds.SAMPLES, rounds.EPOCHS, rounds.BATCH, rounds.RATE, repeats)
    command = [str(python), str(Path(__file__).with_name("flower_round.py")), *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, cwd=python.parent)
    times = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if len(times) < repeats:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1][:200])
    own = {row.who: row for row in rounds.run(repeats)}[rounds.FEDAVG]
    seconds = statistics.median(times)
    return PeerSpeed(name, seconds / own.seconds, f"{seconds:.3f} s per round, on all cores")


@dataclass(frozen=True)
class Peer:
    """Another simulator."""

    name: str
    folder: str
    """Of its environment."""
    needs: tuple[str, ...]
    """What is installed there."""
    measure: Callable[[str, Path, int], PeerSpeed]
    """(its name, the environment's Python, how often) ─▶ what came of it."""


FEDJAX = (
    "fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12", "optax==0.1.9", "chex==0.1.85",
    "scipy<1.13", "numpy<2",
)  # fmt: skip
PFL = ("pfl==0.6.0", "torch>=2.9,<2.14")
FLOWER = ("flwr[simulation]==1.41.0", "torch>=2.9,<2.14")
PEERS = (
    Peer("FedJAX", "fedjax", FEDJAX, _in_turns("fedjax_round.py")),
    Peer("pfl", "pfl", PFL, _in_turns("pfl_round.py")),
    Peer("Flower's simulation", "flowers-simulation", FLOWER, _flower),
)
"""`bench/fedjax_round.py`, `bench/pfl_round.py` and `bench/flower_round.py` play their rounds."""


def environment(place: Path, needs: tuple[str, ...], limit: float = 900.0) -> tuple[Path, str]:
    """The Python of an environment that has these packages, made if need be; and what went wrong, else nothing."""
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    noted = place / "installed.txt"
    wanted = "\n".join((*needs, sys.version))
    if noted.is_file() and noted.read_text(encoding="utf-8") == wanted:
        return python, ""
    try:
        venv.create(place, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return python, str(error).splitlines()[0]
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        return python, lines[-1].removeprefix("ERROR: ")
    noted.write_text(wanted, encoding="utf-8")
    return python, ""


def table(rows: list[PeerSpeed]) -> str:
    """The rows as a Markdown table."""
    return markdown(
        ("peer", "× the time of our FedAvg", ""),
        [(row.name, "–" if row.ratio is None else f"{row.ratio:.2f}", row.said) for row in rows],
    )

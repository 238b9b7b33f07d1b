"""What a client must not forget, on its own disk: its algorithm's memory, and what the broadcast it holds lends.

One file per round, the last two of a run: when a server that was killed goes on from its checkpoint and plays a round
again, the client does so too, from where it stood before that round.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ternfed.algorithms.algorithm import Weights
from ternfed.files import load_tensors, write_tensors


class Kept(NamedTuple):
    """A client after a round."""

    round: int
    memory: Weights
    """What its algorithm remembers, as named tensors."""
    lent: dict[str, Tensor] | None
    """The tensors of that round's broadcast that a later one can be coded given, such as its trits."""


@dataclass(frozen=True)
class Store:
    """A folder that one client writes to."""

    folder: Path

    def load(self, run: str, before: int) -> Kept | None:
        """The client as it stood before a round of a run; None where nothing is known. A damaged file is none."""
        rounds = sorted((number for number in self._files(run) if number < before), reverse=True)
        return next((kept for number in rounds if (kept := self.after(run, number)) is not None), None)

    def after(self, run: str, round: int) -> Kept | None:
        """The client as it stood after a round; None where that is not kept."""
        try:
            return _read(self._files(run)[round])
        except (OSError, ValueError, KeyError):
            return None

    def save(self, run: str, kept: Kept, start: int) -> None:
        """Keep the client after a round, and as it stood after round `start`, which it began from; nothing else."""
        place = self._place(run)
        place.mkdir(parents=True, exist_ok=True)
        tensors = {f"memory/{name}": tensor for name, tensor in kept.memory.items()}
        tensors |= {f"lent/{name}": tensor for name, tensor in (kept.lent or {}).items()}
        facts = {"round": kept.round, "lent": kept.lent is not None}
        write_tensors(place / f"{kept.round}.safetensors", tensors, facts)
        for number, file in self._files(run).items():
            if number not in (kept.round, start):
                file.unlink()
        for other in self.folder.iterdir():
            if other.is_dir() and other.name != run:
                shutil.rmtree(other, ignore_errors=True)

    def _place(self, run: str) -> Path:
        """A run's folder. Its name comes from a server: one that is more than a name is refused."""
        if not re.fullmatch(r"\w+", run, re.ASCII):
            raise ValueError(f"{run!r} names no run")
        return self.folder / run

    def _files(self, run: str) -> dict[int, Path]:
        place = self._place(run)
        return {int(file.stem): file for file in place.glob("*.safetensors") if file.stem.isdigit()}


def _read(file: Path) -> Kept:
    tensors, facts = load_tensors(file)
    memory, lent = (
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in ("memory/", "lent/")
    )
    return Kept(facts["round"], memory, lent if facts["lent"] else None)

"""What a round costs: bytes of what was really encoded, and seconds by phase."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ternfed.algorithms.algorithm import Algorithm
from ternfed.round.exchange import Broadcast, layer_entropies, trits_in
from ternfed.wire import Message


@dataclass
class Traffic:
    """Bytes of a round: lengths of what was encoded."""

    down: int = 0
    up: int = 0
    downloads: int = 0
    uploads: int = 0
    trit_bytes: int = 0
    """The part of `up` that is trits."""
    trits: int = 0
    """So many of them."""
    entropies: dict[str, float] = field(default_factory=dict)
    """Of each ternary layer, summed over the uploads: bits per weight."""

    def add_download(self, data: bytes) -> None:
        self.down += len(data)
        self.downloads += 1

    def add_upload(self, data: bytes, message: Message, algorithm: Algorithm, broadcast: Broadcast) -> None:
        size, trits = trits_in(algorithm, data)
        self.up += len(data)
        self.uploads += 1
        self.trit_bytes += size
        self.trits += trits
        for name, bits in layer_entropies(message, broadcast).items():
            self.entropies[name] = self.entropies.get(name, 0.0) + bits

    def layer_bits(self) -> dict[str, float] | None:
        """Bits per weight of each ternary layer, the mean over the uploads."""
        # Rounded, because a sum in another order of arrival differs in its last bits.
        return {name: round(bits / self.uploads, 9) for name, bits in self.entropies.items()} or None

    def bits_per_weight(self, parameters: int) -> float | None:
        """Bits of the trit sections per ternary weight; of whole messages per parameter where nothing is ternary."""
        if self.trits:
            return 8 * self.trit_bytes / self.trits
        return 8 * self.up / (parameters * self.uploads) if self.uploads else None


@dataclass
class Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self.last
        self.last = now

"""Every random draw of a run, from one seed by (purpose, round, client).

So a run repeats exactly, and no draw depends on the engine, on batching, or on the order in which clients are served.
All draws are made on the CPU: the same on every device.
"""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor


def seed_of(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """63 bits from BLAKE2b: neighbouring seeds, rounds and clients share nothing."""
    digest = blake2b(f"{seed}/{purpose}/{round}/{client}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """A fresh generator for one purpose."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, round, client))


def participants(seed: int, round: int, clients: int, share: float) -> list[int]:
    """The λN clients of a round, in ascending order."""
    chosen = torch.randperm(clients, generator=generator(seed, "participants", round))[: asked(clients, share)]
    return sorted(chosen.tolist())


def asked(clients: int, share: float) -> int:
    """λN: how many clients a round asks, one at least."""
    return max(1, round_half_up(clients * share))


def round_half_up(number: float) -> int:
    return int(number + 0.5)


def orders(indices: Tensor, epochs: int, source: torch.Generator) -> Tensor:
    """A client's samples in a new order for each local epoch: (epochs, n) of the given indices."""
    return torch.stack([indices[torch.randperm(len(indices), generator=source)] for _ in range(epochs)])

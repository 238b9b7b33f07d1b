"""Which of several ranks this process is, which device it has, and which clients go to which rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One of several ranks."""

    rank: int
    count: int
    local: int
    """Among those of its own machine."""
    store: str | None = None
    """The file through which ranks of one machine find each other; None: by torchrun's address and port."""


STORE = "TERNFED_RANKS"
"""The variable that names that file."""


def place_of(variables: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place by torchrun's variables; None where it is alone."""
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return None
    store = variables.get(STORE)
    try:
        rank, count, local = (int(variables.get(key, "0")) for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except ValueError as error:
        raise ValueError("RANK, WORLD_SIZE and LOCAL_RANK: whole numbers are needed, as torchrun sets them") from error
    if count == 1:
        return None
    if not 0 <= rank < count:
        raise ValueError(f"RANK = {rank}: 0 to {count - 1} is needed, for WORLD_SIZE is {count}")
    if missing := [key for key in ("MASTER_ADDR", "MASTER_PORT") if store is None and key not in variables]:
        raise ValueError(f"{missing[0]}: is needed beside RANK and WORLD_SIZE; start the ranks by torchrun")
    return Place(rank, count, local, store)


def device_of(device: str, local: int, gpus: int) -> str:
    """The device of a rank: each has a GPU of its own as far as there are enough, unless one is named."""
    return f"cuda:{local % gpus}" if device == "cuda" and gpus > 1 else device


def shares(clients: Sequence[int], samples: Sequence[int], ranks: int, pinned: Mapping[int, int]) -> list[list[int]]:
    """The clients of each rank: those that are pinned to one there, the others longest first, each to the least busy.

    `samples` is by client. Each share is in the order of `clients`.
    """
    load, at = [0] * ranks, {client: pinned[client] for client in clients if client in pinned}
    for client, rank in at.items():
        load[rank] += samples[client]
    for client in sorted((one for one in clients if one not in at), key=lambda one: (-samples[one], one)):
        at[client] = load.index(min(load))
        load[at[client]] += samples[client]
    return [[client for client in clients if at[client] == rank] for rank in range(ranks)]

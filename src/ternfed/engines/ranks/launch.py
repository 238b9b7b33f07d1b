"""Ranks on one machine: processes that this one starts, of which it is rank 0."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.distributed import Store  # type: ignore[attr-defined]

from ternfed.engines.ranks.link import SILENCE, Link, RankLost, store_of
from ternfed.engines.ranks.place import STORE, Place

POLL = 0.05


@contextmanager
def started(count: int, arguments: Sequence[str]) -> Iterator[Link]:
    """The ranks 1, 2, … of so many while the block lasts, each of them `ternfed` with these arguments, one thread."""
    with TemporaryDirectory(prefix="ternfed-ranks-") as folder:
        place = Place(0, count, 0, str(Path(folder) / "store"))
        children = [_start(rank, place, arguments) for rank in range(1, count)]
        try:
            link = joined(place, children)
            with closing(link):
                yield link
        finally:
            for child in children:
                _end(child)


@contextmanager
def closing(link: Link) -> Iterator[None]:
    """The other ranks end with the block, and hear why where that is an error."""
    try:
        yield
    except BaseException as error:
        link.close(str(error.__cause__ or error) or "interrupted")  # what a command line made of it has a cause
        raise
    link.close()


def joined(place: Place, children: Sequence[subprocess.Popen[bytes]] = ()) -> Link:
    """This process as one of several ranks, once all of them are there; a child that ended never comes."""
    store = store_of(place)
    store.set(f"here/{place.rank}", "")
    if children:
        _wait_for(store, children)
    return Link(place, store)


def _start(rank: int, place: Place, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    own = {"RANK": str(rank), "WORLD_SIZE": str(place.count), "LOCAL_RANK": str(rank), STORE: str(place.store)}
    variables = {"OMP_NUM_THREADS": "1", **os.environ, **own}
    command = [sys.executable, "-m", "ternfed", *arguments]
    nothing = subprocess.DEVNULL
    # In a group of their own: Ctrl-C is for rank 0, which ends them.
    return subprocess.Popen(command, env=variables, stdin=nothing, stdout=nothing, process_group=0)


def _wait_for(store: Store, children: Sequence[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + SILENCE
    while not store.check([f"here/{rank}" for rank in range(1, len(children) + 1)]):
        for rank, child in enumerate(children, start=1):
            if child.poll() is not None:
                raise RankLost(f"rank {rank} ended before it began, with exit code {child.returncode}")
        if time.monotonic() > until:
            raise RankLost(f"not all of the {len(children) + 1} ranks came within {SILENCE:g} s")
        time.sleep(POLL)


def _end(child: subprocess.Popen[bytes]) -> None:
    """They end by themselves when rank 0 has said its last word; one that cannot is not waited for."""
    try:
        child.wait(2.0)
    except subprocess.TimeoutExpired:
        child.terminate()
        try:
            child.wait(5.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

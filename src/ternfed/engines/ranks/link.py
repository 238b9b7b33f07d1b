"""Messages between rank 0 and the others: facts and bytes, over gloo.

gloo on every device: what travels was encoded by the CPU and lies there, and a GPU's nccl would only copy it to the GPU
and back. A thread for each rank at the other end listens all the time, so that the end of a connection is noticed at
once, whatever this process is doing. A rank that falls silent without closing it, a machine without power say, is
noticed after `SILENCE`: all send a sign of life every few seconds.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from ternfed.engines.ranks.place import Place
from ternfed.files import as_line

SILENCE = 300.0
"""Seconds after which a rank that says nothing is given up, and in which all must have come."""
BEAT = 20.0
"""Seconds between two signs of life."""
CLOSING = 10.0
"""Seconds that the others have to end with rank 0."""

ALIVE, END, BYE = "alive", "end", "bye"
"""A sign of life; rank 0's last word; the others' last word."""


class RankLost(RuntimeError):
    """Another rank ended, or says nothing any more: one sentence."""


class Ended(Exception):
    """Rank 0 wants no more; the text is why, empty where all is well."""


class Received(NamedTuple):
    """A message of another rank."""

    sender: int
    kind: str
    facts: dict[str, Any]
    body: bytes


class Link:
    """This rank's connections: from rank 0 to all others, from every other one to rank 0."""

    def __init__(self, place: Place, store: Store) -> None:
        """Waits until all ranks are there; RankLost where some do not come."""
        self.rank, self.count = place.rank, place.count
        self._peers = range(1, place.count) if place.rank == 0 else (0,)
        self._locks = {peer: threading.Lock() for peer in self._peers}
        self._inbox: SimpleQueue[Received | Exception] = SimpleQueue()
        self._over: Exception | None = None
        self._working, self._turn = False, threading.Lock()
        self._closed = threading.Event()
        wait = timedelta(seconds=SILENCE)
        try:
            dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.count, timeout=wait)
        except RuntimeError as error:
            raise RankLost(f"not all of the {place.count} ranks came ({_first_line(error)})") from error
        self._listeners = [threading.Thread(target=self._listen, args=(peer,), daemon=True) for peer in self._peers]
        for thread in (*self._listeners, threading.Thread(target=self._beat, daemon=True)):
            thread.start()

    def send(self, to: int, kind: str, facts: Mapping[str, Any] | None = None, body: bytes = b"") -> None:
        """RankLost where the other one is no more."""
        data = as_line({"kind": kind, **(facts or {})}) + body
        buffer = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        try:
            with self._locks[to]:
                dist.send(torch.tensor([len(data)]), to)
                dist.send(buffer, to)
        except RuntimeError as error:
            raise self._over or _lost(to) from error

    def receive(self) -> Received:
        """The next message; RankLost where somebody is no more, Ended where rank 0 wants no more."""
        message = self._inbox.get()
        if isinstance(message, Exception):
            raise message
        return message

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work that is broken off at once where somebody is lost, or rank 0 wants no more."""
        with self._turn:
            if self._over is not None:
                raise self._over
            self._working = True
        try:
            yield
        except KeyboardInterrupt:
            if self._over is None:
                raise
            raise self._over from None
        finally:
            with self._turn:
                self._working = False

    def close(self, why: str = "") -> None:
        """The last word, and the end of all connections."""
        self._closed.set()
        for peer in self._peers:
            with contextlib.suppress(RankLost):
                self.send(peer, END if self.rank == 0 else BYE, {"why": why})
        for thread in self._listeners:
            thread.join(CLOSING)
        if not any(thread.is_alive() for thread in self._listeners):
            dist.destroy_process_group()

    def _listen(self, peer: int) -> None:
        try:
            while True:
                message = _receive(peer)
                if message.kind == BYE:
                    return
                if message.kind == END:
                    self._stop(Ended(str(message.facts.get("why", ""))))
                    return
                if message.kind != ALIVE:
                    self._inbox.put(message)
        except Exception:  # the connection's end, or what is no message: either way, nothing more comes
            if not self._closed.is_set():
                self._stop(_lost(peer))

    def _stop(self, reason: Exception) -> None:
        with self._turn:
            self._over = self._over or reason
            self._inbox.put(self._over)
            if self._working:
                _thread.interrupt_main()

    def _beat(self) -> None:
        while not self._closed.wait(BEAT):
            for peer in self._peers:
                with contextlib.suppress(RankLost):  # the listener says so
                    self.send(peer, ALIVE)


def store_of(place: Place) -> Store:
    """Where ranks find each other."""
    if place.store is not None:
        # Nobody outside this machine can reach a file, nor the loopback.
        loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
        if loopback is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        return FileStore(place.store, place.count)
    try:
        wait = timedelta(seconds=SILENCE)
        found, _, _ = next(rendezvous("env://", place.rank, place.count, timeout=wait))
    except (RuntimeError, ValueError, OSError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RankLost(f"rank {place.rank}: cannot meet the others at {where} ({_first_line(error)})") from error
    return PrefixStore("ternfed", found)


def _receive(peer: int) -> Received:
    size = torch.empty(1, dtype=torch.int64)
    dist.recv(size, peer)
    buffer = torch.empty(int(size), dtype=torch.uint8)
    dist.recv(buffer, peer)
    line, _, body = buffer.numpy().tobytes().partition(b"\n")
    facts = json.loads(line)
    return Received(peer, facts.pop("kind"), facts, body)


def _lost(peer: int) -> RankLost:
    return RankLost(f"rank {peer} was lost; the same command goes on by --resume")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]

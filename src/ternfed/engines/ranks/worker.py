"""The other ranks' side: they train what rank 0 asks for until it wants no more.

A worker reads no experiment, no run folder and writes no file: rank 0 sends it the experiment. What it keeps between
rounds are its data, its trainer with what lies on the GPU, and what the clients that it trains remember.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ternfed.engines.ranks.link import Ended, Link, RankLost, Received
from ternfed.engines.ranks.team import (
    ANSWER,
    EXPERIMENT,
    FAILED,
    MEMORY,
    READY,
    identity,
    memory_bytes,
    memory_from,
)
from ternfed.experiment.experiment import Experiment
from ternfed.round.crew import train_here
from ternfed.round.exchange import receive
from ternfed.round.federation import Federation, open_federation
from ternfed.round.traffic import Clock


def serve(link: Link, device: str, data: Path | None = None) -> str:
    """Train for rank 0 until its last word, which is returned: empty, or why it ended. `data` holds the data sets.

    RankLost where rank 0 ends without one. Whatever else goes wrong here is told to rank 0, and raised.
    """
    worker: _Worker | None = None
    try:
        while True:
            message = link.receive()
            with link.working():
                if message.kind == EXPERIMENT:
                    worker = None  # its data and its trainer make room
                    experiment = Experiment.from_table(message.facts["experiment"])
                    worker = _Worker(link, open_federation(experiment, experiment.load_data(data), device))
                    link.send(0, READY, identity(worker.federation))
                elif worker is not None:
                    worker.do(message)
    except Ended as ended:
        return str(ended)
    except RankLost:
        raise
    except BaseException as error:
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        link.send(0, FAILED, {"why": text})
        raise


class _Worker:
    """The work for one experiment."""

    def __init__(self, link: Link, federation: Federation) -> None:
        self._link, self.federation = link, federation
        self._memories: dict[int, Any] = {}

    def do(self, message: Received) -> None:
        algorithm = self.federation.algorithm
        if message.kind == MEMORY:
            self._memories[message.facts["client"]] = memory_from(algorithm.client_memory, message.body)
            return
        number, clients = message.facts["round"], message.facts["clients"]
        broadcast = receive(algorithm, message.body, None)
        for answer in train_here(self.federation, number, broadcast, clients, self._memories, Clock()):
            memory = b""
            if answer.diverged is None:
                self._memories[answer.client] = answer.memory
                memory = memory_bytes(answer.memory)
            facts = {"client": answer.client, "diverged": answer.diverged, "upload": len(answer.data)}
            self._link.send(0, ANSWER, facts, answer.data + memory)

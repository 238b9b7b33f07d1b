"""The memory of one round over a network with a large model, step by step: peaks as copies of the model.

Server and client are a process each, with nothing but files between them; training is faked by random moves. A step's
peak is VmHWM, which Linux forgets on request, less what was resident before the model was made.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ternfed.bench.measure import resident
from ternfed.bench.tables import markdown
from ternfed.data.values import DataSet
from ternfed.engines.flower import client_round
from ternfed.engines.flower.memory import Store
from ternfed.engines.flower.uploads import accept
from ternfed.experiment.experiment import Experiment
from ternfed.round import federation
from ternfed.round.acceptance import Bounds
from ternfed.round.exchange import Broadcasts
from ternfed.round.heap import give_memory_back
from ternfed.round.intake import Intake
from ternfed.round.state import pack
from ternfed.round.traffic import Clock, Traffic
from ternfed.runs.folder import RunFolder
from ternfed.training.choose import Trainer
from ternfed.training.work import Trained

WIDTH = 2000
DOWN, UP = "broadcast", "upload"


@dataclass(frozen=True)
class Step:
    """One step of a side."""

    side: str
    name: str
    peak: float
    """In models, since the step before."""
    left: float
    """In models, when it was over."""


def measure(weights: int, limit: float = 3600.0) -> Iterator[Step]:
    """All steps of one round, the server's and the client's as they come."""
    if not sys.platform.startswith("linux"):
        raise ValueError("peaks of memory are read from /proc, which Linux has")
    with tempfile.TemporaryDirectory() as place:
        yield from _steps(_run("server", weights, Path(place), limit))


def table(steps: Iterable[Step]) -> str:
    """As Markdown."""
    rows = [(step.side, step.name, f"{step.peak:.1f}", f"{step.left:.1f}") for step in steps]
    return markdown(("side", "step", "peak in models", "left in models"), rows)


def _run(side: str, weights: int, place: Path, limit: float) -> str:
    command = [sys.executable, "-m", "ternfed.bench.large_round", side, str(weights), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode:
        raise RuntimeError(f"the {side} of a round with {weights:,} weights failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def _steps(lines: str) -> Iterator[Step]:
    return (Step(**json.loads(line)) for line in lines.splitlines())


@dataclass
class _Watch:
    """Tells the steps of this process."""

    side: str
    model: float
    base: float

    @staticmethod
    def of(side: str, model: int) -> _Watch:
        watch = _Watch(side, model, resident("VmRSS"))
        watch.forget()
        return watch

    def forget(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")

    def tell(self, name: str) -> None:
        peak, left = ((resident(which) - self.base) / self.model for which in ("VmHWM", "VmRSS"))
        sys.stdout.write(json.dumps(asdict(Step(self.side, name, peak, left))) + "\n")
        sys.stdout.flush()
        self.forget()


def _experiment(weights: int) -> Experiment:
    """T-FedAvg with its defaults, layers of `WIDTH` × `WIDTH`, two clients on the digits."""
    width = min(WIDTH, round(weights**0.5))
    layers = max(1, round(weights / width**2))
    hidden = {"name": "mlp", "hidden": [width] * (layers + 1)}
    return Experiment.from_table({"federation": {"clients": 2}, "model": hidden, "training": {"epochs": 1}})


def _loaded() -> DataSet:
    """The digits, after a smaller model's broadcast: what is loaded and compiled once is there."""
    experiment = _experiment(1_000_000)
    data = experiment.load_data()
    smaller = federation.open_federation(experiment, data)
    Broadcasts(smaller.algorithm, smaller.open().server, 1).given(None)
    return data


def _serve(weights: int, place: Path) -> None:
    experiment, data = _experiment(weights), _loaded()
    watch = _Watch.of("server", 4 * weights)
    made = federation.open_federation(experiment, data)
    state = made.open()
    federation.let_go(made.network, made.algorithm)
    watch.tell("model made, let go")
    broadcasts = Broadcasts(made.algorithm, state.server, 1)
    (place / DOWN).write_bytes(broadcasts.given(None).data)
    watch.tell("broadcast encoded")
    sys.stdout.write(_run("client", weights, place, 3600.0))
    data_up, broadcast = (place / UP).read_bytes(), broadcasts.any()
    arrived = Intake.of(made.algorithm, broadcast, made.registered, 2)
    came = accept(made.algorithm, made.network, data_up, broadcast, made.site(0).client(1), 1, Bounds())
    watch.tell("upload decoded")
    arrived.add(0, came.meaning)
    traffic = Traffic()
    traffic.add_upload(data_up, came.message, made.algorithm, broadcast)
    del came
    watch.tell("upload added to the sum")
    uploads = arrived.finish()
    del arrived
    watch.tell("mean made")
    after = federation.RoundOutcome(broadcasts, (0,))
    state, outcome = federation.conclude(made, state, uploads, traffic, Clock(), after)
    watch.tell("next model made and judged")
    del uploads, after, broadcasts, broadcast
    folder = RunFolder.create(place / "run", experiment)
    folder.append(outcome)
    folder.save_checkpoint(outcome, *pack(state, made.network.digest), is_best=True)
    watch.tell("checkpoint written")


def _answer(weights: int, place: Path) -> None:
    experiment, data = _experiment(weights), _loaded()
    watch = _Watch.of("client", 4 * weights)
    site = client_round.open_site(experiment, client_round.ClientSetup(0, 2), data)
    watch.tell("model made, let go")
    insides = vars(federation)
    encode = insides["reply_each"]

    def train(works: Any) -> Iterator[Trained]:
        watch.tell("received, ready to train")
        source = torch.Generator().manual_seed(1)
        for work in works:
            own = work.local.weights
            moved = {n: t + 0.01 * t.abs().mean() * torch.randn(t.shape, generator=source) for n, t in own.items()}
            yield Trained(replace(work.local, weights=moved), 1.0)

    def reply(*arguments: Any) -> list[bytes]:
        watch.tell("trained, upload made")
        made: list[bytes] = encode(*arguments)
        watch.tell("upload encoded")
        return made

    vars(site)["trainer"] = Trainer("plain", train)
    insides["reply_each"] = reply
    received = (place / DOWN).read_bytes()
    store = Store(place / "client")
    (place / UP).write_bytes(client_round.work(site, store, "run", client_round.RoundRequest(1), received))
    watch.tell("between rounds")


def main(side: str, weights: int, place: Path) -> None:
    """One side of a round."""
    torch.set_num_threads(1)
    give_memory_back()
    (_serve if side == "server" else _answer)(weights, place)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

"""A client's half of a round with eight million weights, its training faked: peak memory by step, in models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ternfed.data.sets import load
from ternfed.engines.flower import client_round, processes
from ternfed.engines.flower.memory import Store
from ternfed.experiment.experiment import Experiment
from ternfed.round import federation
from ternfed.round.exchange import Broadcasts
from ternfed.training.choose import Trainer
from ternfed.training.work import Trained

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def megabytes(what: str) -> float:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(what)) / 1024


def main() -> None:
    torch.set_num_threads(1)
    processes.give_memory_back()
    table = {"federation": {"clients": 2}, "model": {"name": "mlp", "hidden": [1000] * 9}, "training": {"epochs": 1}}
    experiment, data = Experiment.from_table(table), load("digits")
    made = federation.open_federation(experiment, data)
    sent = Broadcasts(made.algorithm, made.open().server, 1).given(None).data
    model = made.fp32_bytes / 2**20
    del made
    site = client_round.open_site(experiment, client_round.ClientSetup(0, 2), data)
    base = megabytes("VmRSS")

    def train(works: Any) -> Any:
        tell("receive")
        for work in works:
            moved = {name: tensor + 0.001 * torch.randn(tensor.shape) for name, tensor in work.local.weights.items()}
            yield Trained(replace(work.local, weights=moved), 1.0)
        tell("train")

    def tell(what: str) -> None:
        print(what, (megabytes("VmHWM") - base) / model)
        FORGET.write_text("5")

    encode = federation.reply_each

    def reply(*arguments: Any) -> list[bytes]:
        tell("finish")
        return encode(*arguments)

    vars(site)["trainer"] = Trainer("plain", train)
    federation.reply_each = reply
    FORGET.write_text("5")
    with TemporaryDirectory() as place:
        client_round.work(site, Store(Path(place)), "run", client_round.RoundRequest(1), sent)


if __name__ == "__main__":
    main()

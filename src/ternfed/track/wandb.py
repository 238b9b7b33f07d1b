"""Weights & Biases: offline into RUN/wandb, to be sent by `wandb sync`; online where WANDB_MODE=online."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ternfed.track.tracker import Start, need


def check() -> Any:
    """The package; ImportError where it is absent."""
    return need("wandb", "wandb", WANDB_ERROR_REPORTING="false")


class Wandb:
    """One run."""

    def __init__(self, start: Start) -> None:
        wandb = check()
        self.identity = start.identity
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "ternfed",
            name=start.name,
            id=start.identity,
            resume="allow",
            dir=str(start.folder),
            config=dict(start.settings),
            mode=os.environ.get("WANDB_MODE") or "offline",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round)

    def close(self, result: Mapping[str, float], finished: bool) -> None:
        for key, value in result.items():
            self._run.summary[key] = value
        self._run.finish(exit_code=0 if finished else 1)


def open_tracker(start: Start) -> Wandb:
    return Wandb(start)

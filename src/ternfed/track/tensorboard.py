"""TensorBoard: event files in RUN/tensorboard. `tensorboard --logdir runs` shows them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from ternfed.track.tracker import Start, need


def check() -> Any:
    """The package; ImportError where it is absent."""
    return need("tensorboard", "tensorboard")


class TensorBoard:
    """One folder of event files."""

    def __init__(self, start: Start) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.identity = "tensorboard"  # the folder is the run's own
        if not start.resumed:
            shutil.rmtree(start.folder / "tensorboard", ignore_errors=True)  # of a run that was overwritten
        purge = {"purge_step": start.done + 1} if start.resumed else {}
        self._writer: Any = SummaryWriter(str(start.folder / "tensorboard"), **purge)
        if not start.resumed:
            lines = "\n".join(f"    {key} = {value}" for key, value in start.settings.items())
            self._writer.add_text("settings", lines)

    def log(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def close(self, result: Mapping[str, float], finished: bool) -> None:
        self._writer.close()


def open_tracker(start: Start) -> TensorBoard:
    check()
    return TensorBoard(start)

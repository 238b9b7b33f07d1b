"""Trackio: its own local database, which `trackio show` shows; to a Space of Hugging Face by TRACKIO_SPACE_ID."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ternfed.track.tracker import Start, need


def check() -> Any:
    """The package; ImportError where it is absent."""
    return need("trackio", "trackio", GRADIO_ANALYTICS_ENABLED="False")


class Trackio:
    """One run, known by its name."""

    def __init__(self, start: Start) -> None:
        trackio = check()
        self.identity = start.identity if start.resumed else f"{start.name}-{start.identity[:6]}"
        self._run: Any = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT") or "ternfed",
            name=self.identity,
            config=dict(start.settings),
            resume="allow",
            space_id=os.environ.get("TRACKIO_SPACE_ID") or None,
            embed=False,
        )

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=round)

    def close(self, result: Mapping[str, float], finished: bool) -> None:
        self._run.finish()


def open_tracker(start: Start) -> Trackio:
    return Trackio(start)

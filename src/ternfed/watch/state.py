"""Runs as the live page gets them: plain values, and after the first time only what is new."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ternfed.experiment.settings import Table
from ternfed.runs.records import Round
from ternfed.runs.several import DataSetOf, data_names, differing, names_of, setting
from ternfed.task import ACCURACY
from ternfed.watch.follow import Snapshot

COLUMNS = (
    "round", "score", "validation", "loss", "train_loss", "bytes_up", "bytes_down", "changed", "strategy", "seconds",
    "clients", "dropped",
)  # fmt: skip
"""Of a round's row."""
FACTS = (
    "algorithm.name", "data.dataset", "model.name", "federation.clients", "federation.participation", "training.epochs",
    "seed",
)  # fmt: skip
"""Settings that are always shown."""


@dataclass
class Told:
    """What one page has been told, so that the next message holds only what is new."""

    _heads: dict[str, str] = field(default_factory=dict)
    _rounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each run: its generation and so many of its rounds."""

    def news(self, snapshots: Sequence[Snapshot], now: float) -> dict[str, Any] | None:
        """What has changed since the last call; None where nothing has."""
        runs = []
        for place, head in enumerate(heads(snapshots)):
            snapshot, key = snapshots[place], str(snapshots[place].folder)
            generation, known = self._rounds.get(key, (0, 0))
            start = known if generation == snapshot.generation else 0
            text = json.dumps(head)
            if text == self._heads.get(key) and start == len(snapshot.rounds) and generation == snapshot.generation:
                continue
            self._heads[key], self._rounds[key] = text, (snapshot.generation, len(snapshot.rounds))
            left = _finite(snapshot.seconds_left(now))
            runs.append({**head, "left": left, "from": start, "rounds": [_row(r) for r in snapshot.rounds[start:]]})
        return {"now": now, "columns": COLUMNS, "runs": runs} if runs else None


def heads(snapshots: Sequence[Snapshot]) -> list[dict[str, Any]]:
    """Everything about each run but its rounds, the same text while nothing happens."""
    names = names_of([snapshot.folder for snapshot in snapshots])
    apart = differing([snapshot.settings for snapshot in snapshots]) if len(snapshots) > 1 else []
    sets = data_names([DataSetOf(str(setting(each.settings, "data.dataset")), each.data_name) for each in snapshots])
    found = []
    for place, (name, snapshot, data) in enumerate(zip(names, snapshots, sets, strict=True)):
        head, own = _head(place, name, snapshot, apart), {} if data is None else {"data set": data}
        head["facts"] |= own
        head["apart"] |= own if len(set(sets)) > 1 else {}
        found.append(head)
    return found


def _head(place: int, name: str, snapshot: Snapshot, apart: Sequence[str]) -> dict[str, Any]:
    measure = snapshot.rounds[-1].measure if snapshot.rounds else ACCURACY.measure
    live = snapshot.live
    up, down = snapshot.sent
    return {
        "id": place,
        "name": name,
        "experiment": str(snapshot.settings.get("name", "")),
        "state": snapshot.state,
        "total": snapshot.total,
        "facts": _facts(snapshot.settings, FACTS),
        "apart": _facts(snapshot.settings, [key for key in apart if key != "federation.rounds"]),
        "measure": {"name": measure.name, "percent": measure.percent, "higher": measure.higher_is_better},
        "up": up,
        "down": down,
        "up_fp32": sum(record.bytes_up_fp32 for record in snapshot.rounds),
        "down_fp32": sum(record.bytes_down_fp32 for record in snapshot.rounds),
        "phases": {name: round(seconds, 4) for name, seconds in snapshot.phases().items()},
        "live": None if live is None else {**asdict(live), "done": live.done, "asked": live.asked},
        "clients": {index: asdict(totals) for index, totals in sorted(snapshot.clients.items())},
        "warnings": list(snapshot.warnings),
    }


def _facts(settings: Table, keys: Sequence[str]) -> dict[str, str]:
    return {key: _text(value) for key in keys if (value := setting(settings, key)) is not None}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _row(record: Round) -> list[Any]:
    values = {**vars(record), "seconds": round(sum(record.seconds.values()), 4), "dropped": list(record.dropped)}
    return [_finite(values[column]) for column in COLUMNS]


def _finite(value: Any) -> Any:
    """A number that JSON has a word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value

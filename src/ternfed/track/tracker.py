"""What a tracker is: it is opened with a run's settings, gets each round, and is closed with the result."""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ternfed.experiment.settings import Table, flat, shown, suggestion
from ternfed.files import json_page, read_json, write_atomically
from ternfed.runs.records import Round

NAMES = ("tensorboard", "mlflow", "wandb", "trackio")
FILE = "track.json"
"""In the run folder: the name of the run in each tracker, so that a resumed run goes on there."""


@dataclass(frozen=True)
class Start:
    """What a tracker is opened with."""

    folder: Path
    name: str
    """Of the run."""
    settings: Mapping[str, Any]
    """Every setting, `section.key`."""
    identity: str
    """Of the run in the tracker: where `resumed`, the one it had; otherwise one that it may use."""
    resumed: bool
    done: int
    """Rounds that are over."""


class Tracker(Protocol):
    """One tracker with one run in it."""

    identity: str

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """The numbers of a round."""

    def close(self, result: Mapping[str, float], finished: bool) -> None:
        """The run is over, or was stopped."""


class Trackers:
    """Several of them."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._result: dict[str, float] = {}
        self._finished = False
        self.failed: list[str] = []
        """A sentence for each that could not go on. The run does: its folder has everything."""

    def log(self, record: Round) -> None:
        self._each(lambda tracker: tracker.log(record.round, numbers_of(record)))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Keep the numbers of a summary for the end."""
        self._result, self._finished = _numbers(summary), True

    def close(self) -> None:
        self._each(lambda tracker: tracker.close(self._result, self._finished))

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                with redirect_stdout(sys.stderr):  # standard output is for results
                    do(tracker)
            except Exception as error:  # another program's, and perhaps another machine's
                del self._trackers[name]
                self.failed.append(f"{name} hears nothing more of this run ({type(error).__name__}: {error})")


@contextmanager
def tracking(names: Sequence[str], folder: Path, table: Table, past: Sequence[Round] = ()) -> Iterator[Trackers]:
    """The trackers of these names while the block lasts; rounds of the past are logged where one knows nothing of them.

    ValueError for a name that there is not, ImportError with the extra to install where its package is absent.
    """
    check_names(names)
    known: Any = read_json(folder / FILE)
    identities: dict[str, str] = known if isinstance(known, dict) else {}
    with ExitStack() as stack:
        opened: dict[str, Tracker] = {}
        for name in dict.fromkeys(names):
            resumed = name in identities
            identity = identities.get(name) or secrets.token_hex(8)
            label = folder.name or str(table.get("name"))
            settings = {key: _simple(value) for key, value in flat(table)}
            start = Start(folder, label, settings, identity, resumed, len(past))
            tracker = _open(name, start)
            identities[name] = tracker.identity
            for record in past if not resumed else ():
                tracker.log(record.round, numbers_of(record))
            opened[name] = tracker
        every = Trackers(opened)
        stack.callback(every.close)
        if opened:
            write_atomically(folder / FILE, json_page(identities), lasting=False)
        yield every


def check_names(names: Sequence[str]) -> None:
    """ValueError for a tracker that there is not, ImportError for one whose package is absent."""
    for name in names:
        if name not in NAMES:
            near = suggestion(name, NAMES)
            raise ValueError(f"--track {shown(name)}: {', '.join(NAMES)} are allowed{near}")
        _module(name).check()


def _module(name: str) -> Any:
    return import_module(f"ternfed.track.{name}")


def _open(name: str, start: Start) -> Tracker:
    try:
        with redirect_stdout(sys.stderr):
            tracker: Tracker = _module(name).open_tracker(start)
    except Exception as error:  # another program's, and perhaps another machine's
        raise RuntimeError(f"--track {name}: cannot begin ({type(error).__name__}: {error})") from error
    return tracker


def need(package: str, extra: str, **quiet: str) -> Any:
    """A tracker's package; ImportError names the extra where it is absent.

    `quiet` are environment variables by which it keeps its usage statistics to itself, unless the user has set them.
    """
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(f"--track {extra} needs the extra [{extra}]: pip install 'ternfed[{extra}]'") from error


def numbers_of(record: Round) -> dict[str, float]:
    """What a tracker is told of a round: finite numbers by name."""
    values = {
        record.metric: record.score,
        "loss": record.loss,
        "train_loss": record.train_loss,
        f"validation_{record.metric}": record.validation,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "bits_per_weight_up": record.bits_per_weight_up,
        "flips": record.changed,
        "zeros": record.zeros,
        "strategy_one": None if record.strategy is None else float(record.strategy == "I"),
        "clients": record.clients,
        "dropped": len(record.dropped),
        "seconds": sum(record.seconds.values()),
        **{f"seconds_{phase}": seconds for phase, seconds in record.seconds.items()},
    }
    return _numbers(values)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
    return {key: float(value) for key, value in numbers.items() if math.isfinite(value)}


def _simple(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)

"""The run folder: the experiment, what came out of each round, what is needed to resume it (docs/experiments.md).

    config.toml         the experiment, every setting      state.safetensors   what the next round depends on
    environment.json    where it ran                       last.safetensors    the model after the last round
    rounds.jsonl        one record per round               best.safetensors    the model that judged best
    timing.jsonl        seconds of each round              summary.json        the result, when all rounds are done
    partition.json      whose data, and their own name     live.json           what it is doing, while it runs

Everything but timing, environment, summary and live.json is the same bytes for the same experiment, resumed or not. A
run may be killed at any moment: a file is replaced whole or not at all, `state.safetensors` is the one that counts, and
`resume` brings the others to its round.
"""

from __future__ import annotations

import os
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ternfed.experiment.experiment import Experiment
from ternfed.experiment.named import find_algorithm, with_later
from ternfed.experiment.settings import Table, shown
from ternfed.files import (
    append_line,
    json_page,
    load_tensors,
    read_json,
    shown_name,
    write_atomically,
    write_tensors,
)
from ternfed.named_function import check_code, code_in
from ternfed.runs.environment import environment
from ternfed.runs.partition import partition_line, read_partition
from ternfed.runs.records import Round, best_round, read_rounds, read_timing, summarise, with_seconds
from ternfed.runs.state_file import MODEL, once, under, whole

try:
    import fcntl
except ImportError:  # not a POSIX system: two processes in one folder go unnoticed
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "Resumed",
    "Round",
    "Run",
    "RunError",
    "RunFolder",
    "RunNotWritten",
    "Saved",
    "being_written",
    "best_round",
    "leaving_nothing",
    "read_run",
    "summarise",
]

FILES = (
    "config.toml", "environment.json", "rounds.jsonl", "timing.jsonl", "state.safetensors", "last.safetensors",
    "best.safetensors", "partition.json", "summary.json",
)  # fmt: skip

BESIDE = ("live.json", "track.json")
"""What may lie there while it runs, or because a tracker was asked for."""

LOOKS = 5
"""So often is a lock asked for again that another process may hold for the blink of an eye."""

BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a damaged file may raise."""


class RunError(ValueError):
    """A run folder that cannot be used; one sentence that says why and what to do."""


class RunNotWritten(RunError, OSError):
    """A run that cannot go on because a file cannot be written: a failure, not wrong input."""


class Saved(NamedTuple):
    """What `save_checkpoint` kept."""

    round: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class Resumed(NamedTuple):
    """A run that is resumed."""

    folder: RunFolder
    experiment: Experiment
    rounds: list[Round]
    """The records up to the saved round."""
    saved: Saved | None
    """None when no checkpoint was reached: the run starts with its first round."""


class Run(NamedTuple):
    """A run to look at, finished or not."""

    settings: Table
    """The plain table of the experiment, so that a user's own modules need not be importable."""
    environment: list[Table]
    rounds: list[Round]
    summary: Table | None
    partition: list[list[int]] | None
    """Samples of each class on each client, where the run noted them."""
    data_name: str | None
    """What the data set calls itself, where the run noted it."""


class RunFolder:
    """A folder that this process, and no other, writes a run to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)

    @staticmethod
    def create(
        path: str | Path,
        experiment: Experiment,
        *,
        overwrite: bool = False,
        checkpoint_bytes: int = 0,
        device: str = "cpu",
    ) -> RunFolder:
        """A new run: the folder made, seen to be writable and to have room; RunError where not.

        `checkpoint_bytes` is the size of one checkpoint. `overwrite` deletes the files of an earlier run, no others.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            here = [entry.name for entry in path.iterdir() if not entry.name.endswith(".part")]
            free = shutil.disk_usage(path).free
        except OSError as error:
            raise RunError(f"{path}: is no folder to write a run to ({error.strerror}); name another") from error
        if here and not overwrite:
            go_on = "resume its run by --resume, or " if "config.toml" in here else ""
            raise RunError(f"{path}: is not empty; {go_on}name another folder")
        # State, last and best, and one of them twice while it is replaced. A record is under a kilobyte.
        needed = 4 * checkpoint_bytes + 1024 * experiment.federation.rounds + 2**20
        if free < needed:
            raise RunError(
                f"{path}: its disk has {free / 1e6:.1f} MB free and the run needs about {needed / 1e6:.1f} MB; "
                "make room or name another folder"
            )
        folder = RunFolder(path)
        try:
            folder._clear()
            folder._replace("config.toml", experiment.to_toml().encode())
            folder._note_environment(device)
        except BaseException:
            folder.close()
            raise
        return folder

    @staticmethod
    def resume(path: str | Path, experiment: Experiment | None = None, *, device: str = "cpu") -> Resumed:
        """A run as it stood at its last checkpoint, whatever happened after that.

        An experiment that is given must be the folder's own. Only its number of rounds may be another, so that a
        finished run can be made longer; not with a cosine schedule, whose rates depend on that number.
        """
        path = Path(path)
        table = with_later(_read_config(path))  # it goes on as it began, whatever defaults have changed
        # Code that the folder names runs only where the experiment that was given names it too.
        check_code(table, () if experiment is None else [code[2] for code in code_in(experiment.to_table())], str(path))
        own = Experiment.from_table(table)
        folder = RunFolder(path)
        try:
            resumed = folder._resume(own, experiment or own)
            folder._note_environment(device)
        except BaseException:
            folder.close()
            raise
        return resumed

    def append(self, record: Round) -> None:
        """Add a round's record; on the disk when this returns."""
        self._append("rounds.jsonl", record.to_line())
        self._append("timing.jsonl", record.timing_line(), lasting=False)

    def save_checkpoint(
        self, record: Round, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, is_best: bool
    ) -> None:
        """Keep what the next round depends on: tensors by name (the model's under `MODEL`), and facts as JSON has them.

        The record is the round's own, appended before or after. The state is written first: the models follow from it.
        """
        # Tensors come back in their order too: whoever joins them end to end must not get another sequence.
        line, order = record.to_line().decode(), list(tensors)
        inside = {"facts": dict(facts), "is_best": is_best, "order": order, "record": line}
        self._replace_tensors("state.safetensors", once(tensors), inside)
        saved = Saved(record.round, dict(tensors), {})
        self._replace_tensors("last.safetensors", *_model(saved), lasting=False)  # else made again from the state
        if is_best:
            self._replace_tensors("best.safetensors", *_model(saved))

    def note_partition(self, class_counts: Sequence[Sequence[int]] | None, data_name: str) -> None:
        """Keep how many samples of each class each client holds, where that is known, and the data set's own name."""
        self._replace("partition.json", partition_line(class_counts, data_name))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The result, when all rounds are done."""
        self._replace("summary.json", json_page(summary))
        (self.path / "live.json").unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process have the folder. The end of this one, however it comes, does the same."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resume(self, own: Experiment, wanted: Experiment) -> Resumed:
        for name in FILES:
            (self.path / f"{name}.part").unlink(missing_ok=True)
        saved, record, is_best = self._read_state()
        done = 0 if saved is None else saved.round
        _check_same(self.path, own, wanted, done)
        timing, timing_size = read_timing(self.path / "timing.jsonl", done)
        rounds, rounds_size = read_rounds(self.path / "rounds.jsonl", done)
        if len(rounds) < done - 1:
            raise RunError(
                f"{self.path}: rounds.jsonl can be read up to round {len(rounds)} only, but the state is that of round "
                f"{done}; start the run again in another folder"
            )
        self._truncate("timing.jsonl", timing_size)
        self._truncate("rounds.jsonl", rounds_size)
        if record is not None and len(rounds) == done - 1:  # killed between checkpoint and record
            self._append("rounds.jsonl", record.to_line())
            rounds.append(record)
        if saved is not None:
            self._repair("last.safetensors", saved)
            if is_best:
                self._repair("best.safetensors", saved)
        if wanted != own:
            self._replace("config.toml", wanted.to_toml().encode())
        if done < wanted.federation.rounds:
            (self.path / "summary.json").unlink(missing_ok=True)
        return Resumed(self, wanted, with_seconds(rounds, timing), saved)

    def _read_state(self) -> tuple[Saved | None, Round | None, bool]:
        file = self.path / "state.safetensors"
        if not file.exists():
            return None, None, False
        try:
            tensors, inside = load_tensors(file)
            record = Round.from_line(inside["record"].encode())
            tensors = whole(tensors, inside["order"])
            ordered = {name: tensors[name] for name in inside["order"]}
            if not isinstance(inside["facts"], dict):
                raise ValueError("its facts are no table")
            return Saved(record.round, ordered, inside["facts"]), record, inside["is_best"] is True
        except BROKEN as error:
            why = shown_name(str(error))
            raise RunError(f"{file}: is damaged ({why}); start the run again in another folder") from error

    def _repair(self, name: str, saved: Saved) -> None:
        """A model that a kill, or a power cut, kept from following the state."""
        try:
            follows = load_tensors(self.path / name)[1]["round"] == saved.round
        except BROKEN:
            follows = False
        if not follows:
            self._replace_tensors(name, *_model(saved))

    def _note_environment(self, device: str) -> None:
        """One entry, and one more for each resumption in another environment than the one before."""
        known, now = _environments(self.path), environment(device)
        if not known or known[-1] != now:
            self._replace("environment.json", json_page([*known, now]))

    def _clear(self) -> None:
        try:
            for name in (*FILES, *BESIDE):
                (self.path / name).unlink(missing_ok=True)
                (self.path / f"{name}.part").unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be emptied ({error.strerror}); name another folder") from error

    def _replace(self, name: str, data: bytes, *, lasting: bool = True) -> None:
        """A file's new content, whole or not at all; `lasting`: a power cut leaves the old or the new one, too."""
        with self._writing(name):
            write_atomically(self.path / name, data, lasting=lasting)

    def _replace_tensors(
        self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, lasting: bool = True
    ) -> None:
        with self._writing(name):
            write_tensors(self.path / name, tensors, facts, lasting=lasting)

    def _append(self, name: str, line: bytes, *, lasting: bool = True) -> None:
        with self._writing(name):
            append_line(self.path / name, line, lasting=lasting)

    def _truncate(self, name: str, size: int) -> None:
        if (self.path / name).exists():
            os.truncate(self.path / name, size)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = f"{name} cannot be written ({error.strerror})"
            raise RunNotWritten(f"{self.path}: {why}; see to it and go on by --resume") from error


@contextmanager
def leaving_nothing(path: Path) -> Iterator[Callable[[], None]]:
    """A start that fails inside the block leaves no folder behind where there was none.

    What the block gets is to be called when the start has succeeded: from then on the folder stays.
    """
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    started = False

    def succeed() -> None:
        nonlocal started
        started = True

    try:
        yield succeed
    except BaseException:
        if not started and there != path:
            shutil.rmtree(path, ignore_errors=True)
            for parent in path.absolute().parents:  # those that were made for it
                if parent == there.absolute():
                    break
                with suppress(OSError):
                    parent.rmdir()
        raise


def fresh_folder(name: str, under: str | Path = "runs") -> Path:
    """A place for a new run that is not there yet: `name`, `name-2`, …"""
    folder, number = Path(under) / name, 2
    while folder.exists():
        folder, number = Path(under) / f"{name}-{number}", number + 1
    return folder


def read_run(path: str | Path) -> Run:
    """What a folder holds, whether its run is finished, running or killed. Changes nothing."""
    path = Path(path)
    summary = read_json(path / "summary.json")
    rounds, timing = read_rounds(path / "rounds.jsonl")[0], read_timing(path / "timing.jsonl")[0]
    partition = read_partition(path)
    return Run(
        settings=with_later(_read_config(path)),
        environment=_environments(path),
        rounds=with_seconds(rounds, timing),
        summary=summary if isinstance(summary, dict) else None,
        partition=partition.classes,
        data_name=partition.data_name,
    )


def _environments(path: Path) -> list[Table]:
    """Where a run ran, as far as the file says it."""
    found = read_json(path / "environment.json")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _check_same(path: Path, own: Experiment, wanted: Experiment, done: int) -> None:
    for key, old, new in own.differences(wanted):
        if key != "federation.rounds":
            raise RunError(f"{key} = {shown(new)}: the run in {path} has {shown(old)}, and is resumed only with that")
        about = find_algorithm(own.algorithm.name).about
        for what in (own.training.schedule.depends_on_rounds, about.depends_on_rounds(own.algorithm.settings)):
            if what is not None:
                raise RunError(f"{key} = {shown(new)}: the run in {path} has {shown(old)}, on which {what}")
        if new < done:
            raise RunError(f"{key} = {shown(new)}: the run in {path} is past that, after round {done}")


def _model(saved: Saved) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return under(saved.tensors, MODEL), {"round": saved.round}


def _read_config(path: Path) -> Table:
    try:
        return tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path}: holds no run, config.toml cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise RunError(f"{path}: config.toml is damaged ({error})") from error


def being_written(path: str | Path) -> bool:
    """Whether a process is writing a run to this folder now."""
    if fcntl is None:
        return False
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _lock(path: Path) -> int | None:
    """The folder, held open and locked; the system lets go of it when the process ends."""
    if fcntl is None:
        return None
    handle = os.open(path, os.O_RDONLY)
    for tries_left in range(LOOKS, -1, -1):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if tries_left:  # `being_written` may be looking at this moment
                time.sleep(0.02)
                continue
            os.close(handle)
            raise RunError(f"{path}: another process is writing its run there; wait for it or stop it") from error
    return handle

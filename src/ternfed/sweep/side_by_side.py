"""Trials in several processes of one thread each, told of through their folders."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import torch

from ternfed.experiment.settings import Table
from ternfed.runs.records import Round, read_rounds
from ternfed.sweep.trial import DataSets, Trial, run_trial

POLL_SECONDS = 0.5
MPS = "/tmp/nvidia-mps"
"""Where NVIDIA's Multi-Process Service listens, unless CUDA_MPS_PIPE_DIRECTORY says otherwise."""


def may_share(device: str) -> bool:
    """Whether several processes are fast on it: cores are theirs alone, a GPU is shared well only where MPS runs.

    Without MPS processes take turns: four of them took 35 times as long as one.
    """
    return device == "cpu" or (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or MPS) / "control").exists()


def run_side_by_side(
    trials: Sequence[Trial],
    jobs: int,
    data: Path | None = None,
    on_round: Callable[[Trial, Round], None] | None = None,
    *,
    keep: bool = False,
) -> Iterator[tuple[Trial, Table | Exception]]:
    """`run_trial` in so many processes; each trial as it ends, with its summary or what stopped it.

    Each process reads the data sets of the folder `data` for itself. Whoever stops listening ends the processes at
    once: a run may be killed at any moment, and is resumed later.
    """
    tell = on_round or (lambda trial, outcome: None)
    before = set(multiprocessing.active_children())
    seen = {trial.name: 0 for trial in trials}
    with ProcessPoolExecutor(jobs, mp_context=_start_method(), initializer=_be_a_job, initargs=(data,)) as pool:
        waiting: dict[Future[Table], Trial] = {}
        try:
            for trial in trials:
                waiting[pool.submit(_run, trial, keep)] = trial
            while waiting:
                with _interrupted_afterwards():
                    done, _ = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
                for trial in waiting.values():
                    # The folder is how one hears of another process's rounds.
                    rounds = read_rounds(trial.folder / "rounds.jsonl")[0]
                    for outcome in rounds[seen[trial.name] :]:
                        tell(trial, outcome)
                    seen[trial.name] = max(seen[trial.name], len(rounds))
                for future in done:
                    yield waiting.pop(future), _outcome(future)
        except BaseException:
            for future in waiting:
                future.cancel()
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()
            raise


@contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Ctrl-C is heard when the block ends: in the middle of it a future would stay locked, and its pool never end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # which hears no signals
        return
    heard: list[tuple[int, FrameType | None]] = []
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    ours = {each: handler for each, handler in before.items() if callable(handler)}
    for each in ours:
        signal.signal(each, lambda number, frame: heard.append((number, frame)))
    try:
        yield
    finally:
        for each, handler in ours.items():
            signal.signal(each, handler)
    for number, frame in heard[:1]:
        ours[signal.Signals(number)](number, frame)


def _start_method() -> BaseContext:
    """Not a plain fork, which PyTorch's threads do not survive: a fork of a server that has only imported."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ternfed.sweep.side_by_side"])
    return context


_job_data: DataSets | None = None
"""Of a process that is a job: it ends with its pool, and the data sets with it."""


def _be_a_job(data: Path | None) -> None:
    """One thread, because the cores belong to the other jobs; the terminal's Ctrl-C is the first process's to hear."""
    global _job_data
    _job_data = DataSets(data)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    if (first := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(first,), daemon=True).start()


def _end_with(first: BaseProcess) -> None:
    """A job whose first process was killed must not go on unseen."""
    first.join()
    os._exit(1)


def _run(trial: Trial, keep: bool) -> Table:
    return run_trial(trial, _job_data, keep=keep)


def _outcome(future: Future[Table]) -> Table | Exception:
    try:
        return future.result()
    except BrokenProcessPool:
        return RuntimeError("a process ended before its run did; the same command resumes it")
    except Exception as error:
        return error

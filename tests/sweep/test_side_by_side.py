"""Trials in several processes: where they may share a device, and Ctrl-C while one waits for them."""

from __future__ import annotations

import os
import signal
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from threading import Thread, Timer

import pytest

from ternfed.sweep.side_by_side import _interrupted_afterwards, may_share


class TestADeviceIsShared:
    def test_if_it_is_the_cpu(self) -> None:
        assert may_share("cpu")

    def test_if_it_is_a_gpu_where_mps_listens(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        assert not may_share("cuda:0")
        (tmp_path / "control").touch()
        assert may_share("cuda:0")


def test_ctrl_c_is_heard_when_the_wait_has_ended() -> None:
    ended = []
    timer = Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()

    def waits() -> None:
        with _interrupted_afterwards():
            wait([Future()], 0.3, FIRST_COMPLETED)
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        waits()
    timer.join()
    assert ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_one_nothing_is_raised_and_handlers_are_back() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with _interrupted_afterwards():
        pass
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_may_wait_as_well() -> None:
    done = []

    def waits() -> None:
        with _interrupted_afterwards():
            done.append(True)

    thread = Thread(target=waits)
    thread.start()
    thread.join()
    assert done

"""Whether a CPU computes in bfloat16 is read from the system, and what will be slow is said before training."""

import logging
from pathlib import Path

import pytest
import torch

from ternfed.algorithms.algorithm import Network, Training
from ternfed.data.values import Samples
from ternfed.models import mlp
from ternfed.training import bfloat16
from ternfed.training.choose import trainer_for
from ternfed.training.work import TrainingData


@pytest.mark.parametrize(
    ("cpuinfo", "has"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n", True),
        ("flags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx2 avx512f\n", False),
        ("flags\t\t: fpu not_avx512_bf16\n", False),
        ("processor\t: 0\n", None),
        ("", None),
    ],
)
def test_the_instructions_are_read_from_what_linux_says(cpuinfo: str, has: bool | None) -> None:
    assert bfloat16.has_instructions(cpuinfo) is has


def test_a_system_that_says_nothing_is_not_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bfloat16, "CPUINFO", tmp_path / "none")
    bfloat16.cpu_has_bfloat16.cache_clear()
    try:
        assert bfloat16.cpu_has_bfloat16() is None
        assert bfloat16.slow_precision("bfloat16", "cpu") is None
    finally:
        bfloat16.cpu_has_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("has", "precision", "device", "warned"),
    [
        (False, "bfloat16", "cpu", True),
        (False, "float32", "cpu", False),
        (False, "bfloat16", "cuda", False),
        (True, "bfloat16", "cpu", False),
    ],
)
def test_only_bfloat16_on_a_cpu_without_it_is_slow(
    monkeypatch: pytest.MonkeyPatch, has: bool, precision: str, device: str, warned: bool
) -> None:
    monkeypatch.setattr(bfloat16, "cpu_has_bfloat16", lambda: has)
    assert (bfloat16.slow_precision(precision, device) is not None) == warned


def test_the_warning_is_one_sentence_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(bfloat16, "cpu_has_bfloat16", lambda: False)
    bfloat16.warn_once.cache_clear()
    feed = TrainingData(Samples(torch.zeros(4, 784), torch.zeros(4, dtype=torch.int64)), (0.0,), (1.0,))
    with caplog.at_level(logging.WARNING, "ternfed"):
        for _ in range(2):
            trainer_for(Network.of(mlp()), Training(precision="bfloat16"), feed)
    (record,) = caplog.records
    assert "this CPU has no instructions for it" in record.getMessage()
    bfloat16.warn_once.cache_clear()

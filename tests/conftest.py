"""One thread; kernels for a GPU interpreted where there is none; and where the real data lie.

That is TERNFED_DATA, or a folder `shared/data` beside the checkout.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# Before PyTorch is loaded, here and in child processes: the bits of a product depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not Path("/proc/driver/nvidia").exists():
    # Where there is no GPU, kernels are interpreted. Triton looks when it is loaded, and PyTorch may load it early.
    os.environ.setdefault("TRITON_INTERPRET", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a shell's background jobs; processes that the tests start would not hear Ctrl-C either.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_data() -> Path:
    named = os.environ.get("TERNFED_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("MNIST and CIFAR-10 are not on this machine; TERNFED_DATA names their folder")
    return folder

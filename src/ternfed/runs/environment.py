"""Where a run ran: versions, processor, device. No paths, no names of machines or people."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from ternfed.experiment.settings import Table

SOURCES = Path(__file__).parents[1]
"""The folder of the package."""


def environment(device: str = "cpu") -> Table:
    """What may matter when a number is to be repeated."""
    return {
        "ternfed": _version("ternfed"),
        "revision": _revision(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
    }


def made_line() -> str:
    """For the top of a page: when it was made, by which version, from which revision of the sources."""
    own = {"ternfed": _version("ternfed"), "revision": _revision()}
    version = " ".join(f"{key} {value}" for key, value in own.items() if value)
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC · {version}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its sources
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _revision() -> str | None:
    """The git revision of these sources, `+` after it where they were changed since; None where git knows them not."""
    tracked = _git("ls-files", "--error-unmatch", "__init__.py")
    revision = _git("rev-parse", "--short=12", "HEAD") if tracked else None
    return f"{revision}+" if revision and _git("status", "--porcelain", ".") else revision


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", *arguments], cwd=SOURCES, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()

"""Which versions of Flower ternfed is tested with, and whether one of them is installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from ternfed.engines.flower.errors import NetworkError

OLDEST = (1, 40)
NEWEST = (1, 42)
"""The minor versions that the test suite has passed with; `pyproject.toml` says the same, and a test compares them."""
INSTALL = "pip install 'ternfed[flower]'"


def need_flower() -> None:
    """NetworkError where Flower is missing, or is a version that ternfed is not tested with."""
    installed = _installed()
    if installed is None:
        raise NetworkError(f"Flower is missing; install the extra [flower]: {INSTALL}")
    found = re.match(r"(\d+)\.(\d+)", installed)
    minor = (int(found[1]), int(found[2])) if found else None
    if minor is None or not OLDEST <= minor <= NEWEST:
        old = "Flower is too old: " if minor is not None and minor < OLDEST else ""
        raise NetworkError(f"{old}flwr {installed} is installed; ternfed is tested with {tested()}: {INSTALL}")


def tested() -> str:
    """The tested versions in words."""
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    return oldest if oldest == newest else f"{oldest} to {newest}"


def _installed() -> str | None:
    """As the package says it: older versions have no module to ask."""
    for name in ("flwr", "flwr-nightly"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None

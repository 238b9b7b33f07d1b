"""The packages of the extra `[report]`, and one sentence for all places that need one of them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def needed(package: str) -> ModuleType:
    """A package of the extra; ImportError names the extra where it is absent."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(f"a report needs {package}: pip install 'ternfed[report]'") from error

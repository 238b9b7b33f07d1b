"""Whatever a setting names as `module:function`."""

from __future__ import annotations

import importlib
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBRARIES = tuple(Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib"))
OURS = Path(__file__).parent


class FunctionMissing(ValueError):
    """There is no such function; the message says so, `reason` why."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def named_function(name: str) -> Callable[..., Any]:
    """The function that `module:function` names; FunctionMissing where there is none."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way
        reason = f"{type(error).__name__}: {error}"
        raise FunctionMissing(f"{module_name} cannot be imported ({reason})", reason) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        absent = f"the module {module_name} has no function {function_name}"
        raise FunctionMissing(absent, absent)
    found: Callable[..., Any] = function
    return found


def users_line(error: BaseException, skip: int = 0) -> str | None:
    """`own.py, line 12`: the last line of a user's own code that an error came through; None where it met none.

    `skip` frames at the top are not looked at.
    """
    place, seen = None, error
    while seen is not None:
        for frame in traceback.extract_tb(seen.__traceback__)[skip if seen is error else 0 :]:
            file = Path(frame.filename)
            if file.is_file() and not any(file.is_relative_to(known) for known in (*LIBRARIES, OURS)):
                place = f"{_short(file)}, line {frame.lineno}"
        seen = seen.__cause__  # type: ignore[assignment]
    return place


def _short(file: Path) -> Path:
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file

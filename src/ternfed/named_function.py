"""Whatever a setting names as `module:function`, and which modules may be named at all.

A name is code that runs. One that stands in a file is taken only where the user gave its module again (`check_code`).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

LIBRARIES = tuple(Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib"))
OURS = Path(__file__).parent

CODE = (("data", "dataset"), ("task", "name"), ("model", "name"), ("algorithm", "name"), ("federation", "aggregate"))
"""The settings of an experiment that may name code: (section, key)."""

FOLDERS = ("text", "arrays", "parquet")
"""Kinds of folders of data: `kind:FOLDER` looks like the name of a function, and is none."""


class FunctionMissing(ValueError):
    """There is no such function; the message says so, `reason` why."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class NotAllowed(ValueError):
    """A file names code that its reader was not told to run."""


def named_function(name: str, makes: type | None = None) -> Callable[..., Any]:
    """The function that `module:function` names; FunctionMissing where there is none.

    It must be a function, or a class of what it `makes`, and belong to that module or its package: `module:Popen` of a
    module that imports Popen names nothing. A user's module is looked for in the current folder too, after all others.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name.startswith("ternfed.") and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way
        reason = f"{type(error).__name__}: {error}"
        raise FunctionMissing(f"{module_name} cannot be imported ({reason})", reason) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [name for name, value in vars(module).items() if inspect.isfunction(value) or inspect.isclass(value)]
        near = get_close_matches(function_name, known, n=1)
        meant = f'; did you mean "{module_name}:{near[0]}"?' if near else ""
        absent = f"the module {module_name} has no function {function_name}{meant}"
        raise FunctionMissing(absent, absent)
    home = str(getattr(function, "__module__", None))
    if home != module_name and not home.startswith(f"{module_name}."):
        foreign = f"{function_name} is not defined in the module {module_name}"
        raise FunctionMissing(foreign, foreign)
    is_maker = makes is not None and isinstance(function, type) and issubclass(function, makes)
    if not is_maker and not inspect.isfunction(inspect.unwrap(function)):
        what = "no function" if makes is None else f"neither a function nor a {makes.__name__}"
        other = f"{function_name} of the module {module_name} is {what}"
        raise FunctionMissing(other, other)
    found: Callable[..., Any] = function
    return found


def code_in(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(setting, name, module) for each `module:function` in an experiment's table; a folder of data is none."""
    for section, key in CODE:
        part = table.get(section)
        name = part.get(key) if isinstance(part, Mapping) else None
        if isinstance(name, str) and ":" in name and not (section == "data" and is_folder(name)):
            yield f"{section}.{key}", name, name.partition(":")[0]


def is_folder(dataset: str) -> bool:
    """Whether the name of a data set is that of a folder, `text:FOLDER` say."""
    kind, colon, _ = dataset.partition(":")
    return bool(colon) and kind in FOLDERS


def check_code(table: Mapping[str, Any], allowed: Collection[str], where: str) -> None:
    """Refuse an experiment of somebody else that names code outside of the modules that the user allowed."""
    for key, name, module in code_in(table):
        if module not in allowed:
            raise NotAllowed(
                f'{key} = "{name}": {where} names code, which does not run unless you allow it; '
                f"give --allow {module} where you trust that module"
            )


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

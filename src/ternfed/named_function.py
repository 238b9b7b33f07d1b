"""Whatever a setting names as `module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


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

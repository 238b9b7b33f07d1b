"""A table of settings (from TOML, JSON or a command line) ⇄ a frozen dataclass, by the types of its fields.

Fields may be bool, int, float, str, a `StrEnum`, a `Literal`, a list of those (`tuple[X, ...]`) and any of them
`| None`. TOML has no empty value, so in an optional setting the word "none" stands for it.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ternfed.named_function import FunctionMissing, named_function

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Value = TypeVar("Value", bound=DataclassInstance)

Table = dict[str, Any]


class ExperimentError(ValueError):
    """A setting that cannot be: one sentence that names its key, its value and what is allowed."""


def read(kind: type[Value], table: Mapping[str, Any], where: str, base: Value | None = None) -> Value:
    """The dataclass with these values, over those of `base` or its own defaults. `where` is the section's name."""
    hints = get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    for key, value in table.items():
        if key not in fields:
            raise unknown(f"{where}.{key}", value, [f"{where}.{field}" for field in fields])
    values = {key: convert(value, hints[key], f"{where}.{key}") for key, value in table.items()}
    try:
        return kind(**values) if base is None else dataclasses.replace(base, **values)
    except ExperimentError:
        raise
    except (TypeError, ValueError) as error:
        named = str(error).split(" ")[0] in fields
        raise ExperimentError(f"{where}.{error}" if named else f"{where}: {error}") from error


def write(value: DataclassInstance, *, without_none: bool = False) -> Table:
    """The plain values of every field, in order; None as the word "none", or left out."""
    values = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {key: plain(item) for key, item in values.items() if item is not None or not without_none}


def plain(value: Any) -> Any:
    """A value as TOML and JSON have it."""
    if value is None:
        return "none"
    if isinstance(value, Enum):
        return value.value
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def convert(value: Any, hint: Any, key: str) -> Any:
    """The value as the type wants it; ExperimentError where it is of another type. An int serves as a float."""
    try:
        return _convert(value, hint)
    except _Mismatch:
        raise ExperimentError(f"{key} = {shown(value)}: {described(hint)} is allowed") from None


def unknown(key: str, value: Any, allowed: Sequence[str], elsewhere: Sequence[str] = ()) -> ExperimentError:
    """The error for a key that is none of the allowed ones, with the one probably meant; keys with their section."""
    near = [*_nearest(key, allowed, cutoff=0.6), *_nearest(key, elsewhere, cutoff=0.8)]
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(allowed)}"
    return ExperimentError(f"{key} = {shown(value)}: no such setting; {hint}")


def _nearest(key: str, candidates: Sequence[str], cutoff: float) -> list[str]:
    names = {candidate.rpartition(".")[2]: candidate for candidate in candidates}
    return [names[name] for name in difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=cutoff)]


def shown(value: Any) -> str:
    """A value as one would write it in TOML."""
    return json.dumps(plain(value), ensure_ascii=False, default=str)


def described(hint: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(described(argument) for argument in arguments)
    if origin is Literal:
        return either(arguments)
    if origin is not None and issubclass(origin, Sequence):
        return f"a list in which {described(arguments[0])} is"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return either([member.value for member in hint])
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text", NoneType: '"none"'}
    return words.get(hint, str(hint))


def either(values: Iterable[Any]) -> str:
    """`"a", "b" or "c"`."""
    words = [shown(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def find_function(key: str, name: str) -> Callable[..., Any]:
    """The function that `module:function` names; ExperimentError where there is none."""
    try:
        return named_function(name)
    except FunctionMissing as error:
        raise ExperimentError(f"{key} = {shown(name)}: {error}") from error


class _Mismatch(Exception):
    pass


def _convert(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, UnionType):
        return _first_that_fits(value, arguments)
    if origin is Literal:
        return _member(value, {argument: argument for argument in arguments})
    if origin is not None and issubclass(origin, Sequence):
        if not isinstance(value, list | tuple):
            raise _Mismatch
        return tuple(_convert(item, arguments[0]) for item in value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _member(value, {member.value: member for member in hint})
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if hint in (bool, int, str) and isinstance(value, hint) and (hint is bool) == isinstance(value, bool):
        return value
    if hint not in (bool, int, float, str):
        raise TypeError(f"settings of type {hint} are not supported")
    raise _Mismatch


def _first_that_fits(value: Any, hints: Sequence[Any]) -> Any:
    if NoneType in hints and (value is None or value == "none"):
        return None
    for hint in hints:
        if hint is not NoneType:
            try:
                return _convert(value, hint)
            except _Mismatch:
                continue
    raise _Mismatch


def _member(value: Any, members: Mapping[Any, Any]) -> Any:
    for known, member in members.items():
        # 1 == True, so the type is compared as well.
        if value == known and isinstance(value, type(known)) and isinstance(value, bool) == isinstance(known, bool):
            return member
    raise _Mismatch

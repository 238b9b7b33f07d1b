"""A table of settings (from TOML, JSON or a command line) ⇄ a frozen dataclass, by the types of its fields.

Fields may be bool, int, float, str, a `StrEnum`, a `Literal`, a list of those (`tuple[X, ...]`) and any of them
`| None`. TOML has no empty value, so in an optional setting the word "none" stands for it.

A field may also be a choice between dataclasses, `Iid | Classes`. In the table its value is a word, the name of the
class in lower case, and what belongs to that class stands beside it: `partition = "classes"`, `classes_per_client = 2`.
Where a key of the table differs from the name of the field, the field's metadata has it as `key`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ternfed.named_function import FunctionMissing, named_function

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Value = TypeVar("Value", bound=DataclassInstance)

Table = dict[str, Any]


class ExperimentError(ValueError):
    """A setting that is impossible: one sentence that names its key, its value and what is allowed."""


def read(kind: type[Value], table: Mapping[str, Any], where: str, base: Value | None = None) -> Value:
    """The dataclass with these values, over those of `base` or its own defaults. `where` is the section's name."""
    hints, fields, rest = get_type_hints(kind), _fields(kind), dict(table)
    values: Table = {}
    for key in (key for key, field in fields.items() if key in table and _kinds(hints[field.name])):
        chosen = convert(rest.pop(key), hints[fields[key].name], f"{where}.{key}")
        values[fields[key].name] = read(chosen, {own: rest.pop(own) for own in _fields(chosen) if own in rest}, where)
    for key, value in rest.items():
        if key not in fields:
            raise unknown(f"{where}.{key}", value, [f"{where}.{field}" for field in fields])
        values[fields[key].name] = convert(value, hints[fields[key].name], f"{where}.{key}")
    try:
        return kind(**values) if base is None else dataclasses.replace(base, **values)
    except ExperimentError:
        raise
    except (TypeError, ValueError) as error:
        named = str(error).split(" ")[0] in fields
        raise ExperimentError(f"{where}.{error}" if named else f"{where}: {error}") from error


def write(value: DataclassInstance) -> Table:
    """The plain values of every field, in order, and after them what belongs to the choices among them."""
    values = {key: getattr(value, field.name) for key, field in _fields(type(value)).items()}
    chosen: list[Any] = [item for item in values.values() if dataclasses.is_dataclass(item)]
    further = {key: item for value in chosen for key, item in write(value).items()}
    return {**{key: plain(item) for key, item in values.items()}, **further}


def choices(kind: type[DataclassInstance]) -> dict[str, dict[str, Table]]:
    """For each field that is a choice: its words, each with the keys that belong to it and their defaults."""
    hints = get_type_hints(kind)
    return {
        key: {
            word: {own: part.default for own, part in _fields(chosen).items()}
            for word, chosen in _kinds(hints[field.name]).items()
        }
        for key, field in _fields(kind).items()
        if _kinds(hints[field.name])
    }


def plain(value: Any) -> Any:
    """A value as TOML and JSON have it: None as the word "none", one of several dataclasses as its own word."""
    if value is None:
        return "none"
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return _word(type(value))
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def need(holds: bool, key: str, value: Any, allowed: str) -> None:
    """ExperimentError unless it holds."""
    if not holds:
        raise ExperimentError(f"{key} = {shown(value)}: {allowed}")


def convert(value: Any, hint: Any, key: str) -> Any:
    """The value as its type has it; ExperimentError if it is of another type. An int also serves as a float."""
    try:
        return _convert(value, hint)
    except _Mismatch:
        near = suggestion(value, _words(hint)) if isinstance(value, str) else ""
        raise ExperimentError(f"{key} = {shown(value)}: {described(hint)} is allowed{near}") from None


def unknown(key: str, value: Any, allowed: Sequence[str], elsewhere: Sequence[str] = ()) -> ExperimentError:
    """The error for a key that is not allowed, naming the one that was probably meant; keys include their section."""
    near = [*_nearest(key, allowed, cutoff=0.6), *_nearest(key, elsewhere, cutoff=0.8)]
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(allowed)}"
    return ExperimentError(f"{key} = {shown(value)}: no such setting; {hint}")


def suggestion(name: object, allowed: Iterable[Any]) -> str:
    """`; did you mean "b"?` where one of the allowed names is near the one that was given; else nothing."""
    near = difflib.get_close_matches(str(name), [str(one) for one in allowed], n=1, cutoff=0.6)
    return f"; did you mean {shown(near[0])}?" if near else ""


def _nearest(key: str, candidates: Sequence[str], cutoff: float) -> list[str]:
    names = {candidate.rpartition(".")[2]: candidate for candidate in candidates}
    return [names[name] for name in difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=cutoff)]


def shown(value: Any) -> str:
    """A value as it is written in TOML."""
    return json.dumps(plain(value), ensure_ascii=False, default=str)


def described(hint: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if kinds := _kinds(hint):
        return either(kinds)
    if origin in (Union, UnionType):
        return " or ".join(described(argument) for argument in arguments)
    if origin is Literal:
        return either(arguments)
    if origin is not None and issubclass(origin, Sequence):
        return f"a list (each entry: {described(arguments[0])})"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return either([member.value for member in hint])
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text", NoneType: '"none"'}
    return words.get(hint, str(hint))


def _words(hint: Any) -> list[str]:
    """The words that a setting of this type may be."""
    if kinds := _kinds(hint):
        return list(kinds)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return [member.value for member in hint]
    if get_origin(hint) is Literal:
        return [word for word in get_args(hint) if isinstance(word, str)]
    return [word for part in get_args(hint) for word in _words(part)]


def flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(`section.key`, value) of every setting of an experiment's table; what stands at its top goes by its own key."""
    for section, values in table.items():
        if isinstance(values, Mapping):
            yield from ((f"{section}.{key}", value) for key, value in values.items())
        else:
            yield section, values


def either(values: Iterable[Any]) -> str:
    """`"a", "b" or "c"`."""
    words = [shown(value) for value in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def either_or_own(names: Iterable[str]) -> str:
    """`"a", "b" or module:function`."""
    return f"{', '.join(shown(name) for name in names)} or module:function"


def find_function(key: str, name: str, makes: type | None = None) -> Callable[..., Any]:
    """The function, or class of what it `makes`, that `module:function` names; ExperimentError if there is none."""
    try:
        return named_function(name, makes)
    except FunctionMissing as error:
        raise ExperimentError(f"{key} = {shown(name)}: {error}") from error


class _Mismatch(Exception):
    pass


def _convert(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if kinds := _kinds(hint):
        return _member(value, kinds)
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


def _fields(kind: type[DataclassInstance]) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a dataclass by their keys in a table."""
    return {field.metadata.get("key", field.name): field for field in dataclasses.fields(kind)}


def _kinds(hint: Any) -> dict[str, type[Any]]:
    """The dataclasses of a choice by their words; {} where the type is no choice."""
    arguments = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    return {_word(part): part for part in arguments} if all(map(dataclasses.is_dataclass, arguments)) else {}


def _word(kind: type[Any]) -> str:
    return kind.__name__.lower()

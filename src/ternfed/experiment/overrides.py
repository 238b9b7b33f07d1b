"""Settings given as `key=value` override those of a table, before anything is filled in or checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from ternfed.experiment.defaults import COMMON, DEPENDENT, default_name, given_sections
from ternfed.experiment.settings import ExperimentError, Table, shown


def override(table: Mapping[str, Any], settings: Iterable[str]) -> Table:
    """The table with `key=value` settings in it. Values are TOML; a bare word is text.

    They override the table's own, and a choice as a whole: another algorithm or preset drops the settings of the one
    before, another model its options, another partition, schedule or optimizer what belonged to the old one.
    """
    new = _parse_settings(settings)
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    old = given_sections({key: value for key, value in result.items() if key in COMMON})
    if _was_default_name(table):
        result.pop("name", None)
    new_data = new.get("data", {})
    if "partition" not in new_data and any(key in new_data for key in _belonging("data", "partition")):
        old["data"].pop("partition", None)  # to be implied by the later setting
        _drop(old["data"], _belonging("data", "partition"))
    for section, key in DEPENDENT:
        if _changes(old, new, section, key):
            _drop(old[section], _belonging(section, key))
    if _changes(old, new, "task", "name"):
        old["task"].clear()
    if _changes(old, new, "data", "dataset"):
        _drop(old["data"], ["length", "tokenizer"])
    if _changes(old, new, "model", "name"):
        old["model"].clear()
    if _changes(old, new, "algorithm", "name"):
        old["algorithm"].clear()
    elif _changes(old, new, "algorithm", "preset"):
        _drop(old["algorithm"], [key for key in old["algorithm"] if key != "name"])
    for section, values in old.items():
        if values or section in new:
            result[section] = {**values, **new.get(section, {})}
    return {**result, **{key: value for key, value in new.items() if key not in COMMON}}


def _belonging(section: str, key: str) -> list[str]:
    return [name for table in DEPENDENT[section, key].values() for name in table]


def _changes(old: Mapping[str, Table], new: Mapping[str, Any], section: str, key: str) -> bool:
    before = old[section].get(key, COMMON[section].get(key) if section == "algorithm" else None)
    return key in new.get(section, {}) and new[section][key] != before


def _drop(table: Table, keys: Iterable[str]) -> None:
    for key in keys:
        table.pop(key, None)


def _was_default_name(table: Mapping[str, Any]) -> bool:
    try:
        names = table["data"]["dataset"], table["algorithm"]["name"]
        return bool(table["name"] == default_name(*names))
    except (KeyError, TypeError, AttributeError):
        return False


def _parse_settings(settings: Iterable[str]) -> Table:
    new: Table = {}
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        section, _, name = key.rpartition(".")
        if not (equals and name):
            raise ExperimentError(f"{shown(setting)}: key=value is needed, federation.rounds=5 for example")
        if section == "":
            new[name] = _parse_value(text)
        else:
            new.setdefault(section, {})[name] = _parse_value(text)
    given_sections({key: value for key, value in new.items() if key not in ("model", "algorithm")})
    return new


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = parsed["value"]
    return value if len(parsed) == 1 and isinstance(value, bool | int | float | str | list) else text

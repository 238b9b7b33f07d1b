"""Several runs: found in folders, they and their data sets named apart, and what differs between their settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ternfed.data.sets import NAMES
from ternfed.experiment.settings import Table, flat
from ternfed.named_function import FOLDERS


def no_such_folder(folder: Path, needed: str = "a run folder, or one that contains some, is needed") -> str:
    """One sentence about a folder that is not there, with its neighbour that was probably meant."""
    beside = [each.name for each in folder.parent.iterdir() if each.is_dir()] if folder.parent.is_dir() else []
    near = get_close_matches(folder.name, beside, n=1)
    return f"{folder}: there is no such folder; " + (f"did you mean {folder.parent / near[0]}?" if near else needed)


def run_folders(folder: Path) -> Iterator[Path]:
    """Run folders in a folder, at any depth; nothing inside of one is looked at."""
    for place, inside, files in os.walk(folder):
        if "config.toml" in files:
            inside.clear()
            yield Path(place)
        inside.sort()


def names_of(folders: Sequence[Path]) -> list[str]:
    """A short name for each folder: its last part, with those before it as far as they tell two apart."""
    parts = [folder.resolve().parts for folder in folders]
    deep = max(map(len, parts), default=1)
    for depth in range(1, deep + 1):
        names = ["/".join(own[-depth:]) for own in parts]
        if len(set(names)) == len(names):
            return names
    return list(map(str, folders))


class DataSetOf(NamedTuple):
    """The data set of a run."""

    setting: str
    """`data.dataset`."""
    own_name: str | None
    """What it calls itself, where that is known."""


def data_names(sets: Sequence[DataSetOf]) -> list[str | None]:
    """What the data set of each run calls itself; None where its setting says more.

    So it is with ternfed's own data sets and folders, and where another function's data set has the same name. A run
    whose folder does not tell the name has that of the other runs of its function, if they agree.
    """
    by_function: dict[str, dict[str, str]] = {}
    functions: dict[str, set[str]] = {}
    for each in sets:
        if (name := _own_name(each)) is not None:
            by_function.setdefault(each.setting, {})[name.casefold()] = name
            functions.setdefault(name.casefold(), set()).add(each.setting)
    chosen = []
    for each in sets:
        known = by_function.get(each.setting, {})
        name = next(iter(known.values())) if len(known) == 1 else _own_name(each)
        chosen.append(name if name is not None and len(functions[name.casefold()]) == 1 else None)
    return chosen


def _own_name(data: DataSetOf) -> str | None:
    """The name of a user's own data set, unless it is that of the function, or one that means a data set of ternfed."""
    name, (module, colon, _) = data.own_name, data.setting.partition(":")
    if name is None or name == data.setting or not colon or module in FOLDERS:
        return None
    return None if "".join(filter(str.isalnum, name)).casefold() in NAMES else name


def differing(tables: Sequence[Table]) -> list[str]:
    """`section.key` of every setting that is not the same in all of these experiments; no names.

    An algorithm's own settings are compared only with those of the same algorithm: that it is another is said already.
    """
    settings = [dict(flat(table)) for table in tables]
    keys = dict.fromkeys(("algorithm.name", *(key for each in settings for key in each)))
    return [key for key in keys if key != "name" and _differs(key, settings)]


def _differs(key: str, tables: Sequence[Mapping[str, Any]]) -> bool:
    if not key.startswith("algorithm.") or key in ("algorithm.name", "algorithm.preset"):
        return len({_text(table.get(key)) for table in tables}) > 1
    by_algorithm: dict[str, set[str]] = {}
    for table in tables:
        by_algorithm.setdefault(_text(table.get("algorithm.name")), set()).add(_text(table.get(key)))
    return any(len(values) > 1 for values in by_algorithm.values())


def setting(table: Table, key: str) -> Any:
    """The value of `section.key`; None where there is none."""
    return dict(flat(table)).get(key)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)

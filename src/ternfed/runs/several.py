"""Several runs: found in folders, named apart, and what differs between their settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ternfed.experiment.settings import Table


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


def differing(tables: Sequence[Table]) -> list[str]:
    """`section.key` of every setting that is not the same in all of these experiments; no names.

    An algorithm's own settings are compared only with those of the same algorithm: that it is another is said already.
    """
    flat = [dict(_flatten(table)) for table in tables]
    keys = dict.fromkeys(("algorithm.name", *(key for each in flat for key in each)))
    return [key for key in keys if key != "name" and _differs(key, flat)]


def _differs(key: str, tables: Sequence[Mapping[str, Any]]) -> bool:
    if not key.startswith("algorithm.") or key in ("algorithm.name", "algorithm.preset"):
        return len({_text(table.get(key)) for table in tables}) > 1
    by_algorithm: dict[str, set[str]] = {}
    for table in tables:
        by_algorithm.setdefault(_text(table.get("algorithm.name")), set()).add(_text(table.get(key)))
    return any(len(values) > 1 for values in by_algorithm.values())


def setting(table: Table, key: str) -> Any:
    """The value of `section.key`; None where there is none."""
    return dict(_flatten(table)).get(key)


def _flatten(table: Table) -> Iterator[tuple[str, Any]]:
    for section, values in table.items():
        if isinstance(values, Mapping):
            yield from ((f"{section}.{key}", value) for key, value in values.items())
        else:
            yield section, values


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)

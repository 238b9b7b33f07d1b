"""`partition.json` of a run folder: who holds which data, and what the data set calls itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ternfed.files import as_line, read_json, shown_name

FILE = "partition.json"


class Partition(NamedTuple):
    """What the file says; None for what it does not say, or not in a way that can be used."""

    classes: list[list[int]] | None = None
    """Samples of each class on each client."""
    data_name: str | None = None
    """On one line, not long, every letter printable: a folder may come from anyone."""


def partition_line(class_counts: Sequence[Sequence[int]] | None, data_name: str) -> bytes:
    """The file's content. The name may be whatever a user's function gave; it is kept as it can be shown."""
    counted = {} if class_counts is None else {"classes": class_counts}
    return as_line({**counted, "data_name": shown_name(str(data_name))})


def read_partition(folder: Path) -> Partition:
    """What a run folder holds of it; folders of older versions have no name."""
    found = read_json(folder / FILE)
    if not isinstance(found, dict):
        return Partition()
    return Partition(_classes(found.get("classes")), _name(found.get("data_name")))


def _classes(counts: Any) -> list[list[int]] | None:
    if not isinstance(counts, list) or not counts or not all(isinstance(row, list) for row in counts):
        return None
    whole = all(type(count) is int and 0 <= count < 2**53 for row in counts for count in row)
    return counts if whole and len({len(row) for row in counts}) == 1 and counts[0] else None


def _name(name: Any) -> str | None:
    return name if isinstance(name, str) and name.strip() and name == shown_name(name) else None

"""Two data sets of the hub that say whose each sample is: LEAF's FEMNIST and Shakespeare (Caldas et al. 2018).

The hub has neither divided into training and test samples: the last tenth of what each client has is test data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ternfed.data.files import CLIENTS, FIELDS, Arrays, cached
from ternfed.data.hub import decode_splits, open_hub
from ternfed.data.text import ids_of
from ternfed.data.values import DataMissing, DataSet, from_arrays
from ternfed.task import CLASSIFICATION, LANGUAGE, Task


@dataclass(frozen=True)
class _Federated:
    """Where a data set says whose its samples are, and how its rows become samples."""

    client: str
    """The column."""
    task: Task
    classes: int | None
    read: Callable[[Any, NDArray[np.int64]], Arrays]
    """(rows, their clients) ─▶ arrays, as `save_arrays` has them."""


def load_federated(name: str, place: Path | None = None) -> DataSet:
    """The data set of that name, from a folder `place/name` or from the hub; decoded once and cached."""
    known = FEDERATED[name]
    folder = None if place is None or not (place / name).is_dir() else place / name
    try:
        rows = open_hub(str(folder or name))["train"]
    except (DataMissing, KeyError) as error:
        raise DataMissing(
            f"{name}: the hub gave nothing; connect to the network and install the extra [data], or name a folder that "
            f"holds {name} with --data DIR or TERNFED_DATA"
        ) from error
    sources = [Path(file["filename"]) for file in rows.cache_files]
    arrays = cached(name.replace("/", "-"), sources, partial(read_rows, name, rows))
    return data_set(name, arrays, known)


def read_rows(name: str, rows: Any) -> Arrays:
    """The arrays of a data set's rows."""
    known = FEDERATED[name]
    needed = known.client
    if needed not in rows.column_names:
        raise DataMissing(f"{name}: has no column {needed}; there is {', '.join(rows.column_names)}")
    owners = np.unique(np.asarray(rows.with_format("numpy")[needed][:]).astype(str), return_inverse=True)[1]
    return known.read(rows, owners.astype(np.int64))


def data_set(name: str, arrays: Arrays, known: _Federated | None = None) -> DataSet:
    """The data set of such arrays."""
    known = known or FEDERATED[name]
    own = (arrays[field] for field in FIELDS)
    return from_arrays(name, *own, classes=known.classes, task=known.task, clients=arrays[CLIENTS])


def last_tenths(owners: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which samples are the last tenth of their client's, rounded down: every client keeps most of what it has."""
    sizes = np.bincount(owners)
    test: NDArray[np.bool_] = _places(owners) >= (sizes - sizes // 10)[owners]
    return test


def _places(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many samples of its client stand before each."""
    places, order, sizes = np.empty(len(owners), np.int64), np.argsort(owners, kind="stable"), np.bincount(owners)
    places[order] = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def _divided(inputs: NDArray[Any], labels: NDArray[Any], owners: NDArray[np.int64]) -> Arrays:
    test = last_tenths(owners)
    if not test.any():
        raise DataMissing("no client has the ten samples of which one is test data")
    parts = (inputs[~test], labels[~test], inputs[test], labels[test])
    return {**dict(zip(FIELDS, parts, strict=True)), CLIENTS: owners[~test]}


def _pictures(rows: Any, owners: NDArray[np.int64]) -> Arrays:
    found = decode_splits({"train": rows}, "image", "character", "flwrlabs/femnist")
    return _divided(found["train_inputs"], found["train_labels"].astype(np.int64), owners)


def _windows(rows: Any, owners: NDArray[np.int64]) -> Arrays:
    """Windows of 80 characters and the one that follows, which begin at every character: of each client every 80th.

    So each character is a target about once, as in a text that is cut into sequences.
    """
    texts, following = rows["x"][:], rows["y"][:]
    length = len(texts[0])
    chosen = np.flatnonzero(_places(owners) % length == 0)
    whole = [texts[place] + following[place] for place in chosen.tolist()]
    if any(len(window) != length + 1 for window in whole):
        raise DataMissing(f"flwrlabs/shakespeare: a window has not the {length} characters of the first")
    codes = np.frombuffer("".join(whole).encode("utf-32-le"), np.uint32).reshape(-1, length + 1)
    owners = owners[chosen]
    known = np.unique(codes[~last_tenths(owners)])
    ids = ids_of(codes, known)
    return _divided(ids[:, :-1], ids[:, 1:], owners)


FEDERATED: Mapping[str, _Federated] = {
    "flwrlabs/shakespeare": _Federated("character_id", LANGUAGE, None, _windows),
    "flwrlabs/femnist": _Federated("writer_id", CLASSIFICATION, 62, _pictures),
}

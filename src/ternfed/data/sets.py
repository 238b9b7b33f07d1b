"""Data sets by name: MNIST, CIFAR-10, scikit-learn's digits, Shakespeare's roles, folders, and a user's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ternfed.data.federated import FEDERATED, load_federated
from ternfed.data.files import (
    CLIENTS,
    FIELDS,
    SPLITS,
    Arrays,
    as_samples,
    cached,
    holds_arrays,
    read_arrays,
    read_columns,
    read_parquet,
    save_arrays,
)
from ternfed.data.hub import decode_splits, from_hub, open_hub
from ternfed.data.images import Augment, crop_flip, normalise
from ternfed.data.text import LENGTH, read_text, text_files
from ternfed.data.values import DataMissing, DataSet, Samples, from_arrays
from ternfed.named_function import FOLDERS, FunctionMissing, is_folder, named_function
from ternfed.task import CLASSIFICATION, Task

__all__ = [
    "CLASSES",
    "FOLDERS",
    "NAMES",
    "Augment",
    "DataMissing",
    "DataSet",
    "Samples",
    "Source",
    "crop_flip",
    "from_arrays",
    "from_hub",
    "is_text",
    "load",
    "normalise",
    "save_arrays",
    "source_of",
    "without_samples",
]


@dataclass(frozen=True)
class _Known:
    """A data set of the hub: where its files lie there, and in a folder of the same layout; what is known about it."""

    hub: str
    config: str
    image: str
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None


_KNOWN = {
    "mnist": _Known("ylecun/mnist", "mnist", "image", (1, 28, 28), (0.1307,), (0.3081,), None),
    "cifar10": _Known(
        "uoft-cs/cifar10", "plain_text", "img", (3, 32, 32),
        (0.4914, 0.4824, 0.4467), (0.247, 0.244, 0.262), Augment(padding=4, flip=True),
    ),
}  # fmt: skip

TRAINING_SAMPLES = {"digits": 1442, "mnist": 60_000, "cifar10": 50_000, "shakespeare": 38_814}
"""Where nothing need be read to know: how many there are, of text as sequences of the usual length."""
CLASSES = {"digits": 10, **dict.fromkeys(_KNOWN, 10)}
"""How many classes those of them have that have any."""
NAMES = (*CLASSES, "shakespeare", *FEDERATED)
DIGITS = (1, 8, 8)
"""The shape of a sample."""
SHAKESPEARE = 75
"""Characters of the training parts of all roles, and one for any other."""


def load(
    name: str,
    folder: Path | None = None,
    task: Task = CLASSIFICATION,
    length: int = LENGTH,
    tokenizer: Path | None = None,
    characters: str | None = None,
) -> DataSet:
    """The data set of that name, or what the user's `module:function` returns: a DataSet, or arrays for `from_arrays`.

    MNIST, CIFAR-10 and Shakespeare's roles are looked for in `folder`, else in TERNFED_DATA; the first two then on the
    hub. `text:FOLDER` holds one `.txt` file per client, in sequences of `length` characters or tokens; `arrays:FOLDER`
    what `save_arrays` writes; `parquet:FOLDER` the columns `inputs`, `label` and, where it is known, `client`.
    `characters` are the vocabulary of text that this is a part of; without them, it is that of the text itself.
    """
    if name == "digits":
        return _digits()
    if name in _KNOWN:
        return _known(name, _KNOWN[name], folder)
    if name == "shakespeare":
        return read_text(text_files(_shakespeare(folder)), name, length, tokenizer, characters)
    if name in FEDERATED:
        return load_federated(name, _place(name, folder))
    if is_folder(name):
        return _from_folder(name, task, length, tokenizer, characters)
    if ":" in name:
        return _as_data_set(name, _called(name), task)
    raise _unknown(name)


Source: TypeAlias = Callable[[Task, int, Path | None, str | None], DataSet]
"""(task, length, tokenizer, characters) ─▶ the data set, as `load` makes it of them."""


def source_of(name: str) -> Source:
    """A client's own data: looked for now, and made a data set when it is known what is learned from it.

    A user's function is called here, once.
    """
    if is_folder(name):
        _need_folder(name)
    elif ":" in name:
        made = _called(name)
        return lambda task, *_: _as_data_set(name, made, task)
    elif name not in NAMES:
        raise _unknown(name)
    return partial(load, name, None)


def _unknown(name: str) -> ValueError:
    kinds = ", ".join(f"{kind}:FOLDER" for kind in FOLDERS)
    return ValueError(f"data.dataset = {name}: {', '.join(NAMES)}, {kinds} or module:function is allowed")


def is_text(name: str) -> bool:
    """Whether the data set of that name is made of sequences of characters."""
    return name == "shakespeare" or name.startswith("text:")


def without_samples(name: str) -> DataSet | None:
    """A built-in data set with no sample in it, enough to build a network for it; None for a user's own."""
    if name == "shakespeare":
        ids = torch.empty(0, LENGTH, dtype=torch.int64)
        return DataSet(name, Samples(ids, ids), Samples(ids, ids), SHAKESPEARE, (0.0,), (1.0,), vocabulary=SHAKESPEARE)
    if name == "flwrlabs/femnist":
        pictures = Samples(torch.empty(0, 1, 28, 28), torch.empty(0, dtype=torch.int64))
        return DataSet(name, pictures, pictures, 62, (0.0,), (1.0,))
    shape = DIGITS if name == "digits" else _KNOWN[name].shape if name in _KNOWN else None
    if shape is None:
        return None
    none = Samples(torch.empty(0, *shape), torch.empty(0, dtype=torch.int64))
    return DataSet(name, none, none, 10, (0.0,), (1.0,))


def _shakespeare(folder: Path | None) -> Path:
    """The folder with a file for each of Shakespeare's roles."""
    place = _place("shakespeare", folder)
    for candidate in () if place is None else (place / "shakespeare", place):
        if any(candidate.glob("*.txt")):
            return candidate
    where = "" if place is None else f"not in {place}; "
    raise DataMissing(
        f"shakespeare: {where}name a folder that holds shakespeare/*.txt, one file per role, with --data DIR or "
        "TERNFED_DATA"
    )


def _need_folder(name: str) -> tuple[str, Path]:
    """(its kind, the folder)"""
    kind, _, place = name.partition(":")
    if not Path(place).is_dir():
        raise DataMissing(f"data.dataset = {name}: there is no such folder")
    return kind, Path(place)


def _from_folder(name: str, task: Task, length: int, tokenizer: Path | None, characters: str | None) -> DataSet:
    kind, place = _need_folder(name)
    if kind == "text":
        return read_text(text_files(place), name, length, tokenizer, characters)
    arrays = read_arrays(place) if kind == "arrays" else read_columns(place)
    return from_arrays(name, *(arrays[field] for field in FIELDS), task=task, clients=arrays.get(CLIENTS))


def _place(name: str, folder: Path | None) -> Path | None:
    """Where data lie on this machine, if anywhere."""
    place = folder or (Path(os.environ["TERNFED_DATA"]) if os.environ.get("TERNFED_DATA") else None)
    if place is not None and not place.is_dir():
        raise DataMissing(f"{place}: no such folder; --data or TERNFED_DATA must name one that holds {name}")
    return place


def _known(name: str, known: _Known, folder: Path | None) -> DataSet:
    place = _place(name, folder)
    arrays = None if place is None else _find(name, known, place)
    if arrays is None:
        arrays = _fetch(name, known, place)
    train, test = as_samples(arrays)
    for samples in (train, test):
        if samples.inputs.shape[1:] != known.shape:
            found, wanted = ("×".join(map(str, shape)) for shape in (samples.inputs.shape[1:], known.shape))
            raise DataMissing(
                f"{place or known.hub}: holds samples of {found}, but {name} is {wanted}; name another folder"
            )
    return DataSet(name, train, test, 10, known.mean, known.std, known.augment)


def _find(name: str, known: _Known, place: Path) -> Arrays | None:
    """Plain arrays or the hub's parquet files, in the folder itself or where the hub's layout has them."""
    for candidate in (place, place / name):
        if holds_arrays(candidate):
            return read_arrays(candidate)
    for candidate in (place / name / known.config, place / name, place / known.config, place):
        files = {split: sorted(candidate.glob(f"{split}-*.parquet")) for split in SPLITS}
        if all(files.values()):
            return cached(name, [*files["train"], *files["test"]], partial(read_parquet, files, known.image, "label"))
    return None


def _fetch(name: str, known: _Known, place: Path | None) -> Arrays:
    try:
        found = open_hub(known.hub, known.config)
        splits = {split: found[split] for split in SPLITS}
    except (DataMissing, KeyError) as error:
        where = "" if place is None else f"not in {place}, and "
        raise DataMissing(
            f"{name}: {where}the hub ({known.hub}) gave nothing; name a folder that holds it with --data DIR or "
            "TERNFED_DATA, or connect to the network and install the extra [data]"
        ) from error
    sources = [Path(file["filename"]) for rows in splits.values() for file in rows.cache_files]
    return cached(name, sources, partial(decode_splits, splits, known.image, "label", name))


def _digits() -> DataSet:
    """scikit-learn's 1797 digits of 8×8, 0 to 16 scaled to [0, 1]; of each class every fifth in the file is test.

    A fixed rule, so that no library's random numbers move the split: 1442 training and 355 test samples.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataMissing(
            "digits: come with scikit-learn; install the extra [data]: pip install 'ternfed[data]'"
        ) from error
    digits = load_digits()
    inputs = (digits.images / 16).astype(np.float32)[:, None]
    rank = np.zeros(len(inputs), dtype=np.int64)  # position among the samples of the same class
    for label in range(10):
        members = digits.target == label
        rank[members] = np.arange(members.sum())
    test = rank % 5 == 4
    return from_arrays(
        "digits", inputs[~test], digits.target[~test], inputs[test], digits.target[test],
        mean=(0.3051,), std=(0.3762,),  # of the training samples
    )  # fmt: skip


def _called(name: str) -> DataSet | Sequence[Any]:
    """What a user's function returns: a data set, or its four arrays."""
    try:
        made = named_function(name, DataSet)
    except FunctionMissing as error:
        raise DataMissing(
            f"data.dataset = {name}: cannot be imported ({error.reason}); module:function of a module that can be "
            "imported is needed"
        ) from error
    result = made()
    if isinstance(result, DataSet) or (isinstance(result, tuple | list) and len(result) == 4):
        return result
    raise ValueError(
        f"data.dataset = {name}: returned {type(result).__name__}; a DataSet or four arrays, "
        "(train_x, train_y, test_x, test_y), are needed"
    )


def _as_data_set(name: str, made: DataSet | Sequence[Any], task: Task) -> DataSet:
    return made if isinstance(made, DataSet) else from_arrays(name, *made, task=task)

"""Data sets of the Hugging Face hub, or in its format on disk or in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ternfed.data.files import Arrays, stack_images
from ternfed.data.images import Augment
from ternfed.data.values import DataMissing, DataSet, from_arrays

PATIENCE = 5.0  # seconds in which a reachable hub answers


def from_hub(
    source: str | Path | Mapping[str, Any],
    *,
    image: str | None = None,
    label: str | None = None,
    train: str = "train",
    test: str = "test",
    config: str | None = None,
    name: str | None = None,
    augment: Augment | None = None,
) -> DataSet:
    """A data set of the hub by its name, a folder of one, or a `DatasetDict` already loaded.

    Without names, the image column is the one of type Image (else `image`) and the label column that of type ClassLabel
    (else `label`). The image column may also hold lists of numbers.
    """
    splits = source if isinstance(source, Mapping) else open_hub(str(source), config)
    name = name or (source if isinstance(source, str) else getattr(source, "name", None) or "hub")
    for split in (train, test):
        if split not in splits:
            raise DataMissing(
                f"{name}: no split {split}; there is {', '.join(splits)}: name two of them as train and test"
            )
    arrays = decode_splits({"train": splits[train], "test": splits[test]}, image, label, name)
    return from_arrays(
        name,
        *(arrays[f"{split}_{field}"] for split in ("train", "test") for field in ("inputs", "labels")),
        augment=augment,
    )


def open_hub(path: str, config: str | None = None) -> Mapping[str, Any]:
    """The splits at a hub name or folder. Away from the network only what was fetched before is found, and soon."""
    try:
        import datasets
    except ImportError as error:
        raise DataMissing("reading the hub's data sets needs the extra [data]: pip install 'ternfed[data]'") from error
    try:
        if (Path(path) / "dataset_dict.json").is_file():
            return dict(datasets.load_from_disk(path))
        if Path(path).is_dir() or reachable():
            return dict(datasets.load_dataset(path, config))
        with _offline():
            return dict(datasets.load_dataset(path, config))
    except (OSError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise DataMissing(
            f"{path}: neither in this machine's cache nor to be had from the hub ({first_line})"
        ) from error


def decode_splits(splits: Mapping[str, Any], image: str | None, label: str | None, name: str) -> Arrays:
    """inputs and labels of each split as arrays."""
    arrays: Arrays = {}
    for split, rows in splits.items():
        image_column = _column(rows, image, "Image", "image", name)
        label_column = _column(rows, label, "ClassLabel", "label", name)
        if type(rows.features[image_column]).__name__ == "Image":
            arrays[f"{split}_inputs"] = stack_images(row[image_column] for row in rows.select_columns(image_column))
        else:
            arrays[f"{split}_inputs"] = np.asarray(rows.with_format("numpy")[image_column][:])
        arrays[f"{split}_labels"] = np.asarray(rows.with_format("numpy")[label_column][:])
    return arrays


def reachable() -> bool:
    """Whether the hub answers within a few seconds: its own client goes on trying for half a minute per file."""
    from huggingface_hub import constants, get_session

    answered = threading.Event()

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=PATIENCE)
        except Exception:  # the client's errors differ from version to version, and each means: not reachable
            return
        answered.set()

    # A thread, because looking up a name ignores the client's time limit.
    question = threading.Thread(target=ask, daemon=True)
    question.start()
    question.join(PATIENCE)
    return answered.is_set()


@contextmanager
def _offline() -> Iterator[None]:
    """What HF_HUB_OFFLINE=1 sets, for one call: the libraries read the variable only when they are imported."""
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _column(rows: Any, asked: str | None, kind: str, usual: str, name: str) -> str:
    of_kind = [column for column, feature in rows.features.items() if type(feature).__name__ == kind]
    column = asked or (of_kind[0] if of_kind else usual)
    if column not in rows.features:
        raise DataMissing(f"{name}: no column {column}; there is {', '.join(rows.features)}: name one as {usual}")
    return column

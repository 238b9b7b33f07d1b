"""Data sets on disk: parquet in the hub's layout, decoded once and cached; plain arrays that need numpy alone."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ternfed.data.npy import read_npy
from ternfed.data.values import DataMissing, DataSet, Samples
from ternfed.files import replacing

Arrays: TypeAlias = dict[str, "np.ndarray[Any, Any]"]  # train_inputs, train_labels, test_inputs, test_labels

SPLITS = ("train", "test")
FIELDS = tuple(f"{split}_{field}" for split in SPLITS for field in ("inputs", "labels"))
CLIENTS = "train_clients"
"""One more array where it is known whose each training sample is."""


def save_arrays(data: DataSet, folder: Path, parts: int = 1) -> list[Path]:
    """The four arrays as `.npy` files, the training inputs in `parts` of them (`train_inputs.0.npy` …); their paths.

    A fifth where the data set knows whose each training sample is.
    """
    if not 1 <= parts <= len(data.train):
        raise ValueError(f"parts = {parts}: 1 to {len(data.train)} is allowed, the training samples there are")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for split, samples in zip(SPLITS, (data.train, data.test), strict=True):
        pieces = np.array_split(samples.inputs.numpy(), parts if split == "train" else 1)
        files = [(f"{split}_inputs.{i}.npy", piece) for i, piece in enumerate(pieces)]
        if len(files) == 1:
            files = [(f"{split}_inputs.npy", pieces[0])]
        for old in [folder / f"{split}_inputs.npy", *_parts(folder, f"{split}_inputs")]:
            old.unlink(missing_ok=True)  # a division made earlier must not mix with this one
        for name, array in [*files, (f"{split}_labels.npy", samples.labels.numpy())]:
            np.save(folder / name, array)
            written.append(folder / name)
    (folder / f"{CLIENTS}.npy").unlink(missing_ok=True)
    if data.clients is not None:
        np.save(folder / f"{CLIENTS}.npy", data.clients.numpy())
        written.append(folder / f"{CLIENTS}.npy")
    return written


def holds_arrays(folder: Path) -> bool:
    """Whether the folder holds what `save_arrays` writes, or at least its beginning."""
    return (folder / "train_labels.npy").is_file()


def read_arrays(folder: Path) -> Arrays:
    """What `save_arrays` wrote, parts joined; DataMissing names the file that is absent or broken."""
    arrays: Arrays = {}
    for field in (*FIELDS, CLIENTS) if (folder / f"{CLIENTS}.npy").is_file() else FIELDS:
        whole = folder / f"{field}.npy"
        files = [whole] if whole.is_file() else _parts(folder, field)
        if not files or (files != [whole] and [_number(file) for file in files] != list(range(len(files)))):
            found = ", ".join(file.name for file in files) or "nothing"
            raise DataMissing(
                f"{whole}: not there, nor all of its parts (found {found}); write it again with save_arrays"
            )
        try:
            arrays[field] = np.concatenate([read_npy(file) for file in files]) if len(files) > 1 else read_npy(whole)
        except (OSError, ValueError, EOFError) as error:
            raise DataMissing(f"{whole}: cannot be read ({error}); write it again with save_arrays") from error
    for split in SPLITS:
        inputs, labels = arrays[f"{split}_inputs"], arrays[f"{split}_labels"]
        if len(inputs) != len(labels):
            raise DataMissing(
                f"{folder}: {len(inputs)} {split} inputs for {len(labels)} labels, so a part is absent; "
                "write it again with save_arrays"
            )
    return arrays


def read_parquet(files: dict[str, list[Path]], image: str, label: str) -> Arrays:
    """Images (bytes of PNG, WebP, …) and labels of the hub's parquet files, decoded."""
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataMissing("reading parquet files needs the extra [data]: pip install 'ternfed[data]'") from error
    arrays: Arrays = {}
    for split, paths in files.items():
        tables = []
        for path in paths:
            try:
                tables.append(parquet.read_table(path, columns=[image, label]))
            except (OSError, ValueError, KeyError) as error:
                first_line = str(error).partition("\n")[0]
                raise DataMissing(
                    f"{path}: no parquet file with the columns {image} and {label} ({first_line}); fetch it again"
                ) from error
        blobs = (blob.as_py() for table in tables for chunk in table[image].chunks for blob in chunk.field("bytes"))
        arrays[f"{split}_inputs"] = stack_images(open_image(blob) for blob in blobs)
        arrays[f"{split}_labels"] = np.concatenate([table[label].to_numpy() for table in tables]).astype(np.int64)
    return arrays


def read_columns(folder: Path) -> Arrays:
    """The columns `inputs` (lists of numbers), `label` and, maybe, `client` of `train*.parquet` and `test*.parquet`."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataMissing("reading parquet files needs the extra [data]: pip install 'ternfed[data]'") from error
    arrays: Arrays = {}
    for split in SPLITS:
        paths = sorted(folder.glob(f"{split}*.parquet"))
        if not paths:
            raise DataMissing(f"{folder}: holds no {split}*.parquet; train*.parquet and test*.parquet are needed")
        try:
            table = arrow.concat_tables([parquet.read_table(path) for path in paths])
        except (OSError, ValueError) as error:
            first_line = str(error).partition("\n")[0]
            raise DataMissing(f"{folder}: its {split} files cannot be read ({first_line})") from error
        for column, field in (("inputs", "inputs"), ("label", "labels"), ("client", "clients")):
            if column in table.column_names:
                arrays[f"{split}_{field}"] = np.asarray(table[column].to_pylist())
            elif column != "client":
                raise DataMissing(
                    f"{folder}: its {split} files have no column {column}; there is {', '.join(table.column_names)}"
                )
    arrays.pop("test_clients", None)
    return arrays


def open_image(blob: bytes) -> Any:
    """A picture from the bytes of its file."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataMissing("decoding images needs the extra [data]: pip install 'ternfed[data]'") from error
    return Image.open(io.BytesIO(blob))


def stack_images(images: Iterable[Any]) -> np.ndarray[Any, Any]:
    """Pictures of one size as N×C×H×W uint8: one channel when the first is grey, three when it is in colour."""
    stacked: list[np.ndarray[Any, Any]] = []
    mode = None
    for image in images:
        mode = mode or ("L" if image.mode in ("1", "L") else "RGB")
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
        if stacked and pixels.shape != stacked[0].shape:
            raise ValueError(
                f"image {len(stacked)} is {pixels.shape[1]}×{pixels.shape[0]} but the first is "
                f"{stacked[0].shape[1]}×{stacked[0].shape[0]}; bring all images to one size first"
            )
        stacked.append(pixels)
    array = np.stack(stacked)
    return np.ascontiguousarray(array[:, None] if array.ndim == 3 else array.transpose(0, 3, 1, 2))


def cached(name: str, sources: Iterable[Path], decode: Callable[[], Arrays]) -> Arrays:
    """`decode()`, or what it gave the last time for sources of the same content.

    One `.npz` file in the cache folder; reading verifies its checksums, so a damaged one is made again. A cache that
    cannot be written is done without.
    """
    digest = hashlib.blake2b(digest_size=12)
    for source in sources:
        with source.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "blake2b").digest())
    path = cache_folder() / f"{name}-{digest.hexdigest()}.npz"
    try:
        with np.load(path) as stored:
            return {field: stored[field] for field in (*FIELDS, *(n for n in stored.files if n not in FIELDS))}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass
    arrays = decode()
    _write(path, arrays)
    return arrays


def cache_folder() -> Path:
    """TERNFED_CACHE, or `ternfed` in the user's cache folder."""
    own = os.environ.get("TERNFED_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ternfed"


def as_samples(arrays: Arrays) -> tuple[Samples, Samples]:
    """(train, test) around the arrays' own memory."""
    train, test = (
        Samples(
            torch.from_numpy(arrays[f"{split}_inputs"]), torch.from_numpy(arrays[f"{split}_labels"].astype(np.int64))
        )
        for split in SPLITS
    )
    return train, test


def _write(path: Path, arrays: Arrays) -> None:
    """Whole or not at all: another process never sees half a file."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]


def _parts(folder: Path, field: str) -> list[Path]:
    return sorted((file for file in folder.glob(f"{field}.*.npy") if file.suffixes[0][1:].isdigit()), key=_number)


def _number(file: Path) -> int:
    return int(file.suffixes[0][1:])

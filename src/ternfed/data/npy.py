"""Arrays of `.npy` and `.npz` files of anyone's making: what a header claims is held to what the file has."""

from __future__ import annotations

import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

MOST_UNPACKED, MOST_RATIO = 1 << 30, 100
"""An array of more bytes than the first must not be packed smaller than by the second."""
KINDS = "biuf"
"""Truth values, whole numbers, floats."""


def read_npy(path: Path) -> np.ndarray[Any, Any]:
    """The array of a `.npy` file; ValueError or OSError, in one sentence, where it is none."""
    with path.open("rb") as stream:
        return _array(stream, path.stat().st_size, str(path))


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a `.npz` file by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {info.filename.removesuffix(".npy"): _member(archive, info, path) for info in archive.infolist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError) as error:
        raise ValueError(f"{path}: is no .npz file ({type(error).__name__})") from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> np.ndarray[Any, Any]:
    if info.file_size > MOST_UNPACKED and info.file_size > MOST_RATIO * info.compress_size:
        raise ValueError(f"{path}: an array of {info.file_size} bytes is packed in {info.compress_size}")
    with archive.open(info) as stream:
        return _array(stream, info.file_size, str(path))


def _array(stream: IO[bytes], size: int, where: str) -> np.ndarray[Any, Any]:
    try:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version}")
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
    except Exception as error:  # numpy reads headers with Python's own parser, which fails in many ways
        raise ValueError(f"{where}: is no .npy file ({type(error).__name__})") from error
    if dtype.kind not in KINDS or dtype.hasobject:
        raise ValueError(f"{where}: holds {str(dtype)[:40]}; numbers are needed")
    if not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"{where}: claims a shape that no array has")
    needed = prod(shape) * dtype.itemsize
    if needed > size:
        raise ValueError(f"{where}: claims {needed} bytes of numbers, and has {size} in all")
    data = stream.read(needed)
    if len(data) != needed:
        raise ValueError(f"{where}: ends within its numbers")
    try:
        flat = np.frombuffer(bytearray(data), dtype)
        return flat.reshape(shape[::-1]).T if by_columns else flat.reshape(shape)
    except ValueError as error:
        raise ValueError(f"{where}: claims a shape that no array has") from error

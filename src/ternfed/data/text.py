"""Text as sequences of characters: a folder with one `.txt` file per client.

The last tenth of each file is test data. The vocabulary is that of all training parts, sorted; its first id, 0, stands
for any other character. A sequence is `length` characters, its targets the characters that follow them one by one. What
is left at the end of a part, fewer characters than a sequence needs, is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ternfed.data.values import DataMissing, DataSet, Samples

LENGTH = 80
"""Characters of a sequence, as in the first experiments with Shakespeare's roles (McMahan et al. 2017)."""


def read_text(files: Sequence[Path], name: str, length: int = LENGTH) -> DataSet:
    """The data set of these files, one per client in this order."""
    parts = {file: _cut(_characters(file)) for file in files}
    known = np.unique(np.concatenate([train for train, _ in parts.values()]))
    train, test, owners = [], [], []
    for client, (file, (first, last)) in enumerate(parts.items()):
        pieces = _sequences(_ids(first, known), length)
        if len(pieces) == 0:
            raise ValueError(
                f"{file}: its {len(first)} training characters make no sequence of {length}; leave the file out, "
                "or lower data.length"
            )
        train.append(pieces)
        test.append(_sequences(_ids(last, known), length))
        owners.append(np.full(len(pieces), client, np.int64))
    held = np.concatenate(test)
    if len(held) == 0:
        raise ValueError(f"{name}: no file's last tenth makes a sequence of {length}; lower data.length")
    clients = torch.from_numpy(np.concatenate(owners))
    samples, tests = _samples(np.concatenate(train)), _samples(held)
    count = len(known) + 1
    return DataSet(name, samples, tests, count, (0.0,), (1.0,), clients=clients, vocabulary=count)


def vocabulary(files: Sequence[Path]) -> str:
    """The characters of the ids from 1 on."""
    return "".join(map(chr, np.unique(np.concatenate([_cut(_characters(file))[0] for file in files]))))


def text_files(folder: Path) -> list[Path]:
    """A folder's clients, in the order of their names."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise DataMissing(f"{folder}: holds no .txt files; one for each client is needed")
    return files


def _characters(file: Path) -> np.ndarray[Any, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataMissing(f"{file}: is not UTF-8 ({error.reason}); save it as UTF-8") from error
    except OSError as error:
        raise DataMissing(f"{file}: cannot be read ({error.strerror})") from error
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _cut(characters: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(for training, the last tenth for tests)."""
    at = len(characters) - len(characters) // 10
    return characters[:at], characters[at:]


def _ids(characters: np.ndarray[Any, Any], known: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    places = np.searchsorted(known, characters).clip(max=len(known) - 1)
    return np.where(known[places] == characters, places + 1, 0)


def _sequences(ids: np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """(sequences, length + 1): each begins with the character that the one before ends with."""
    count = max(len(ids) - 1, 0) // length
    pieces: np.ndarray[Any, Any] = ids[np.arange(count)[:, None] * length + np.arange(length + 1)]
    return pieces


def _samples(pieces: np.ndarray[Any, Any]) -> Samples:
    both = torch.from_numpy(pieces.astype(np.int64))
    return Samples(both[:, :-1].contiguous(), both[:, 1:].contiguous())

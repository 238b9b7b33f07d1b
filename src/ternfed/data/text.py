"""Text as sequences of characters, or of a tokenizer's tokens: a folder with one `.txt` file per client.

The last tenth of each file is test data. The vocabulary is that of all training parts, sorted; its first id, 0, stands
for any other character. A tokenizer's file (`tokenizers`, JSON) brings its own. A sequence is `length` characters or
tokens, its targets those that follow them one by one. What is left at the end of a part, fewer than a sequence needs,
is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from ternfed.data.values import DataMissing, DataSet, Samples

_Letters: TypeAlias = "np.ndarray[Any, Any]"
Encode: TypeAlias = Callable[[_Letters], _Letters]
"""Characters ─▶ ids."""

LENGTH = 80
"""Characters of a sequence, as in the first experiments with Shakespeare's roles (McMahan et al. 2017)."""


def read_text(
    files: Sequence[Path],
    name: str,
    length: int = LENGTH,
    tokenizer: Path | None = None,
    characters: str | None = None,
) -> DataSet:
    """The data set of these files, one per client in this order.

    `characters` are those of a larger whole that the files are a part of: what their ids mean there, they mean here.
    """
    parts = {file: _cut(_characters(file)) for file in files}
    unit = "characters" if tokenizer is None else "tokens"
    if tokenizer is None:
        letters = _letters_of(parts.values()) if characters is None else _sorted(characters)
        encode: Encode = partial(ids_of, known=letters)
        count, characters = len(letters) + 1, _text(letters)
    else:
        (encode, count), characters = _by_tokenizer(tokenizer), None
    train, test, owners = [], [], []
    for client, (file, (first, last)) in enumerate(parts.items()):
        ids = encode(first)
        pieces = _sequences(ids, length)
        if len(pieces) == 0:
            raise ValueError(
                f"{file}: its {len(ids)} training {unit} make no sequence of {length}; leave the file out, "
                "or lower data.length"
            )
        train.append(pieces)
        test.append(_sequences(encode(last), length))
        owners.append(np.full(len(pieces), client, np.int64))
    held = np.concatenate(test)
    if len(held) == 0:
        raise ValueError(f"{name}: no file's last tenth makes a sequence of {length}; lower data.length")
    clients = torch.from_numpy(np.concatenate(owners))
    samples, tests = _samples(np.concatenate(train)), _samples(held)
    return DataSet(name, samples, tests, count, (0.0,), (1.0,), None, clients, count, characters)


def _letters_of(parts: Iterable[tuple[_Letters, _Letters]]) -> _Letters:
    """The characters of all training parts."""
    return np.unique(np.concatenate([train for train, _ in parts]))


def _sorted(characters: str) -> _Letters:
    """A vocabulary as `ids_of` takes it."""
    return np.unique(np.frombuffer(characters.encode("utf-32-le"), np.uint32))


def _by_tokenizer(file: Path) -> tuple[Encode, int]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataMissing(f"data.tokenizer = {file}: needs the extra [text]: pip install 'ternfed[text]'") from error
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower one
        raise DataMissing(f"data.tokenizer = {file}: is no file of a tokenizer ({error})") from error

    def encode(characters: _Letters) -> _Letters:
        return np.array(tokenizer.encode(_text(characters), add_special_tokens=False).ids, np.int64)

    return encode, int(tokenizer.get_vocab_size())


def vocabulary(files: Sequence[Path]) -> str:
    """The characters of the ids from 1 on."""
    return _text(_letters_of(_cut(_characters(file)) for file in files))


def _text(letters: _Letters) -> str:
    return letters.astype("<u4").tobytes().decode("utf-32-le")


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


def ids_of(characters: np.ndarray[Any, Any], known: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The place of each character among the known ones, from 1 on; 0 for any other."""
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

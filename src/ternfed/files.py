"""Files written whole or not at all; tensors with facts beside them (safetensors); JSON pages and lines."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save, save_file
from torch import Tensor

KEY = "ternfed"
"""The one metadata key of a file of ours: safetensors writes several in no fixed order."""


def write_atomically(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """A file's new content, whole or not at all; `lasting`: a power cut leaves the old or the new one, too."""
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as stream:
        stream.write(data)
        stream.flush()
        if lasting:
            os.fsync(stream.fileno())
    part.replace(path)


def check_writable(path: Path) -> None:
    """ValueError with one sentence where a file cannot be written there: to be asked before hours of work."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror}); name another place") from error


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose content becomes the file in the end, nothing after an error.

    Its temporary file has a name of its own: several processes may do this with one file at the same time.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as stream:
        part = Path(stream.name)
        try:
            yield stream
            stream.close()
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def append_line(path: Path, line: bytes, *, lasting: bool = True) -> None:
    """Add a line to a file; `lasting`: it is on the disk when this returns."""
    with path.open("ab") as stream:
        stream.write(line)
        stream.flush()
        if lasting:
            os.fsync(stream.fileno())


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file but for one that a killed process left half written; none where there is no file."""
    data = path.read_bytes() if path.exists() else b""
    yield from (line for line in data.splitlines(keepends=True) if line.endswith(b"\n"))


def as_line(values: Mapping[str, Any]) -> bytes:
    """One line of JSON. It has no word for a number that is not finite: ValueError."""
    return json.dumps(values, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def json_page(values: Any) -> bytes:
    """JSON that a person may read."""
    return json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False).encode() + b"\n"


def read_json(path: Path) -> Any:
    """What a JSON file holds; None where there is none that can be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def save_tensors(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """Tensors and facts as safetensors: the same bytes for the same content."""
    return save(_separate(tensors), metadata(facts))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, lasting: bool = True) -> None:
    """The same as a file, whole or not at all, without a copy of the tensors in memory."""
    part = path.with_name(f"{path.name}.part")
    part.touch()
    mode = part.stat().st_mode
    try:
        save_file(_separate(tensors), part, metadata(facts))
    except SafetensorError as error:  # which says what the system said in words alone
        found = re.search(r"os error (\d+)", str(error))
        number = int(found[1]) if found else 0
        raise OSError(number, os.strerror(number) if found else str(error)) from error
    part.chmod(mode)  # safetensors makes files that nobody else can read
    if lasting:
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())
    part.replace(path)


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in the order of their names, as safetensors takes them."""
    seen: set[int] = set()
    separate: dict[str, Tensor] = {}
    for name, tensor in sorted(tensors.items()):
        tensor = tensor.detach().cpu().contiguous()
        # safetensors refuses tensors that share memory.
        separate[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in seen else tensor
        seen.add(tensor.untyped_storage().data_ptr())
    return separate


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of a safetensors file; ValueError where it is none, OSError where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as stream:
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
            return tensors, facts_of(stream.metadata())
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def tensors_in(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the facts of what `save_tensors` made; ValueError where it is no such thing."""
    try:
        length = int.from_bytes(data[:8], "little")
        return load(data), facts_of(json.loads(data[8 : 8 + length]).get("__metadata__"))
    except SafetensorError as error:
        raise ValueError(str(error)) from error


MOST_SHOWN = 200


def shown_name(text: str) -> str:
    """A text out of a file as an error may say it: on one line, not long, and nothing that a terminal obeys."""
    plain = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[: MOST_SHOWN + 1]
    )
    return plain if len(plain) <= MOST_SHOWN else f"{plain[:MOST_SHOWN]}…"


def metadata(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as a file's metadata."""
    return {KEY: json.dumps(facts, sort_keys=True)}


def facts_of(metadata: Mapping[str, str] | None) -> dict[str, Any]:
    """The facts in a file's metadata; none where it was not written here."""
    try:
        facts = json.loads((metadata or {}).get(KEY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}

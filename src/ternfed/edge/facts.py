"""What a model file says about itself, looked at before any of it is believed: whoever made the file wrote it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ternfed.edge.inputs import Inputs, ModelError
from ternfed.files import shown_name

MOST_CLASSES = 1 << 24
MOST_NUMBERS = 1 << 28
"""Of one sample."""
MOST_DIMENSIONS = 8


class _Entry(NamedTuple):
    holds: Callable[[Any], bool]
    wanted: str


def _is_whole(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


ENTRIES: Mapping[str, _Entry] = {
    "classes": _Entry(lambda v: _is_whole(v, MOST_CLASSES), f"a whole number up to {MOST_CLASSES}"),
    "digest": _Entry(_is_text, "text"),
    "float": _Entry(lambda v: _is_table(v) and all(map(_is_text, v.values())), "names with reasons"),
    "inputs": _Entry(_is_table, "a table"),
    "round": _Entry(lambda v: v is None or _is_whole(v, 1 << 53), "a whole number"),
    "settings": _Entry(lambda v: v is None or _is_table(v), "a table"),
    "ternary": _Entry(lambda v: isinstance(v, list) and all(map(_is_text, v)), "a list of names"),
}
"""What `Trained.facts` always writes; beside it stand the score, and the task where it is no classification."""


def checked(facts: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The facts of a file that `export` wrote; ModelError where one is missing, or is something else."""
    for key, entry in ENTRIES.items():
        if key not in facts:
            raise ModelError(f"{path}: was not written by ternfed export; export the run folder instead")
        if not entry.holds(facts[key]):
            raise _wrong(path, key, facts[key], entry.wanted)
    if not _is_text(facts.get("task", "")):
        raise _wrong(path, "task", facts["task"], "text")
    inputs_of(facts, path)
    return facts


def inputs_of(facts: Mapping[str, Any], path: Path) -> Inputs:
    """One sample as the facts describe it."""
    table, vocabulary = facts["inputs"], facts["inputs"].get("vocabulary")
    shape, mean, std = (table.get(key) for key in ("shape", "mean", "std"))
    if not (
        isinstance(shape, list | tuple)
        and len(shape) <= MOST_DIMENSIONS
        and all(_is_whole(length, MOST_NUMBERS) for length in shape)
        and math.prod(shape) <= MOST_NUMBERS
    ):
        raise _wrong(path, "inputs.shape", shape, f"at most {MOST_DIMENSIONS} lengths, {MOST_NUMBERS} numbers in all,")
    for key, values in (("mean", mean), ("std", std)):
        lengths = (1, shape[0]) if shape else (1,)
        if not (isinstance(values, list | tuple) and all(map(_is_number, values)) and len(values) in lengths):
            raise _wrong(path, f"inputs.{key}", values, "one finite number, or one per channel,")
    if not all(value > 0 for value in std):
        raise _wrong(path, "inputs.std", std, "a number above 0")
    if table.get("dtype") not in ("uint8", "int64", "float32"):
        raise _wrong(path, "inputs.dtype", table.get("dtype"), "uint8, int64 or float32")
    if vocabulary is not None and not _is_whole(vocabulary, MOST_CLASSES):
        raise _wrong(path, "inputs.vocabulary", vocabulary, f"a whole number up to {MOST_CLASSES}")
    return Inputs(tuple(shape), table["dtype"], tuple(mean), tuple(std), vocabulary)


def score_of(facts: Mapping[str, Any], metric: str, path: Path) -> float | None:
    """The score that a file states; None where it states none."""
    score = facts.get(metric)
    if score is not None and not _is_number(score):
        raise _wrong(path, metric, score, "a finite number")
    return None if score is None else float(score)


def _wrong(path: Path, key: str, value: Any, wanted: str) -> ModelError:
    return ModelError(f"{path}: says {key} = {shown_name(repr(value))}, where {wanted} is needed; the file was changed")

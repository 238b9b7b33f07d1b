"""What a client takes from its server, and what it must look like. The server is not trusted with this machine.

    run           a name by which the client keeps its memory: 16 hexadecimal digits, so that it is no path
    experiment    TOML, at most 256 KiB; code and files that it names must be allowed by the client's own user
    frozen        the digest of weights that do not travel: nothing, or 64 hexadecimal digits; it is only compared
    outline       of the server's data, JSON, at most 256 KiB: two numbers, and the letters that token ids stand for
    group         the round of a message, `7` or `7/held-3`, or `end` (`client_round.RoundRequest`)
    message       bytes, read by the wire format, which names what is wrong with them (`ternfed.wire`)
    words         in answers, errors and dates: shown, shortened, without control characters; never obeyed

All else that Flower brings along is not looked at: apps are neither installed nor run, and redirections not followed.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ternfed.data.values import Outline
from ternfed.experiment.experiment import ExperimentError
from ternfed.experiment.settings import shown
from ternfed.named_function import code_in, is_folder

RUN = re.compile(r"[0-9a-f]{16}")
DIGEST = re.compile(r"([0-9a-f]{64})?")
TEXT = 256 << 10
"""Bytes of an experiment, at most."""
FILES = (("model", "weights"), ("data", "dataset"), ("data", "tokenizer"))
"""The settings of an experiment that may name a file or folder: (section, key)."""
MOST = 1 << 31
"""Classes or token ids, fewer than that."""
LINE = 400
"""Characters of what a server says, at most."""


class WrongRun(ValueError):
    """A server that describes its run as no ternfed server does."""


class RunTerms(NamedTuple):
    """A run, as its server describes it."""

    run: str
    experiment: str
    frozen: str
    outline: Outline | None = None
    """Of the server's data; None where it says nothing of it."""


def read_terms(config: Mapping[str, Any], allowed: Collection[str], unread: Collection[str] = ()) -> RunTerms:
    """The run that a server describes; WrongRun where it is malformed, ExperimentError where it names files.

    `allowed` is what the client's user allows an experiment to name, `unread` the settings that this client does not
    follow.
    """
    run, text, frozen = config.get("run"), config.get("experiment"), config.get("frozen", "")
    if not isinstance(run, str) or not RUN.fullmatch(run):
        raise WrongRun(f"run = {_cut(run)}: 16 hexadecimal digits are needed")
    if not isinstance(frozen, str) or not DIGEST.fullmatch(frozen):
        raise WrongRun(f"frozen = {_cut(frozen)}: 64 hexadecimal digits are needed, or none")
    if not isinstance(text, str) or len(text.encode("utf-8", "replace")) > TEXT:
        raise WrongRun(f"experiment: TOML of at most {TEXT} bytes is needed")
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise WrongRun(f"experiment: is no TOML ({_cut(str(error))})") from error
    for key, name in files_in(table):
        if name not in allowed and key not in unread:
            raise ExperimentError(
                f"{key} = {shown(name)}: the server names a file of this machine; "
                f"start the client with --allow {name} where it is meant to be read"
            )
    return RunTerms(run, text, frozen, _outline(config.get("outline", "")))


def files_in(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(setting, name) for each file or folder that an experiment's table names."""
    for section, key in FILES:
        part = table.get(section)
        name = part.get(key) if isinstance(part, Mapping) else None
        if name is not None and name != "none" and (key != "dataset" or is_folder(str(name))):
            yield f"{section}.{key}", str(name)


def named_in(table: Mapping[str, Any]) -> tuple[str, ...]:
    """All that a client's user must allow for this experiment: modules and files."""
    return *(module for _, _, module in code_in(table)), *(name for _, name in files_in(table))


def _outline(text: object) -> Outline | None:
    if text == "":
        return None
    if not isinstance(text, str) or len(text) > TEXT:
        raise WrongRun(f"outline: JSON of at most {TEXT} letters is needed")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongRun(f"outline: is no JSON ({_cut(str(error))})") from error
    if not isinstance(told, dict) or set(told) != set(Outline._fields):
        raise WrongRun(f"outline: {', '.join(Outline._fields)} are needed")
    for key, least in (("classes", 1), ("vocabulary", 0)):
        value = told[key]
        is_count = isinstance(value, int) and not isinstance(value, bool) and least <= value < MOST
        if not is_count and (key == "classes" or value is not None):
            raise WrongRun(f"outline: {key} = {_cut(value)}: a whole number from {least} to below {MOST} is needed")
    letters = told["characters"]
    if letters is not None and (not isinstance(letters, str) or not letters or not _is_text(letters)):
        raise WrongRun(f"outline: characters = {_cut(letters)}: text is needed, or nothing")
    return Outline(**told)


def _is_text(letters: str) -> bool:
    return not any(0xD800 <= ord(letter) < 0xE000 for letter in letters)  # halves of characters, which JSON can hold


def plain(words: str) -> str:
    """A server's words on one line of a terminal, and not many of them."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())[:LINE]


def _cut(value: object) -> str:
    return repr(value)[:60]

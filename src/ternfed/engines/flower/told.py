"""What a client takes from its server, and what it must look like. The server is not trusted with this machine.

    run           a name by which the client keeps its memory: 16 hexadecimal digits, so that it is no path
    experiment    TOML, at most 256 KiB; code and files that it names must be allowed by the client's own user
    frozen        the digest of weights that do not travel: nothing, or 64 hexadecimal digits; it is only compared
    group         the round of a message, `7` or `7/held-3`, or `end` (`client_round.RoundRequest`)
    message       bytes, read by the wire format, which names what is wrong with them (`ternfed.wire`)
    words         in answers, errors and dates: shown, shortened, without control characters; never obeyed

All else that Flower brings along is not looked at: apps are neither installed nor run, and redirections not followed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ternfed.data.sets import FOLDERS
from ternfed.experiment.experiment import ExperimentError
from ternfed.experiment.settings import shown

RUN = re.compile(r"[0-9a-f]{16}")
DIGEST = re.compile(r"([0-9a-f]{64})?")
TEXT = 256 << 10
"""Bytes of an experiment, at most."""
LINE = 400
"""Characters of what a server says, at most."""


class WrongRun(ValueError):
    """A server that describes its run as no ternfed server does."""


class RunTerms(NamedTuple):
    """A run, as its server describes it."""

    run: str
    experiment: str
    frozen: str


def read_terms(config: Mapping[str, Any], allowed: Collection[str]) -> RunTerms:
    """The run that a server describes; WrongRun where it is malformed, ExperimentError where it names files.

    `allowed` is what the client's user allows an experiment to name.
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
    for section, key in (("model", "weights"), ("data", "dataset")):
        part = table.get(section, {})
        name = part.get(key) if isinstance(part, dict) else None
        is_file = key == "weights" or str(name).partition(":")[0] in FOLDERS
        if name is not None and is_file and name not in allowed:
            raise ExperimentError(
                f"{section}.{key} = {shown(str(name))}: the server names a file of this machine; "
                f"start the client with --allow {name} where it is meant to be read"
            )
    return RunTerms(run, text, frozen)


def plain(words: str) -> str:
    """A server's words on one line of a terminal, and not many of them."""
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())[:LINE]


def _cut(value: object) -> str:
    return repr(value)[:60]

"""Heads of HTTP/1.1 requests and answers, as far as SuperNode and SuperLink use them; anything else is refused."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import NamedTuple

from ternfed.engines.flower.adapter import PUBLIC_KEY_HEADER


class Closed(Exception):
    """The peer is gone, or said something that no SuperNode says."""


class Head(NamedTuple):
    path: bytes
    length: int
    key: bytes


def read_request(head: bytes) -> Head:
    """The head of a request as SuperNodes send it; everything else ends the connection."""
    first, *lines = head[:-4].split(b"\r\n")
    words = first.split(b" ")
    fields = _fields(lines)
    if len(words) != 3 or words[0] != b"POST" or words[2] != b"HTTP/1.1" or b"transfer-encoding" in fields:
        raise Closed
    return Head(words[1], _length(fields), _key(fields.get(PUBLIC_KEY_HEADER, b"")))


def readdressed(head: bytes, path: bytes, length: int) -> bytes:
    """The head of a request as that of another, by the same sender."""
    _, *lines = head[:-4].split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(b"content-length:")]
    return b"\r\n".join([b"POST %s HTTP/1.1" % path, *kept, b"content-length: %d" % length]) + b"\r\n\r\n"


def read_answer(head: bytes) -> tuple[int, int]:
    first, *lines = head[:-4].split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise Closed
    return int(words[1]), _length(_fields(lines))


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or (name in fields and name in (b"content-length", PUBLIC_KEY_HEADER)):
            raise Closed
        fields[name] = value.strip()
    return fields


def _length(fields: Mapping[bytes, bytes]) -> int:
    text = fields.get(b"content-length", b"")
    if not (text.isdigit() and len(text) < 12):
        raise Closed
    return int(text)


def _key(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""

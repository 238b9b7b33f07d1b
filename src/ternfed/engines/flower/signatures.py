"""Who calls: a client signs the time of each call with its key, and the door knows the registered keys.

TLS keeps the rest of a call together with its signature: nobody else sees one, and nobody can change what it stands in.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ternfed.engines.flower.adapter import (
    MOST_AHEAD,
    MOST_BEHIND,
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
)
from ternfed.engines.flower.errors import NetworkError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?\+00:00")


class Signed(NamedTuple):
    """A caller whose signature holds, and the fields that say so, written anew."""

    client: int
    fields: dict[str, str]


def read_private_key(file: Path) -> EllipticCurvePrivateKey:
    """A client's private key."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    try:
        key = s.load_ssh_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise NetworkError(f"{file}: is no private key in OpenSSH format ({error})") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise NetworkError(f"{file}: is no private key on an elliptic curve")
    return key


def sign(key: EllipticCurvePrivateKey, at: datetime | None = None) -> dict[str, str]:
    """The fields of a call, as a SuperNode makes them."""
    from cryptography.hazmat.primitives import serialization as s

    time = (at or datetime.now(UTC)).isoformat()
    public = key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    return _fields(public, time, key.sign(time.encode("ascii"), _scheme()))


def verify(fields: Mapping[bytes, bytes], clients: Mapping[bytes, int]) -> Signed | None:
    """Whose call this is; None where the key is not registered, the time is not now, or the signature is not its."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        public, signature = (
            base64.b64decode(fields[name], validate=True) for name in (PUBLIC_KEY_HEADER, SIGNATURE_HEADER)
        )
        client, time = clients[public], fields[TIMESTAMP_HEADER].decode("ascii")
        if not TIME.fullmatch(time):
            return None
        age = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
        if not -MOST_AHEAD < age < MOST_BEHIND:
            return None
        key: Any = load_pem_public_key(public)
        key.verify(signature, time.encode("ascii"), _scheme())
    except (KeyError, ValueError, InvalidSignature):
        return None
    return Signed(client, _fields(public, time, signature))


def _fields(public: bytes, time: str, signature: bytes) -> dict[str, str]:
    return {
        PUBLIC_KEY_HEADER.decode(): base64.b64encode(public).decode(),
        TIMESTAMP_HEADER.decode(): time,
        SIGNATURE_HEADER.decode(): base64.b64encode(signature).decode(),
    }


def _scheme() -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(hashes.SHA256())

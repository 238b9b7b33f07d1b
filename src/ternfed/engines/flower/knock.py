"""A client asks a server's door whether it may come in, before Flower does and whenever Flower was sent away.

Flower retries most errors and ends at others without a word. A TLS handshake and one small request tell exactly what
is wrong: the certificate, the key, or the clock.
"""

from __future__ import annotations

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from ternfed.engines.flower.adapter import MOST_AHEAD, MOST_BEHIND
from ternfed.engines.flower.errors import InUse, Refused
from ternfed.engines.flower.signatures import sign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

KNOCK = "/v1/ternfed/knock"
"""Answered by the door itself: 200 for a registered key, 401 for any other, 409 where a process with it is there."""
PATIENCE = 10.0
"""Seconds to wait for an answer."""
NOT_NOW = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or not any more."""
OTHER_NAME = (62, 64)
"""And for one of another host name or address."""


def knock(server: str, context: ssl.SSLContext, key: EllipticCurvePrivateKey) -> str | None:
    """None where this client may come in; else why the server cannot be asked now. Refused where it may not."""
    connection = http.client.HTTPSConnection(server, timeout=PATIENCE, context=context)
    sent = time.time()
    try:
        connection.request("POST", KNOCK, b"", sign(key))
        answer = connection.getresponse()
    except ssl.SSLCertVerificationError as error:
        raise Refused(_certificate_reason(error, connection.host)) from error
    except (OSError, http.client.HTTPException) as error:  # a handshake that broke off is no refusal either
        return str(error) or type(error).__name__
    finally:
        connection.close()
    check_clock(answer.headers.get("date"), sent, time.time())  # first: with a wrong clock no signature holds
    if answer.status == http.client.UNAUTHORIZED:
        raise Refused("the server does not know this client's key; register its .pub file there")
    if answer.status == http.client.CONFLICT:
        raise InUse("another process is connected with this client's key; each client needs a key of its own")
    return None if answer.status == http.client.OK else f"it answers {answer.status}"


def check_clock(date: str | None, sent: float, received: float) -> None:
    """Refused where Flower would not accept this machine's signature, because it holds the time of signing."""
    try:
        there = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return
    ahead, behind = sent - (there + 1), there - received  # at least so much, because dates are whole seconds
    if ahead > MOST_AHEAD:
        raise Refused(f"this machine's clock is {ahead:.0f} s ahead of the server's; {MOST_AHEAD} s are accepted")
    if behind > MOST_BEHIND:
        raise Refused(f"this machine's clock is {behind:.0f} s behind the server's; {MOST_BEHIND} s are accepted")


def _certificate_reason(error: ssl.SSLCertVerificationError, host: str) -> str:
    if error.verify_code in OTHER_NAME:
        return f"the server's certificate is not for {host}; it is made with: ternfed certs init DIR --host {host}"
    if error.verify_code in NOT_NOW:
        return f"the server's certificate is not valid now ({error.verify_message}); are both clocks right?"
    return "the server's certificate is not from the authority in ca.crt"

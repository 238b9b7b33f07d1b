"""Requests that two readers read in two ways (tests/attacks/heads), against the door and both parsers of uvicorn.

Whatever is sent, behind the door there arrive only calls of the list, in a form of our own, from the signer.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import h11
from behind import Opened, filled, forged, open_door, pull_of, send_raw

from ternfed.engines.flower import adapter
from ternfed.engines.flower.certs import Certificates, make_certificates
from ternfed.engines.flower.door import Refusal, read_head, read_length

HEADS = {
    file.stem: file.read_bytes() for file in sorted((Path(__file__).parents[2] / "attacks" / "heads").glob("*.http"))
}
MARK = "flwr-component-name"
"""A field that the door hands on: by it a request is known again behind the door."""
FIELDS = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-type", "content-length"}
FIELDS |= {name.decode() for name in (*adapter.VERSION_HEADERS, adapter.PUBLIC_KEY_HEADER)}
FIELDS |= {name.decode() for name in (adapter.TIMESTAMP_HEADER, adapter.SIGNATURE_HEADER)}
PLAIN = (
    "pipelined-many",
    "pipelined-control",
    "folded-value",
    "expects-continue",
    "forwarded",
    "two-lengths-the-same",
)
"""What is lawful up to its first calls, and comes through."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("smuggling") / "certs", [], 2)


async def send_all(opened: Opened, requests: dict[str, bytes]) -> None:
    context = opened.certificates.client_context()
    crowd = asyncio.Semaphore(24)

    async def one(data: bytes) -> None:
        async with crowd:
            await send_raw(opened.gate.port, context, data, 1.5)

    await asyncio.gather(*map(one, requests.values()))


@pytest.mark.parametrize("parser", ["h11", "httptools"])
def test_nothing_is_smuggled_past_the_door(made: Certificates, parser: str) -> None:
    with open_door(made, parser) as opened:
        body, signed = pull_of(0), opened.signed(0)
        asyncio.run(send_all(opened, {n: filled(h, {**signed, MARK: n}, body) for n, h in HEADS.items()}))
        arrived = list(opened.behind.arrived)
        opened.behind.arrived.clear()
        asyncio.run(send_all(opened, {n: filled(h, forged({**signed, MARK: n}), body) for n, h in HEADS.items()}))
        unsigned = list(opened.behind.arrived)
        assert opened.caller(0).call(adapter.PULL, body) == 200, "the door is shut"
    assert {(each.method, each.path, each.body) for each in arrived} == {("POST", adapter.PULL, body)}
    for each in arrived:
        assert set(each.fields) <= FIELDS, each.fields.get(MARK)
        assert each.fields["content-length"] == str(len(body))
        assert {name: each.fields[name] for name in signed} == signed
    names = [each.fields.get(MARK, "") for each in arrived]
    assert all(names.count(name) <= HEADS[name].count(b"POST /v1/fleet/pull-messages HTTP") for name in set(names))
    assert set(PLAIN) <= set(names)
    assert unsigned == [], "with a signature that is none, something came through"


def test_the_corpus_bites_where_heads_are_passed_on_as_they_came(made: Certificates) -> None:
    # What the first gate did: it found the end of a head by itself, and sent the bytes on.
    with open_door(made, "h11") as opened:
        data = filled(HEADS["bare-lf-ends-the-head"], forged(opened.signed(0)), pull_of(0))
        asyncio.run(send_raw(opened.behind.address[1], made.client_context(), data, 2.0))
        assert "/v1/control/stop-run" in [each.path for each in opened.behind.arrived]


def scope_of(data: bytes) -> dict[str, Any]:
    """The head in these bytes as uvicorn hands it to the door; RemoteProtocolError where there is none."""
    connection = h11.Connection(h11.SERVER, 16 << 10)
    connection.receive_data(data)
    request = connection.next_event()
    if not isinstance(request, h11.Request):
        raise h11.RemoteProtocolError("no head")
    path, _, query = request.target.partition(b"?")
    return {
        "raw_path": path,
        "query_string": query,
        "method": request.method.decode(),
        "http_version": request.http_version.decode(),
        "headers": [(name.lower(), value) for name, value in request.headers],
    }


def test_mutated_heads_are_refused_by_name_or_are_calls_of_the_list() -> None:
    draw = random.Random(17)
    fields = {name.decode(): "eA==" for name in (adapter.PUBLIC_KEY_HEADER, adapter.SIGNATURE_HEADER)}
    requests = [filled(head, fields, b"body") for head in HEADS.values() if len(head) < 4000]
    ends = {"read": 0, "refused": 0}
    for _ in range(20_000):
        data = bytearray(draw.choice(requests))
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            data[at : at + draw.randint(0, 2)] = draw.choice(
                [b"\n", b"\r\n", b" ", b"\t", b":", b"\0", b"0", b"\xff", b","]
            )
        try:
            path, found = read_head(scope_of(bytes(data)))
            length = read_length(found, adapter.CALLS.get(path, 0))
            assert path in adapter.CALLS
            assert 0 <= length <= adapter.CALLS[path]
            ends["read"] += 1
        except (h11.RemoteProtocolError, Refusal):
            ends["refused"] += 1
    assert min(ends.values()) > 500, ends

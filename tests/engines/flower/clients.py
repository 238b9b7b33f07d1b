"""Clients as real processes, some of them with faults: started by `harness.py`, one line of JSON each on stdin.

Everything is imported once and each client is forked, so that a test with five does not wait for five imports.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ternfed.data.sets import load
from ternfed.engines.flower import adapter, client
from ternfed.engines.flower.certs import Certificates
from ternfed.engines.flower.client_round import ClientSetup
from ternfed.engines.flower.errors import NetworkError
from ternfed.quantize.ternary import Ternary
from ternfed.round.exchange import collect, receive
from ternfed.wire import Message, encode, schema_of

honest = client.work
loaded = {"digits": load("digits")}


def odd(faults: dict[str, str], folder: Path) -> Any:
    """The client's work with a fault in some rounds, or in the next after a file `fault` was put into its folder."""

    def work(site: Any, store: Any, run: str, request: Any, data: bytes) -> bytes:
        fault = faults.get(str(request.round), "")
        if (folder / "fault").exists():
            fault = (folder / "fault").read_text()
            (folder / "fault").unlink()
        if fault == "die":  # as in a power cut: its SuperNode cannot say goodbye either
            subprocess.run(["pkill", "-KILL", "-P", str(os.getpid())], check=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.startswith("sleep"):
            time.sleep(float(fault.split()[1]))
        upload = honest(site, store, run, request, data)
        return forge(fault, site, request, data, upload) if fault in FORGERIES else upload

    return work


def changed(site: Any, upload: bytes, data: bytes, **what: Any) -> bytes:
    """The honest upload, decoded, changed and encoded again: a valid message with a lie in it."""
    broadcast = receive(site.algorithm, data, None)
    message = collect(site.algorithm, upload, broadcast)
    tensors, numbers = dict(message.tensors), {**message.numbers, **what.get("numbers", {})}
    if "scale" in what:
        big = torch.tensor(what["scale"])
        tensors = {n: Ternary(v.codes, big, big) if isinstance(v, Ternary) else v for n, v in tensors.items()}
    if "value" in what:
        name = next(n for n, v in tensors.items() if isinstance(v, torch.Tensor))
        tensors[name] = torch.full_like(tensors[name], what["value"])
    return encode(Message(tensors, numbers), site.algorithm.up[0])


OTHER = Message({"weight": torch.zeros(3)}, {"round": 1.0, "samples": 1.0, "loss": 0.0})
FORGERIES = {
    "random": lambda site, request, data, upload: os.urandom(len(upload)),
    "nothing": lambda site, request, data, upload: b"",
    "truncated": lambda site, request, data, upload: upload[:-1],
    "replayed": lambda site, request, data, upload: changed(site, upload, data, numbers={"round": request.round - 1.0}),
    "huge": lambda site, request, data, upload: changed(site, upload, data, scale=1e6),
    "infinite": lambda site, request, data, upload: changed(site, upload, data, value=float("inf")),
    "heavy": lambda site, request, data, upload: changed(site, upload, data, numbers={"samples": 1e12}),
    "another model": lambda site, request, data, upload: encode(OTHER, schema_of(OTHER)),
}


def forge(fault: str, site: Any, request: Any, data: bytes, upload: bytes) -> bytes:
    return bytes(FORGERIES[fault](site, request, data, upload))


def run(spec: dict[str, Any]) -> None:
    folder = Path(spec["state"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "client.log").open("a", buffering=1) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        client.work = odd(spec.get("faults", {}), folder)
        setup = ClientSetup(spec["index"], spec["count"], loaded=loaded)
        config = client.ClientConfig(spec["server"], Certificates(Path(spec["certs"])), setup, folder)
        try:
            client.run_client(config, lambda text: print(text, file=log))
        except NetworkError as error:
            print(f"{type(error).__name__}: {error}", file=log)
            os._exit(1)
        os._exit(0)


def leave(number: int, frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    torch.set_num_threads(1)
    os.environ.update(adapter.OFFLINE)
    adapter.load_ahead()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, leave)
            run(json.loads(line))
        print(child, flush=True)


if __name__ == "__main__":
    main()

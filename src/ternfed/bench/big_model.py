"""One round with a model of many ternary weights on random data: memory as copies of the model, and codec speeds.

The round runs in a process of its own, so that the peak is its own: VmHWM less what was resident before the model was
made, divided by the model's float32 bytes. Each message is then coded by itself, beside the codec alone on as many
trits.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

from ternfed.bench.measure import best, resident
from ternfed.bench.tables import markdown
from ternfed.data.sets import from_arrays
from ternfed.engines.simulate import federate
from ternfed.quantize.ternary import Ternary
from ternfed.sweep.trial import one_thread
from ternfed.wire import Message, ans, decode, encode, schema_of
from ternfed.wire.held import Trits

WAYS = {
    "FedAvg": ("algorithm.name=fedavg",),
    "T-FedAvg, differences up": ("algorithm.name=tfedavg",),
    "T-FedAvg, trits up": ("algorithm.name=tfedavg", "algorithm.upload=trits"),
}


@dataclass(frozen=True)
class BigRound:
    """One round."""

    way: str
    weights: int
    copies: float
    """Peak memory beyond what was there before, in float32 models."""
    peak: int
    seconds: float
    up: int
    down: int


@dataclass(frozen=True)
class BigMessage:
    """A message of so many trits: millions of them per second of CPU time, and of the codec alone."""

    weights: int
    encode: float
    decode: float
    codec_encode: float
    codec_decode: float


def rounds(weights: int, limit: float = 3600.0) -> Iterator[BigRound]:
    """A round of each way, in a process each."""
    for way in WAYS:
        command = [sys.executable, "-m", "ternfed.bench.big_model", str(weights), way]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode:
            raise RuntimeError(f"a round of {way} with {weights:,} weights failed: {done.stderr.strip()[-300:]}")
        yield BigRound(**json.loads(done.stdout))


def message(weights: int, repeats: int = 5) -> BigMessage:
    """Encode and decode, whole messages beside the codec alone, in one run."""
    codes = np.random.default_rng(0).integers(-1, 2, weights, np.int8)
    sent = Message({"w": Ternary(torch.from_numpy(codes), torch.tensor(0.1), torch.tensor(0.1))})
    schema = schema_of(sent)
    data, stream = encode(sent, schema, codec="ans"), ans.encode(Trits(codes, (weights,)))
    sides: tuple[Callable[[], object], ...] = (
        lambda: encode(sent, schema, codec="ans"),
        lambda: decode(data, schema),
        lambda: ans.encode(Trits(codes, (weights,))),
        lambda: ans.decode(memoryview(stream), (weights,), None),
    )
    with one_thread():
        times = [[best(side, 1)[0] for side in sides] for _ in range(repeats + 1)][1:]
    return BigMessage(weights, *(weights / statistics.median(side) / 1e6 for side in zip(*times, strict=True)))


def table(played: Iterable[BigRound], coded: Iterable[BigMessage]) -> str:
    """Both as Markdown tables."""
    return "\n\n".join(
        [
            markdown(
                ("way", "weights", "copies of the model", "peak", "seconds", "bytes up", "bytes down"),
                [
                    (r.way, f"{r.weights:,}", f"{r.copies:.1f}", f"{r.peak / 1e9:.2f} GB", f"{r.seconds:.0f}",
                     f"{r.up:,}", f"{r.down:,}")
                    for r in played
                ],
            ),
            markdown(
                ("trits", "encode MB/s", "decode MB/s", "codec alone", "share of its speed"),
                [
                    (f"{m.weights:,}", f"{m.encode:.0f}", f"{m.decode:.0f}",
                     f"{m.codec_encode:.0f} / {m.codec_decode:.0f}",
                     f"{m.encode / m.codec_encode:.2f} / {m.decode / m.codec_decode:.2f}")
                    for m in coded
                ],
            ),
        ]
    )  # fmt: skip


def play(weights: int, way: str) -> BigRound:
    """One round in this process: two clients, one local epoch, an MLP whose middle layer has the weights."""
    width = round(weights**0.5)
    source = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(200, 16, generator=source), torch.randint(10, (200,), generator=source)
    data = from_arrays("random", inputs[:150], labels[:150], inputs[150:], labels[150:])
    settings = ("federation.clients=2", "federation.rounds=1", "training.epochs=1", "training.rate=0.01")
    with one_thread():
        list(federate(_model(200), data, *WAYS[way], *settings))  # what is loaded once is there
        before = resident("VmHWM")
        model = _model(width)
        (outcome,) = federate(model, data, *WAYS[way], *settings)
    size = sum(4 * parameter.numel() for parameter in model.parameters())
    seconds = sum(outcome.seconds.values())
    peak = resident("VmHWM")
    return BigRound(way, width**2, (peak - before) / size, peak, seconds, outcome.bytes_up, outcome.bytes_down)


def _model(width: int) -> nn.Module:
    torch.manual_seed(0)
    middle = nn.Linear(width, width, bias=False)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), middle, nn.ReLU(), nn.Linear(width, 10))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(play(int(sys.argv[1]), sys.argv[2]))))

"""Every promise about speed and memory, measured in one run as ratios, and the page that says which are kept.

Both sides of a ratio are measured in turns, medians, one thread. What depends on the machine alone, MB/s, stands beside
the same of another decoder in the same run. `measure` gives the rows, `page` makes docs/speed.md of stored ones.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ternfed.bench import big_model, convolutions, gpu, many_clients, rounds, server_memory, step
from ternfed.bench.measure import best
from ternfed.bench.tables import markdown
from ternfed.bench.wire import RESNET_TRITS, cut, draw
from ternfed.training.bfloat16 import cpu_has_bfloat16
from ternfed.wire import ans, fast_ans
from ternfed.wire.held import HeldTrits, Trits


@dataclass(frozen=True)
class Kept:
    """One promise, as it was found."""

    part: str
    what: str
    promised: str
    measured: str
    kept: bool
    command: str
    """Which measures it by itself."""


@dataclass(frozen=True)
class Limits:
    """How long to measure."""

    repeats: int = 7
    steps: bool = True
    """Whether single steps are measured too; those of ResNet18* take seconds each."""
    participants: int = 1_000
    trits: int = 20_000_000
    big: int = 20_000_000


Part = Callable[[Limits], Iterator[Kept]]
GPU = "GPU"
"""The part that most machines cannot measure: what is stored of it stays."""


def measure(limits: Limits, names: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """The parts of these names, or all, one after another: each as a table that JSON can hold."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise ValueError(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if GPU in names and not torch.cuda.is_available():
        raise ValueError(f"the part {GPU!r} needs an NVIDIA GPU, and PyTorch sees none here")
    for name in names or PARTS:
        rows = [asdict(row) for row in PARTS[name](limits)]
        if rows:
            yield name, {"machine": _machine(name), "limits": asdict(limits), "rows": rows}


def page(stored: Mapping[str, Any]) -> str:
    """The Markdown of a stored measurement."""
    found = {name: stored[name] for name in PARTS if name in stored}
    rows = [Kept(**row) for part in found.values() for row in part["rows"]]
    kept = sum(row.kept for row in rows)
    return "\n\n".join(
        [
            f"{kept} of {len(rows)} promises are kept.",
            markdown(
                ("part", "promise", "asked", "measured", "", "by itself"),
                [
                    (row.part, row.what, row.promised, row.measured, "kept" if row.kept else "**missed**",
                     f"`{row.command}`")
                    for row in rows
                ],
            ),
            "\n".join(f"- {name}: {part['machine']}" for name, part in found.items()),
        ]
    )  # fmt: skip


def _machine(part: str) -> str:
    numba = "with numba" if fast_ans.loops() is not None else "without numba"
    load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores" if hasattr(os, "getloadavg") else "load unknown"
    bfloat16 = {True: " with bfloat16", False: " without bfloat16", None: ""}[cpu_has_bfloat16()]
    gpu = f", {torch.cuda.get_device_name()}" if part == GPU else ""
    return f"{platform.machine()}{bfloat16}{gpu}, PyTorch {torch.__version__}, {numba}, {load} when the run ended"


def _at_least(part: str, what: str, least: float, found: float, unit: str, command: str) -> Kept:
    return Kept(part, what, f"≥ {least:g}{unit}", f"{found:.2f}{unit}", found >= least, command)


def _at_most(part: str, what: str, most: float, found: float, unit: str, command: str) -> Kept:
    return Kept(part, what, f"≤ {most:g}{unit}", f"{found:.2f}{unit}", found <= most, command)


def _training(limits: Limits) -> Iterator[Kept]:
    found = {row.who: row for row in rounds.run(max(3, limits.repeats))}
    command = "ternfed bench rounds"
    speedup, ternary = found[rounds.FEDAVG].speedup, found[rounds.TFEDAVG].against_fedavg
    yield _at_least("CPU", "MNIST's round against the plain loop", 4.5, speedup, " ×", command)
    yield _at_most("CPU", "T-FedAvg's local training / FedAvg's", 1.2, ternary, " ×", command)
    for row in step.run(limits.repeats) if limits.steps else ():
        what = f"a step of {row.model} with FTTQ / without, {row.device}"
        yield _at_most("CPU", what, row.limit, row.ratio, " ×", "ternfed bench step")


def _convolutions(limits: Limits) -> Iterator[Kept]:
    rows = list(convolutions.run(max(3, limits.repeats // 2)))
    for network in convolutions.NETWORKS:
        ours = [row for row in rows if row.network == network and row.is_ours]
        fastest = max(ours, key=lambda row: row.speedup)
        what = f"local training of {network} against the plain loop; best: {fastest.way}"
        yield _at_least("CPU", what, 1.3, fastest.speedup, " ×", "ternfed bench convolutions")


def _gpu(limits: Limits) -> Iterator[Kept]:
    """Nothing where there is no GPU."""
    what = "a step of ResNet18*, five clients side by side, bfloat16"
    for row in gpu.run(("resnet18",), ("bfloat16",), (5,), (False,)):
        measured = f"{row.fedavg:.3f} ms, {row.speedup:.1f} × the plain loop's speed"
        yield Kept(GPU, what, "≤ 0.6 ms", measured, row.fedavg <= 0.6, "ternfed bench gpu")
        yield _at_most(GPU, "the same with FTTQ / without", 1.05, row.ratio, " ×", "ternfed bench gpu")


def _many(limits: Limits) -> Iterator[Kept]:
    ratio = many_clients.ratio(limits.participants)
    what = f"T-FedAvg's round / FedAvg's, {limits.participants:,} of 10,000 clients, CPU time"
    yield _at_most("many clients", what, 1.3, ratio, " ×", "ternfed bench many-clients")
    held = list(server_memory.run())
    growth = held[-1].sums / held[0].sums
    what = f"the server's sums at {held[-1].clients:,} clients / at {held[0].clients:,}"
    yield _at_most("many clients", what, 1.0, growth, " ×", "ternfed bench server-memory")


def _decoding(limits: Limits) -> Iterator[Kept]:
    command = "ternfed bench wire"
    codes = draw(np.random.default_rng(0), limits.trits, 0.33)
    stream = memoryview(ans.encode(Trits(codes, (len(codes),))))
    entropy = ans.entropy_bits(np.unique(codes, return_counts=True)[1])
    above = 100 * (8 * len(stream) / entropy - 1)
    yield _at_most("wire", "`ans` above the entropy, 33% zeros", 1.0, above, "%", command)
    yield _speed("`ans` decoding, 33% zeros", stream, len(codes), None, limits.repeats, command)
    rng = np.random.default_rng(1)
    latent = rng.normal(size=RESNET_TRITS)
    before, after = (cut(latent + shift) for shift in (0.0, 0.1 * rng.normal(size=RESNET_TRITS)))
    reference = HeldTrits(before, (RESNET_TRITS,))
    stream = memoryview(ans.encode(Trits(after, (RESNET_TRITS,), reference)))
    yield _speed("`ans` decoding given a reference", stream, RESNET_TRITS, reference, 5 * limits.repeats, command)


def _speed(what: str, stream: memoryview, size: int, reference: HeldTrits | None, repeats: int, command: str) -> Kept:
    """The decoder that is used, beside constriction's in the same run."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * repeats + 2):
        plain = turn % 2 == 0
        spent, _ = best(lambda: ans.decode(stream, (size,), reference, plain=plain), 1)  # noqa: B023
        times[plain].append(size / spent / 1e6)
    used, other = (statistics.median(times[plain][1:]) for plain in (False, True))
    measured = f"{used:.0f} MB/s, {used / other:.1f} × constriction's {other:.0f}"
    return Kept("wire", what, "≥ 400 MB/s per thread", measured, used >= 400, command)


def _big(limits: Limits) -> Iterator[Kept]:
    command = "ternfed bench big-model"
    for played in big_model.rounds(limits.big):
        what = f"copies of a model of {played.weights:,} weights in a round of {played.way}"
        yield _at_most("big models", what, 4.0, played.copies, "", command)
    coded = big_model.message(limits.big)
    shares = {"encoding": coded.encode / coded.codec_encode, "decoding": coded.decode / coded.codec_decode}
    for name, share in shares.items():
        yield _at_least("big models", f"{name} a message / the codec alone", 0.5, share, " ×", command)


PARTS: Mapping[str, Part] = {
    "local training": _training,
    "convolutions": _convolutions,
    GPU: _gpu,
    "many clients": _many,
    "decoding": _decoding,
    "big models": _big,
}

"""`auto`: the codec that will be smallest, judged from counts and a sample, before anything is encoded."""

from __future__ import annotations

from ternfed.wire import ans, zstd
from ternfed.wire.held import HeldTrits, Trits
from ternfed.wire.trits import symbols

SAMPLE = 100_000
"""Trits in each of three slices that stand for the whole when zstd is judged; a short message is its own sample."""


def choose(trits: Trits) -> tuple[str, Trits]:
    """The name of the codec, and the trits with the reference if it is to be used."""
    alone = Trits(trits.codes, trits.sizes)
    # What a reference saves has to pay for the eight bytes of its digest.
    digest = 0 if trits.reference is None else 8
    offers = [
        (float(symbols(len(trits.codes))), "base3", alone),
        (ans.estimate(trits.counts) + digest, "ans", trits),
        (_zstd_estimate(trits) + digest, "zstd", trits),
    ]
    if trits.reference is not None:
        offers.append((ans.estimate(trits.counts.sum(axis=0, keepdims=True)), "ans", alone))
    _, name, chosen = min(offers, key=lambda offer: offer[0])
    return name, chosen


def _zstd_estimate(trits: Trits) -> float:
    length = len(trits.codes)
    if length <= 3 * SAMPLE:
        return len(zstd.encode(trits))
    total = 0
    for start in (0, (length - SAMPLE) // 2, length - SAMPLE):
        part = slice(start, start + SAMPLE)
        reference = trits.reference and HeldTrits(trits.reference.codes[part], (SAMPLE,), keep=False)
        total += len(zstd.encode(Trits(trits.codes[part], (SAMPLE,), reference)))
    return total * length / (3 * SAMPLE)

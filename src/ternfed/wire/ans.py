"""Codec `ans`: symbols of five trits through `constriction`'s asymmetric numeral system, at the entropy of the trits.

Trits are put into groups and each group gets its own order-0 model: one group per message, or one per tensor; with a
reference each of them falls into three, by the reference's trit at the same place. A model is two counts on the wire.
Both sides compute the 243 frequencies from them in whole numbers, so no rounding of floats can part them.
"""

from __future__ import annotations

from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from ternfed.wire import varint
from ternfed.wire.errors import ImpossibleCount, TrailingBytes, Truncated, WrongCodec, WrongProbabilities
from ternfed.wire.fast_ans import FEWEST, Stack, loops
from ternfed.wire.held import HeldTrits, Trits, runs_of
from ternfed.wire.trits import SPAN, VALUES, Codes, digits, pack, spread_of, symbols, unpack_block

TAG = 3
ONE_MODEL, MODEL_A_TENSOR = 0, 1

PRECISION = 1 << 24
"""The frequencies of a model add up to this."""
FREE = PRECISION - 243
"""What is shared out by probability; the rest gives each symbol the one part that keeps it codable."""

Spread = tuple[int, int, int]
"""How many trits of a group are -1, 0, +1."""


def encode(trits: Trits) -> bytes:
    """Grouping, two counts a group, then the words of one stream for all groups."""
    grouping, spreads = plan(trits.counts)
    coder = constriction.stream.stack.AnsCoder()
    # The coder is a stack: what is to come out first goes in last.
    stop = len(trits.codes)
    for spread in reversed(spreads):
        start = stop - sum(spread)
        _push(coder, trits.ordered[start:stop], spread)
        stop = start
    return bytes([grouping]) + b"".join(_spread_to_bytes(spread) for spread in spreads) + coder_to_bytes(coder)


def decode(data: memoryview, sizes: tuple[int, ...], reference: HeldTrits | None, *, plain: bool = False) -> Codes:
    """The codes of all tensors end to end; `plain` keeps to constriction where faster loops are installed."""
    if not len(data):
        raise Truncated("no grouping byte")
    grouping, at = data[0], 1
    if grouping not in (ONE_MODEL, MODEL_A_TENSOR):
        raise WrongCodec(f"grouping {grouping} is unknown")
    runs = runs_of(sizes, reference)
    spreads = []
    for total in (runs if grouping == MODEL_A_TENSOR else runs.sum(axis=1)).reshape(-1).tolist():
        spread, at = _spread_from_bytes(data, at, total)
        spreads.append(spread)
    if not plain and sum(sizes) >= FEWEST and loops() is not None:
        return _decode_fast(Stack(_words(data[at:])), spreads, sum(sizes), reference)
    coder = coder_from_bytes(data[at:])
    ordered, stop = np.empty(sum(sizes), np.int8), 0
    for spread in spreads:
        start, stop = stop, stop + sum(spread)
        _pop(coder, ordered[start:stop], spread)
    if not coder.is_empty():
        raise TrailingBytes("the stream goes on after the last trit")
    return ordered if reference is None else reference.restore(ordered)


def _decode_fast(stack: Stack, spreads: list[Spread], total: int, reference: HeldTrits | None) -> Codes:
    """The rest of `decode` by compiled loops."""
    order, stop = None if reference is None else reference.kept_order, 0
    out = np.empty(total, np.int8) if reference is None or order is None else reference.codes.copy()
    for place, spread in enumerate(spreads):
        start, stop = stop, stop + sum(spread)
        if stop == start:
            continue
        pad, frequencies = _likeliest(spread), weights(spread) + 1
        if order is None:
            came = stack.pop(frequencies, out[start:stop], pad)
        else:
            if pad != VALUES[len(VALUES) * place // len(spreads)]:  # most trits of this context changed
                out[order[start:stop]] = pad
            came = stack.pop_into(frequencies, order[start:stop], out, pad)
        came[pad + 1] -= _padding(stop - start)
        _check_came(came, spread)
    if not stack.is_empty():
        raise TrailingBytes("the stream goes on after the last trit")
    return out if reference is None or order is not None else reference.restore(out)


def _padding(trits: int) -> int:
    """Trits that fill up the last symbol of a group; all blocks but the last are full."""
    return 5 * symbols(trits) - trits


def _check_came(came: NDArray[np.int64], spread: Spread) -> None:
    if came.tolist() != list(spread):
        raise WrongProbabilities(f"a model was built for {spread} trits of -1, 0, +1; {tuple(came.tolist())} came")


def plan(counts: NDArray[np.int64]) -> tuple[int, list[Spread]]:
    """The cheaper grouping for counts of shape (contexts, tensors, 3), and the counts of its groups."""
    together, apart = counts.sum(axis=1), counts.reshape(-1, 3)
    split = counts.shape[1] > 1 and _bytes(apart) < _bytes(together)
    return int(split), [(int(a), int(b), int(c)) for a, b, c in (apart if split else together)]


def estimate(counts: NDArray[np.int64]) -> float:
    """Bytes that `encode` will need, from the counts alone."""
    return min(_bytes(counts.sum(axis=1)), _bytes(counts.reshape(-1, 3)))


def entropy_bits(counts: NDArray[np.int64]) -> float:
    """Σ n · H over the last axis: bits that order-0 models with these counts cannot go below."""
    totals = counts.sum(axis=-1, keepdims=True)
    # A count of 0 is taken times a finite number; a row of zeros has log2(1).
    return float((counts * np.log2(np.maximum(totals, 1) / np.maximum(counts, 1))).sum())


def _bytes(counts: NDArray[np.int64]) -> float:
    """Size with one model per row: the entropy, the rows' varints, the grouping byte and half a word."""
    used = counts[counts.sum(axis=1) > 0][:, [0, 2]]
    varints = np.maximum(1, np.ceil(np.log2(used + 1.0) / 7)).sum()
    return entropy_bits(counts) / 8 + float(varints) + 3


def _push(coder: Any, codes: Codes, spread: Spread) -> None:
    if not len(codes):
        return
    model, pad = _model(spread), _likeliest(spread)
    for at in reversed(range(0, len(codes), SPAN)):
        coder.encode_reverse(pack(codes[at : at + SPAN], pad).astype(np.int32), model)


def _pop(coder: Any, out: Codes, spread: Spread) -> None:
    if not len(out):
        return
    model, pad, found = _model(spread), _likeliest(spread), np.zeros(3, np.int64)
    for at in range(0, len(out), SPAN):
        part = out[at : at + SPAN]
        unpack_block(coder.decode(model, symbols(len(part))).astype(np.uint8), part, pad)
        found += spread_of(part)
    _check_came(found, spread)


def coder_to_bytes(coder: Any) -> bytes:
    """Little-endian words; the zero bytes that end the last word are not sent."""
    words: NDArray[np.uint32] = coder.get_compressed()
    return words.astype("<u4", copy=False).tobytes().rstrip(b"\0")


def coder_from_bytes(data: memoryview) -> Any:
    """A decoder over such words."""
    return constriction.stream.stack.AnsCoder(_words(data))


def _words(data: memoryview) -> NDArray[np.uint32]:
    if len(data) and data[-1] == 0:
        raise TrailingBytes("a stream ends in a zero byte")
    words = np.zeros(-(-len(data) // 4), "<u4")
    words.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
    return words.astype(np.uint32, copy=False)


def _spread_to_bytes(spread: Spread) -> bytes:
    return varint.write(spread[0]) + varint.write(spread[2]) if sum(spread) else b""


def _spread_from_bytes(data: memoryview, at: int, total: int) -> tuple[Spread, int]:
    if not total:
        return (0, 0, 0), at
    low, at = varint.read(data, at)
    high, at = varint.read(data, at)
    if low + high > total:
        raise ImpossibleCount(f"{low} + {high} trits other than zero, the group has {total}")
    return (low, total - low - high, high), at


def _likeliest(spread: Spread) -> int:
    """The commonest trit of a group, the lowest of several: what fills up its last symbol."""
    return VALUES[spread.index(max(spread))]


def _model(spread: Spread) -> Any:
    """`constriction`'s model; weights that add up to FREE reach it unscaled, as 1 + weight of 2^24."""
    return constriction.stream.model.Categorical(weights(spread).astype(np.float64), perfect=False)


def weights(spread: Spread) -> NDArray[np.int64]:
    """⌊FREE · Π p⌋ of the 243 symbols for trits with these counts; five of the commonest trit take what is left."""
    total, (low, zero, high) = sum(spread) ** 5, spread
    by_mix = [FREE * low**i * zero**j * high**k // total for i, j, k in _MIXES]
    out: NDArray[np.int64] = np.array(by_mix, np.int64)[_MIX_OF]
    out[121 * (1 + _likeliest(spread))] += FREE - int(out.sum())
    return out


_DIGITS = digits().tolist()
_MIXES = sorted({(d.count(0), d.count(1), d.count(2)) for d in _DIGITS})
_MIX_OF = np.array([_MIXES.index((d.count(0), d.count(1), d.count(2))) for d in _DIGITS])
"""A symbol's probability depends only on how many of its trits are -1, 0 and +1: 21 products serve for all."""

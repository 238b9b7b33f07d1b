"""Lists of whole numbers near their order-0 entropy: histograms of buckets, and the bits below a bucket as they are.

Small numbers have a bucket each; from 2^(fine + 1) on, numbers that agree in their top bits share one. `fine` is chosen
per list: many numbers pay for an exact histogram, a few for a coarse one. Both sides compute the frequencies from the
counts in whole numbers, as in ans.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import constriction
import numpy as np
from numpy.typing import NDArray

from ternfed.wire import varint
from ternfed.wire.ans import PRECISION
from ternfed.wire.errors import ImpossibleCount, WrongProbabilities

Numbers = NDArray[np.int32]
"""Where there are very many and all of them are small, they may be int8."""
Counts = NDArray[np.int64]

UNIT = 2.0**16
FEW = 24
"""Up to so many different numbers are looked at one by one."""
FINEST = 8
"""`fine` is 1 to this."""
MOST = 1 << 25
"""No number is larger: the difference of two codes of a grid."""
BLOCK = 1 << 16
"""Numbers that are coded at a time: symbols, then the bits below them."""


class Model(NamedTuple):
    """What a list was found to hold."""

    fine: int
    low: int
    """Buckets below that of zero."""
    counts: Counts
    """Of the buckets from -low upwards."""

    def write(self) -> bytes:
        """How fine and how many on either side, then every count but zero's."""
        counts = self.counts.tolist()
        head = varint.write(8 * self.low + self.fine - 1) + varint.write(len(counts) - 1 - self.low)
        return head + varint.write_many(counts[: self.low] + counts[self.low + 1 :])

    @property
    def bits(self) -> float:
        """What the list costs with it: entropy, bits below the buckets, and the model itself."""
        below = 0.0
        if self.is_coarse:
            widths = bounds(np.abs(np.arange(-self.low, len(self.counts) - self.low)), self.fine)[1]
            below = float(widths @ self.counts)
        head = len(varint.write(8 * self.low + self.fine - 1)) + len(varint.write(len(self.counts) - 1 - self.low))
        written = head + varint.length(self.counts) - len(varint.write(int(self.counts[self.low])))
        return float(weighed(self.counts.sum()) - weighed(self.counts).sum()) + below + 8 * written

    @property
    def fits_a_byte(self) -> bool:
        """Whether all of its numbers are within ±127."""
        return max(self.low, len(self.counts) - 1 - self.low) <= 127 and not self.is_coarse

    @property
    def is_coarse(self) -> bool:
        """Whether one of its buckets is shared by several numbers."""
        return max(self.low, len(self.counts) - 1 - self.low) >= 2 << self.fine


def weighed(counts: Any) -> NDArray[np.float64]:
    """n · log2 n, to the nearest 2^-16: sums of it are exact, so that no choice hangs on the order of adding up."""
    out: NDArray[np.float64] = np.rint(counts * np.log2(np.maximum(counts, 1)) * UNIT) / UNIT
    return out


def read_model(data: memoryview, at: int, total: int) -> tuple[Model, int]:
    """The model of a list of so many numbers, and where the next thing starts."""
    head, at = varint.read(data, at)
    high, at = varint.read(data, at)
    fine, low = head % 8 + 1, head // 8
    if max(low, high) > _highest(fine):
        raise ImpossibleCount(f"a model of {low} + 1 + {high} buckets")
    counts, at = varint.read_many(data, at, low + high)
    if sum(counts) > total or (low and not counts[0]) or (high and not counts[-1]):
        raise ImpossibleCount(f"a model of {sum(counts)} numbers beside zero, the list has {total}, or an empty bucket")
    return Model(fine, low, np.array([*counts[:low], total - sum(counts), *counts[low:]], np.int64)), at


class Histogram(NamedTuple):
    """The different numbers of some lists, rising, and how often each of them occurs."""

    values: NDArray[np.int64]
    counts: Counts

    def model(self, fine: int) -> Model:
        """The model with buckets that fine."""
        if not len(self.values):
            return Model(fine, 0, np.zeros(1, np.int64))
        if self.largest < 2 << fine:  # a bucket for each number
            low, high = max(0, -int(self.values[0])), max(0, int(self.values[-1]))
            each = np.zeros(low + high + 1, np.int64)
            each[self.values + low] = self.counts
            return Model(fine, low, each)
        symbols = symbols_of(self.values, fine)[0]
        low, high = max(0, -int(symbols[0])), max(0, int(symbols[-1]))
        counts = np.bincount(symbols + low, weights=self.counts, minlength=low + high + 1)
        return Model(fine, low, counts.astype(np.int64))

    @property
    def largest(self) -> int:
        """The largest size of a number."""
        return max(-int(self.values[0]), int(self.values[-1])) if len(self.values) else 0

    def best(self) -> Model:
        """The model with which the list is smallest."""
        # Finer than one bucket a number changes nothing.
        finest = next((fine for fine in range(1, FINEST) if self.largest < 2 << fine), FINEST)
        if finest == 1:
            return self.model(1)
        if len(self.values) > FEW:
            return min((self.model(fine) for fine in range(1, finest + 1)), key=lambda model: model.bits)
        values, counts = self.values.tolist(), self.counts.tolist()
        return self.model(min(range(1, finest + 1), key=lambda fine: _bits(values, counts, fine)))


def _bits(values: list[int], counts: list[int], fine: int) -> float:
    """`Model.bits` of the model that fine, without making it: for a few numbers that is sooner done one by one."""
    buckets: dict[int, int] = {}
    below = low = high = 0
    for value, count in zip(values, counts, strict=True):
        size = abs(value)
        if size >= 2 << fine:
            width = size.bit_length() - fine - 1
            below += width * count
            size = (width << fine) + (size >> width)
        bucket = size if value >= 0 else -size
        buckets[bucket] = buckets.get(bucket, 0) + count
    low, high = max(0, -min(buckets)), max(0, max(buckets))
    written = len(varint.write(8 * low + fine - 1)) + len(varint.write(high)) + low + high
    written += sum(len(varint.write(count)) - 1 for bucket, count in buckets.items() if bucket and count > 127)
    entropy = _weighed(sum(counts)) - sum(_weighed(count) for count in buckets.values())
    return entropy + below + 8 * written


@lru_cache(4096)
def _weighed(count: int) -> float:
    return float(weighed(count))


def histogram(lists: Sequence[Numbers]) -> Histogram:
    """Of all lists together."""
    flat = np.concatenate(lists) if len(lists) != 1 else lists[0]
    if not len(flat):
        return Histogram(np.empty(0, np.int64), np.empty(0, np.int64))
    low, high = int(flat.min()), int(flat.max())
    if high - low > max(BLOCK, len(flat)):
        values, counts = np.unique(flat, return_counts=True)
        return Histogram(values.astype(np.int64), counts.astype(np.int64))
    counts = np.zeros(high - low + 1, np.int64)
    at_once = max(BLOCK, 4 * len(counts))  # numpy counts with eight bytes a number: not for all of them at a time
    for at in range(0, len(flat), at_once):
        counts += np.bincount(flat[at : at + at_once] - np.int32(low), minlength=len(counts))
    used = np.flatnonzero(counts)
    return Histogram(used + low, counts[used])


def histograms(flat: Numbers, sizes: Sequence[int]) -> list[Histogram]:
    """Of each of some lists that lie end to end; many short ones are counted in one go."""
    ends = list(accumulate(sizes))
    if len(sizes) > 1 and 0 < len(flat) <= BLOCK:
        low = int(flat.min())
        width = int(flat.max()) - low + 1
        if width * len(sizes) <= BLOCK:
            of_list = np.repeat(np.arange(-low, len(sizes) * width - low, width), sizes)
            table = np.bincount(flat + of_list, minlength=len(sizes) * width).reshape(len(sizes), width)
            return [Histogram((used := np.flatnonzero(row)) + low, row[used]) for row in table]
    return [histogram([flat[end - size : end]]) for size, end in zip(sizes, ends, strict=True)]


def joined(parts: Sequence[Histogram]) -> Histogram:
    """That of all their lists together."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.values for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    if not len(values):
        return parts[0]
    low, high = int(values.min()), int(values.max())
    if high - low > max(BLOCK, len(values)):
        values, places = np.unique(values, return_inverse=True)
        return Histogram(values, np.bincount(places, weights=counts).astype(np.int64))
    totals = np.bincount(values - low, weights=counts)
    used = np.flatnonzero(totals)
    return Histogram(used + low, totals[used].astype(np.int64))


def bucket_of(size: int, fine: int) -> int:
    """The bucket of one number that is not negative."""
    return int(symbols_of(np.array([size]), fine)[0][0])


@lru_cache(FINEST)
def _highest(fine: int) -> int:
    """The bucket of the largest number there is."""
    return bucket_of(MOST, fine)


def symbols_of(numbers: NDArray[Any], fine: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The bucket of each number, with its sign, and how many bits lie below the top ones of each."""
    sizes = np.abs(numbers.astype(np.int64))
    if int(sizes.max(initial=0)) < 2 << fine:
        return numbers.astype(np.int64), np.zeros(len(numbers), np.int64)
    widths = np.maximum(np.frexp(sizes.astype(np.float64))[1] - (fine + 1), 0).astype(np.int64)
    return np.sign(numbers) * ((widths << fine) + (sizes >> widths)), widths


def bounds(buckets: NDArray[np.int64], fine: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The smallest number of each bucket that is not negative, and how many bits say which it is."""
    widths = np.maximum((buckets >> fine) - 1, 0)
    tops = np.where(buckets < 2 << fine, buckets, (buckets & ((1 << fine) - 1)) + (1 << fine))
    return tops << widths, widths


def push(coder: Any, numbers: Numbers, model: Model) -> None:
    """Put a list on the coder's stack."""
    if len(model.counts) == 1:
        return
    categorical = _categorical(model.counts)
    for at in reversed(range(0, len(numbers), BLOCK)):
        part = numbers[at : at + BLOCK]
        if model.is_coarse:
            push_coarse(coder, part, model.fine, model.low, categorical)
        else:
            coder.encode_reverse(part + np.int32(model.low), categorical)


def push_coarse(coder: Any, numbers: Numbers, fine: int, low: int, categorical: Any) -> None:
    """Up to `BLOCK` numbers, some of which share a bucket: their buckets, and behind them the bits below."""
    symbols, widths = symbols_of(numbers, fine)
    sizes = np.abs(numbers)
    for width in reversed(_above_zero(widths)):
        below = sizes[widths == width] & ((1 << width) - 1)
        coder.encode_reverse(below.astype(np.int32), _uniform(width))
    coder.encode_reverse((symbols + low).astype(np.int32), categorical)


def pop(coder: Any, total: int, model: Model, dtype: Any = np.int32) -> Numbers:
    """Take a list of so many numbers from the coder's stack; int8 where the model fits a byte and that is asked for."""
    if len(model.counts) == 1:
        return np.zeros(total, dtype)
    categorical, coarse = _categorical(model.counts), model.is_coarse
    out, found = np.empty(total, dtype), np.zeros(len(model.counts), np.int64)
    for at in range(0, total, BLOCK):
        part = out[at : at + BLOCK]
        places = coder.decode(categorical, len(part))
        found += np.bincount(places, minlength=len(found))
        if not coarse:
            np.subtract(places, model.low, out=part, casting="unsafe")
            continue
        starts, widths_of, signs = _read_buckets(model.fine, model.low, len(model.counts))
        sizes, widths = starts[places], widths_of[places]
        for width in _above_zero(widths):
            there = np.flatnonzero(widths == width)
            sizes[there] += coder.decode(_uniform(width), len(there))
        part[:] = signs[places] * sizes
    if (found != model.counts).any():
        raise WrongProbabilities("the numbers that came are not those their model was built for")
    return out


@lru_cache(16)
def _read_buckets(fine: int, low: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of the buckets from -low upwards: the smallest size in each, the bits below, the sign."""
    buckets = np.arange(-low, count - low)
    return *bounds(np.abs(buckets), fine), np.sign(buckets)


def _above_zero(widths: NDArray[np.int64]) -> list[int]:
    """The different widths but 0, rising."""
    return [int(width) for width in np.flatnonzero(np.bincount(widths)) if width]


def _categorical(counts: Counts) -> Any:
    return constriction.stream.model.Categorical(weights(counts).astype(np.float64), perfect=False)


@lru_cache(32)
def _uniform(width: int) -> Any:
    return constriction.stream.model.Uniform(1 << width)


def weights(counts: Counts) -> NDArray[np.int64]:
    """⌊(2^24 - K) · n_k / n⌋ of the K buckets; the commonest takes what is left. One more each makes 2^24."""
    free, total = PRECISION - len(counts), int(counts.sum())
    out = np.array([free * count // total for count in counts.tolist()], np.int64)
    out[int(counts.argmax())] += free - int(out.sum())
    return out

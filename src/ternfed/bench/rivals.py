"""The wire's codecs and what others do with the same trits, behind one pair of functions: codes to bytes and back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import floor, log, log2
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from ternfed.wire import ans, base3, zstd
from ternfed.wire.held import Trits
from ternfed.wire.trits import Codes

Writer = Callable[[Codes], bytes]
Reader = Callable[[bytes, int], Codes]
Rival = tuple[str, int, Writer, Reader]


def codecs() -> list[Rival]:
    """Name, most trits it is given (0: all), writer, reader."""
    out: list[Rival] = [
        (name, 0, _writer(codec), _reader(codec)) for name, codec in (("base3", base3), ("zstd", zstd), ("ans", ans))
    ]
    out += [("2 bits", 0, _two_bits, _from_two_bits), ("zstd alone", 0, _zstd_alone, _from_zstd_alone)]
    try:
        from nncodec.extensions import deepCABAC
    except ImportError:
        return out
    return [*out, ("nncodec", 2_000_000, *_nncodec(deepCABAC))]


def _writer(codec: Any) -> Writer:
    return lambda codes: codec.encode(Trits(codes, (len(codes),)))


def _reader(codec: Any) -> Reader:
    return lambda data, size: codec.decode(memoryview(data), (size,), None)


def _two_bits(codes: Codes) -> bytes:
    """The paper's count: four trits per byte, planar in blocks as base-3 is."""
    out = np.empty(-(-len(codes) // 4), np.uint8)
    for start, stop in pairwise([*range(0, len(out), 1 << 16), len(out)]):
        part = np.zeros(4 * (stop - start), np.int8)
        piece = codes[4 * start : 4 * stop]
        part[: len(piece)] = piece
        rows = (part & 3).view(np.uint8).reshape(4, -1)
        out[start:stop] = rows[0] | rows[1] << 2 | rows[2] << 4 | rows[3] << 6
    return out.tobytes()


def _from_two_bits(data: bytes, size: int) -> Codes:
    packed, out = np.frombuffer(data, np.uint8), np.empty(4 * len(data), np.int8)
    for start, stop in pairwise([*range(0, len(packed), 1 << 16), len(packed)]):
        rows = out[4 * start : 4 * stop].reshape(4, -1)
        for place in range(4):
            # Up to the sign bit and back: 3 becomes -1.
            rows[place] = (packed[start:stop] << (6 - 2 * place)).view(np.int8) >> 6
    return out[:size]


def _zstd_alone(codes: Codes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(codes.data)


def _from_zstd_alone(data: bytes, size: int) -> Codes:
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.int8)


def _nncodec(cabac: Any) -> tuple[Writer, Reader]:
    """DeepCABAC of the MPEG standard, its entropy coder alone: no quantization, no headers."""
    off = (cabac.HdspMode.AlwaysOff, np.zeros(2, np.int8))

    def write(codes: Codes) -> bytes:
        coder = cabac.Encoder()
        coder.initCtxModels(10, 0)
        coder.encodeLayer(codes.astype(np.int32)[None], 0, 0, 0, 0, 0, np.zeros(1, np.int32), *off, 0, 0)
        return bytes(coder.finish())

    def read(data: bytes, size: int) -> Codes:
        coder = cabac.Decoder()
        coder.setStream(np.frombuffer(data, np.uint8))
        coder.initCtxModels(10)
        out: NDArray[np.int32] = np.zeros((1, size), np.int32)
        coder.decodeLayer(out, 0, 0, 0, 0, *off, 0, 0)
        return out.reshape(-1).astype(np.int8)

    return write, read


def golomb_bits(codes: Codes) -> int:
    """Size of the sparse code of STC (Sattler et al. 2019): Golomb-coded gaps, one bit a sign, 5 for the parameter."""
    places = np.flatnonzero(codes)
    if not len(places):
        return 5
    share = min(len(places) / len(codes), 0.999)
    golden = (5**0.5 - 1) / 2
    low_bits = max(0, 1 + floor(log2(log(golden) / log(1 - share))))
    gaps = np.diff(places, prepend=-1) - 1
    return int((gaps >> low_bits).sum()) + len(places) * (low_bits + 2) + 5

"""Codec `zstd`: neighbouring trits five to a byte, through one zstd frame. Finds what repeats; order-0 codes cannot."""

from __future__ import annotations

from functools import lru_cache
from threading import local
from typing import Any

import numpy as np
import zstandard

from ternfed.wire.errors import WrongFrame
from ternfed.wire.held import HeldTrits, Trits
from ternfed.wire.trits import Codes, pack_neighbours, symbols, unpack_neighbours

TAG = 2
_MAGIC = b"\x28\xb5\x2f\xfd"


def encode(trits: Trits) -> bytes:
    """One frame of the codes, or of their difference mod 3 from the reference."""
    reference = None if trits.reference is None else trits.reference.codes
    return frame(pack_neighbours(trits.codes, reference), min_match=0)


def decode(data: memoryview, sizes: tuple[int, ...], reference: HeldTrits | None) -> Codes:
    """The codes of all tensors end to end."""
    plain = unframe(data, symbols(sum(sizes)))
    return unpack_neighbours(np.frombuffer(plain, np.uint8), sum(sizes), None if reference is None else reference.codes)


def frame(data: np.ndarray[tuple[int], np.dtype[np.uint8]], *, min_match: int) -> bytes:
    """A level-1 frame without zstd's four magic bytes, which states its size; min_match 0 leaves zstd's own."""
    whole: bytes = _compressor(len(data), min_match).compress(data.data)
    return whole[len(_MAGIC) :]


def unframe(data: memoryview, size: int) -> bytes:
    """The `size` bytes in a frame. What the frame claims is compared before anything is allocated for it."""
    whole = b"".join((_MAGIC, data))
    try:
        claimed = zstandard.get_frame_parameters(whole).content_size
        if claimed != size:
            raise WrongFrame(f"a zstd frame claims {claimed} bytes, {size} belong here")
        plain = _decompressor().decompress(whole, max_output_size=max(size, 1), allow_extra_data=False)
    except zstandard.ZstdError as problem:
        raise WrongFrame(f"zstd: {problem}") from None
    if len(plain) != size:
        raise WrongFrame(f"a zstd frame holds {len(plain)} bytes, {size} belong here")
    return bytes(plain)


class _Kept(local):
    """Working memory of zstd, which serves one thread: making it takes as long as coding a small plane."""

    def __init__(self) -> None:
        self.compressors: dict[tuple[int, int], Any] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_KEPT = _Kept()
MOST_KEPT = 8
"""Compressors that a thread keeps, for planes of so many sizes."""
LARGEST_KEPT = 1 << 18
"""Bytes of the longest plane whose compressor is kept: beyond, making one costs little beside its work."""


def _compressor(size: int, min_match: int) -> Any:
    key = size, min_match
    found = _KEPT.compressors.get(key)
    if found is None:
        found = zstandard.ZstdCompressor(compression_params=_parameters(*key))
        if size <= LARGEST_KEPT:
            if len(_KEPT.compressors) == MOST_KEPT:
                del _KEPT.compressors[next(iter(_KEPT.compressors))]
            _KEPT.compressors[key] = found
    return found


def _decompressor() -> Any:
    return _KEPT.decompressor


@lru_cache(64)
def _parameters(size: int, min_match: int) -> Any:
    return zstandard.ZstdCompressionParameters.from_level(
        1, source_size=size, min_match=min_match, write_content_size=1, write_checksum=0
    )

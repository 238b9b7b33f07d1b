"""Codec `zstd`: neighbouring trits five to a byte, through one zstd frame. Finds what repeats; order-0 codes cannot."""

from __future__ import annotations

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
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1,
        source_size=len(data),
        min_match=min_match,
        write_content_size=1,
        write_checksum=0,
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data.data)[len(_MAGIC) :]


def unframe(data: memoryview, size: int) -> bytes:
    """The `size` bytes in a frame. What the frame claims is compared before anything is allocated for it."""
    whole = b"".join((_MAGIC, data))
    try:
        claimed = zstandard.get_frame_parameters(whole).content_size
        if claimed != size:
            raise WrongFrame(f"a zstd frame claims {claimed} bytes, {size} belong here")
        plain = zstandard.ZstdDecompressor().decompress(whole, max_output_size=max(size, 1), allow_extra_data=False)
    except zstandard.ZstdError as problem:
        raise WrongFrame(f"zstd: {problem}") from None
    if len(plain) != size:
        raise WrongFrame(f"a zstd frame holds {len(plain)} bytes, {size} belong here")
    return plain

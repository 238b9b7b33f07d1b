"""Golden files hold version 2 still: the bytes of a message, once published, are what everyone else reads.

`python tests/wire/test_wire_golden.py` writes them again; a change here is a new version of the format. zstd's own
output may change with its release, so of its frames only the reading is held.
"""

from pathlib import Path

import pytest
from wire_samples import small

from ternfed.wire import Message, decode, encode, reference_of, same, schema_of
from ternfed.wire.grid import GRID
from ternfed.wire.message import assemble, locate
from ternfed.wire.tern import parse_tern, tern_bytes
from ternfed.wire.ternary import TERNARY

GRIDS = Message({name: value for name, value in small()[0].tensors.items() if name.startswith("first")}, {"round": 7.0})
FOLDER = Path(__file__).parent / "golden"
MESSAGE, CODES = small()
SCHEMA = schema_of(MESSAGE)
REFERENCE = reference_of(CODES, SCHEMA)
CASES = {
    f"{codec}{'-reference' if given else ''}": (codec, REFERENCE if given else None)
    for codec, given in (("base3", False), ("zstd", False), ("zstd", True), ("ans", False), ("ans", True))
}


def written(codec, reference):
    """Dense tensors and grids in raw planes: what zstd makes of them is zstd's business."""
    return assemble(MESSAGE, SCHEMA, reference=reference, codec=codec, compress=False)


@pytest.mark.parametrize("name", CASES)
def test_golden_bytes_are_read(name):
    _codec, reference = CASES[name]
    assert same(decode((FOLDER / f"{name}.bin").read_bytes(), SCHEMA, reference=reference), MESSAGE)


@pytest.mark.parametrize("name", [name for name in CASES if "zstd" not in name])
def test_golden_bytes_are_written(name):
    assert written(*CASES[name]).hex() == (FOLDER / f"{name}.bin").read_bytes().hex()


def test_a_golden_message_with_compressed_planes_is_read():
    assert same(decode((FOLDER / "planes.bin").read_bytes(), SCHEMA), MESSAGE)


@pytest.mark.parametrize("given", [False, True])
def test_golden_grids_are_read_and_written(given):
    path, reference = FOLDER / f"grids{'-reference' if given else ''}.bin", CODES if given else None
    schema = schema_of(GRIDS)
    assert same(decode(path.read_bytes(), schema, reference=reference), GRIDS)
    assert encode(GRIDS, schema, reference=reference).hex() == path.read_bytes().hex()
    assert (locate(path.read_bytes(), schema).sections["grid"].given is not None) is given


def test_a_golden_file_is_read():
    tensors, metadata = parse_tern((FOLDER / "model.tern").read_bytes())
    assert same(Message(tensors), Message(MESSAGE.tensors))
    assert metadata == {"model": "sample"}


def test_digests_are_golden():
    assert SCHEMA.digest.hex() == "a5a693a9da4536ae"
    assert REFERENCE.held(TERNARY, SCHEMA.ternary).digest.hex() == "9201f97b4edb6e11"
    assert REFERENCE.held(GRID, SCHEMA.of(GRID.kinds)).digest.hex() == "652b0a8fe10b58ed"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, case in CASES.items():
        (FOLDER / f"{name}.bin").write_bytes(written(*case))
    (FOLDER / "planes.bin").write_bytes(encode(MESSAGE, SCHEMA, codec="ans"))
    for suffix, reference in (("", None), ("-reference", CODES)):
        (FOLDER / f"grids{suffix}.bin").write_bytes(encode(GRIDS, schema_of(GRIDS), reference=reference))
    (FOLDER / "model.tern").write_bytes(tern_bytes(MESSAGE.tensors, {"model": "sample"}))

"""What a hostile file claims costs neither time nor memory, and is answered in one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import tomllib
import tracemalloc
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import tomli_w
import torch
from typer.main import get_command
from verbs import Command

from ternfed.bench import fuzz_files
from ternfed.cli.app import app
from ternfed.data.npy import read_npy, read_npz
from ternfed.files import KEY
from ternfed.paper.groups import collect
from ternfed.quantize.ternary import Ternary
from ternfed.wire import (
    ImpossibleCount,
    Message,
    TrailingBytes,
    WireError,
    WrongFile,
    decode,
    encode,
    load_tern,
    save_tern,
    schema_of,
    varint,
)
from ternfed.wire.message import joined, locate
from ternfed.wire.tern import MOST_HEADER, MOST_TENSORS, parse_tern, tern_bytes

SMALL = {"w": Ternary(torch.ones(600, dtype=torch.int8), torch.tensor(1.0), torch.tensor(1.0))}


def file_of(header: bytes, message: bytes = b"") -> bytes:
    front = b"\xf3TM\x02" + crc32(header).to_bytes(4, "little")
    return front + varint.write(len(header)) + header + message


def test_forty_thousand_tensors_of_one_name_are_refused_at_once() -> None:
    header = b'{"metadata":{},"tensors":[' + b",".join([b'["w","bool",[1]]'] * 40_000) + b"]}"
    start = time.process_time()
    with pytest.raises(WireError, match="names something twice"):
        parse_tern(file_of(header))
    assert time.process_time() - start < 3


def test_more_tensors_than_any_model_has_are_refused() -> None:
    header = b'{"metadata":{},"tensors":[' + b",".join([b'["w","bool",[1]]'] * (MOST_TENSORS + 1)) + b"]}"
    with pytest.raises(WrongFile, match="is the most"):
        parse_tern(file_of(header))
    with pytest.raises(ImpossibleCount, match="is the most"):
        parse_tern(b"\xf3TM\x02" + bytes(4) + varint.write(MOST_HEADER + 1) + bytes(MOST_HEADER + 1))


def test_a_section_longer_than_its_slots_can_need_is_not_read(tmp_path: Path) -> None:
    """Sixty-seven megabytes for six hundred trits."""
    good = tern_bytes(SMALL)
    file = tmp_path / "long.tern"
    with file.open("wb") as stream:
        stream.write(good)
        stream.truncate(67_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(TrailingBytes, match="its tensors need"):
            load_tern(file)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_so_it_is_in_a_message() -> None:
    message = Message(SMALL)
    schema = schema_of(message)
    numbers, sections = locate(encode(message, schema), schema)
    long = joined(schema.digest, numbers, [s._replace(parts=bytes(1_000_000)) for s in sections.values()])
    with pytest.raises(ImpossibleCount, match="a section of 1000000 bytes"):
        decode(long, schema)


def test_a_header_that_claims_more_than_the_file_has(good: Path, tmp_path: Path, ternfed: Command) -> None:
    """Thirty-seven gibibytes."""
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000,), }".ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)
    (tmp_path / "large.npy").write_bytes(data)
    with pytest.raises(ValueError, match="claims 40000000000 bytes of numbers"):
        read_npy(tmp_path / "large.npy")
    result = ternfed("predict", good / "model.tern", "--data", tmp_path / "large.npy")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back_as_numpy_wrote_them(tmp_path: Path, dtype: type, order: str) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 2, dtype, order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", inputs=array)
    for back in (read_npy(tmp_path / "a.npy"), read_npz(tmp_path / "a.npz")["inputs"]):
        assert back.dtype == array.dtype
        assert np.array_equal(back, array)
        back[0] = 0  # it owns its memory


def test_names_of_a_file_do_not_speak_to_the_terminal(tmp_path: Path, ternfed: Command) -> None:
    name = "\x1b[2J[red]w[/red]\n\x07"
    (tmp_path / "m.tern").write_bytes(tern_bytes({name: torch.zeros(2)}, {"ternfed": '{"[bold]x": "\\u001b[31m"}'}))
    result = ternfed("inspect", tmp_path / "m.tern")
    assert result.exit_code == 0
    assert not set("\x1b\x07") & set(result.output)
    assert "[red]w" in result.output


def test_names_of_a_graph_do_not_speak_to_the_terminal_through_the_runtime(tmp_path: Path) -> None:
    """onnxruntime writes errors of its own, node names in them, past Python: only a process of its own shows that."""
    onnx, helper = pytest.importorskip("onnx"), pytest.importorskip("onnx.helper")
    pytest.importorskip("onnxruntime")
    floats, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    beyond = helper.make_tensor("beyond", whole, [1], [32])
    node = helper.make_node("Gather", ["input", "beyond"], ["output"], name="\x1b[2J\x07bait", axis=1)
    ends = [helper.make_tensor_value_info(name, floats, ["N", size]) for name, size in (("input", 3), ("output", 1))]
    graph = helper.make_graph([node], "graph", ends[:1], ends[1:], [beyond])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    command = [sys.executable, "-m", "ternfed", "predict", "m.onnx", "--data", "x.npy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "bait" in done.stderr
    assert not set("\x1b\x07") & set(done.stdout + done.stderr)
    assert len([line for line in done.stderr.splitlines() if line.startswith("ternfed: ")]) == 1


def test_settings_cannot_ask_for_more_memory_than_the_file_has_weights(
    good: Path, tmp_path: Path, ternfed: Command
) -> None:
    tensors, notes = load_tern(good / "model.tern")
    facts = json.loads(notes[KEY])
    facts["settings"]["model"]["hidden"] = [10**6, 10**6]
    save_tern(tmp_path / "m.tern", tensors, {KEY: json.dumps(facts)})
    result = ternfed("predict", tmp_path / "m.tern")
    assert result.exit_code == 2
    assert "make a network of" in result.stderr


def call(arguments: list[str]) -> object:
    return get_command(app).main(arguments, standalone_mode=False)


def test_every_damaged_file_is_answered_in_one_sentence() -> None:
    assert fuzz_files.run(call, count=60, seed=7).outcomes.total() == 60


@pytest.mark.slow
def test_every_one_of_many() -> None:
    assert fuzz_files.run(call, count=2000, seed=8).outcomes.total() == 2000


def test_the_fuzzer_finds_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def clumsy(arguments: list[str]) -> object:
        raise KeyError("x")

    with pytest.raises(fuzz_files.Finding, match="KeyError"):
        fuzz_files.attempt(clumsy, ["inspect"])


def test_a_run_folder_of_somebody_else_is_reported_or_refused(good: Path, tmp_path: Path, ternfed: Command) -> None:
    shutil.copytree(good / "run", tmp_path / "run")
    (tmp_path / "run" / "timing.jsonl").write_text('{"round": 1, "seconds": {"x": {}}}\n')
    (tmp_path / "run" / "partition.json").write_text('{"classes": [["x"]]}\n')
    result = ternfed("run", "--resume", "--out", tmp_path / "run", "--set", "federation.rounds=2")
    assert result.exit_code == 0, result.output


HOSTILE = "$x^{$<script>window.hacked=1</script>[red]|`\"'&"
UNUSABLE = ("\x1b[2Jgone", "a\nb", "\u202e", "\ud800", "x" * 5000, "", " ", 7, ["x"], {"x": 1})


def runs_on_own_data(good: Path, folder: Path, data_name: object) -> Path:
    """Two runs on data of somebody's own, the first with this for a name."""
    table = tomllib.loads((good / "run" / "config.toml").read_text())
    for each in ("one", "two"):
        table["data"]["dataset"] = f"{fuzz_files.BAIT}:{each}"
        (folder / each).mkdir(parents=True)
        (folder / each / "config.toml").write_text(tomli_w.dumps(table))
        shutil.copy(good / "run" / "rounds.jsonl", folder / each)
    (folder / "one" / "partition.json").write_text(json.dumps({"classes": [[1, 2]], "data_name": data_name}))
    return folder


def test_the_name_of_a_data_set_is_text_wherever_it_is_shown(good: Path, tmp_path: Path, ternfed: Command) -> None:
    runs = runs_on_own_data(good, tmp_path / "runs", HOSTILE)
    assert HOSTILE in ternfed("ls", runs).stdout
    assert ternfed("compare", runs, "--out", tmp_path / "pages/both.html").exit_code == 0
    assert ternfed("report", runs, "--out", tmp_path / "pages").exit_code == 0
    pages = [file for kind in ("html", "md") for file in (tmp_path / "pages").rglob(f"*.{kind}")]
    assert len(pages) == 3
    for file in (*pages, *(tmp_path / "pages").rglob("*.svg")):
        text = file.read_text()
        assert "<script>window" not in text
        assert file.suffix == ".svg" or "&lt;script&gt;" in text
    assert fuzz_files.BAIT not in sys.modules


@pytest.mark.parametrize("name", UNUSABLE, ids=ascii)
def test_a_name_that_cannot_be_shown_is_as_none(name: object, good: Path, tmp_path: Path, ternfed: Command) -> None:
    runs = runs_on_own_data(good, tmp_path / "runs", name)
    assert [group.data_name for group in collect([runs]).groups] == [None, None]
    result = ternfed("ls", runs)
    assert result.exit_code == 0
    assert f"{fuzz_files.BAIT}:one" in result.stdout
    assert all(letter == "\n" or letter.isprintable() for letter in result.stdout)


@pytest.mark.parametrize("section", ["task", "federation", "algorithm", "model", "data"])
def test_a_configuration_with_a_number_for_a_section_is_reported_or_refused(
    section: str, good: Path, tmp_path: Path, ternfed: Command
) -> None:
    shutil.copytree(good / "run", tmp_path / "run")
    table = tomllib.loads((good / "run" / "config.toml").read_text())
    (tmp_path / "run" / "config.toml").write_text(tomli_w.dumps({**table, section: 1.5}))
    result = ternfed("report", tmp_path / "run", "--out", tmp_path / "report")
    assert result.exit_code in (0, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)

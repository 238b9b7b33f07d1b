"""Fuzz every file that ternfed reads: whatever a file says, the command line answers in one sentence.

    ternfed bench fuzz-files --count 10000 --seed 0

Model files (`.tern`, `.safetensors`, `.onnx`), arrays (`.npy`, `.npz`), experiments and all files of a run folder are
damaged: bytes as in `fuzz_wire`, and what they say about themselves entry by entry, with values that a program trips
over. A verb that reads the file is called in this process. It may succeed, or end with exit code 1 or 2 and one
sentence on standard error. A traceback, several lines, a control character on the terminal, or a module of the bait
imported, is a finding.
"""

from __future__ import annotations

import copy
import io
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from safetensors import safe_open
from safetensors.torch import save

from ternfed.bench.fuzz_wire import mutate, seal_file
from ternfed.bench.tables import markdown
from ternfed.data.sets import load
from ternfed.edge import export_from
from ternfed.engines.simulate import record
from ternfed.experiment.experiment import Experiment
from ternfed.files import KEY
from ternfed.round.federation import open_federation
from ternfed.runs.folder import RunFolder, summarise
from ternfed.wire import load_tern, save_tern

SETTINGS = (
    "federation.clients=2", "federation.participation=1", "federation.rounds=2", "training.epochs=1",
    "model.hidden=[8, 8, 8]", "data.hold_out=0.07",
)  # fmt: skip
BAIT = "ternfed_bait"
"""A module that lies in the current folder and must never be imported."""
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**70, 1e308, -0.0, float("nan"), float("inf"), "", "x", "x" * 5000, "\x1b[2J",
    "[red]", "a\nb", "\u202e", [], {}, [[]], [None], ["x"], [1e9], {"x": {}}, [0] * 50, f"{BAIT}:make",
    "subprocess:Popen", "os:system", "../../x", "\0",
)  # fmt: skip
Call = Callable[[list[str]], Any]


class Finding(RuntimeError):
    """A file that was not answered in one sentence."""


@dataclass(frozen=True)
class Fuzzed:
    """How often each verb ended in which way."""

    seed: int
    outcomes: Counter[tuple[str, str]]
    slowest: float


@dataclass(frozen=True)
class Case:
    """A good file, how it is damaged, and the verb that reads it."""

    name: str
    damage: Callable[[Path, random.Random], None]
    """Damages the file in place."""
    file: str
    """Below the folder of good files."""
    verb: Callable[[Path, Path], list[str]]
    """The arguments, from the folder and the file."""


def run(call: Call, count: int, seed: int = 0, tell: Callable[[str], None] | None = None) -> Fuzzed:
    """Try so many damaged files; `call` is the command line, which takes arguments."""
    outcomes: Counter[tuple[str, str]] = Counter()
    slowest, draw, began = 0.0, random.Random(seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as where, _standing_in(Path(where)):
        good = make_good(Path(where) / "good")
        cases = list(cases_of())
        for number in range(count):
            case, folder = draw.choice(cases), Path(where) / "bad"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(good, folder)
            file = folder / case.file
            case.damage(file, draw)
            start = time.perf_counter()
            try:
                outcomes[case.name, attempt(call, case.verb(folder, file))] += 1
            except Finding as error:
                raise Finding(f"seed {seed}, input {number}, {case.name}: {error}") from error
            slowest = max(slowest, time.perf_counter() - start)
            if tell is not None and (number + 1) % 1000 == 0:
                tell(f"{number + 1:,} files, {(number + 1) / (time.perf_counter() - began):,.0f} per second")
    return Fuzzed(seed, outcomes, slowest)


def attempt(call: Call, arguments: list[str]) -> str:
    """How a verb ended: `0`, `1` or `2`; a finding is raised."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            call(arguments)
    except typer.Exit as ended:
        code = ended.exit_code
    except SystemExit as ended:
        code = ended.code or 0
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever it is
        raise Finding(f"{arguments[0]}: {type(error).__name__}: {error}"[:500]) from error
    said = err.getvalue()
    if code not in (0, 1, 2):
        raise Finding(f"{arguments[0]}: exit code {code}")
    sentences = [line for line in said.splitlines() if line.startswith("ternfed: ") and "warning:" not in line]
    if code and len(sentences) != 1:
        raise Finding(f"{arguments[0]}: exit code {code} with {len(sentences)} sentences: {said[:300]!r}")
    if any(letter != "\n" and not letter.isprintable() for letter in said + out.getvalue()):
        raise Finding(f"{arguments[0]}: a control character on the terminal: {said[:200]!r} {out.getvalue()[:200]!r}")
    if BAIT in sys.modules:
        raise Finding(f"{arguments[0]}: code that a file named was imported")
    return str(code)


def make_good(folder: Path) -> Path:
    """One of every file that ternfed writes or reads."""
    folder.mkdir(parents=True)
    experiment = Experiment.from_toml("", SETTINGS)
    run_folder = folder / "run"
    with RunFolder.create(run_folder, experiment) as target:
        rounds = list(record(open_federation(experiment, load("digits")), target))
        target.finish(summarise(rounds, experiment))
    for suffix in ("tern", "safetensors", "onnx"):
        export_from(run_folder, folder / f"model.{suffix}")
    inputs, labels = np.zeros((3, 1, 8, 8), np.float32), np.arange(3)
    np.save(folder / "samples.npy", inputs)
    np.savez_compressed(folder / "samples.npz", inputs=inputs, labels=labels)
    (folder / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
    return folder


def cases_of() -> Iterator[Case]:
    """Each file with each damage, and the verbs that read it."""

    def shown(folder: Path, file: Path) -> list[str]:
        return ["inspect", str(file)]

    def predicted(folder: Path, file: Path) -> list[str]:
        return ["predict", str(file), "--data", str(folder / "samples.npy"), "--json"]

    def predicted_own(folder: Path, file: Path) -> list[str]:
        return ["predict", str(file), "--json"]

    def exported(folder: Path, file: Path) -> list[str]:
        return ["export", str(file), "--to", str(folder / "again.onnx")]

    for suffix, says in (("tern", _tern_says), ("safetensors", _safetensors_says), ("onnx", _onnx_says)):
        verbs = [shown, predicted, predicted_own, *([exported] if suffix != "onnx" else [])]
        for verb in verbs:
            for how, damage in (("bytes", _sealed if suffix == "tern" else _bytes), ("says", says)):
                yield Case(f"{suffix} {how}", damage, f"model.{suffix}", verb)
    for file in ("samples.npy", "samples.npz"):
        for how, damage in (("bytes", _bytes), ("header", _header)):
            yield Case(
                f"{file[-3:]} {how}",
                damage,
                file,
                lambda folder, file: ["predict", str(folder / "model.tern"), "--data", str(file), "--json"],
            )
    yield Case("experiment", _toml, "experiment.toml", lambda folder, file: ["plan", str(file), "--json"])
    for file, damages in {
        "config.toml": (_toml,), "rounds.jsonl": (_bytes, _lines), "timing.jsonl": (_bytes, _lines),
        "partition.json": (_bytes, _json), "summary.json": (_bytes, _json), "environment.json": (_bytes, _json),
        "state.safetensors": (_bytes, _safetensors_says), "best.safetensors": (_bytes, _safetensors_says),
    }.items():  # fmt: skip
        for damage in damages:
            yield Case(f"run: {file}", damage, f"run/{file}", _resumed)
            yield Case(f"run: {file}", damage, f"run/{file}", _run_exported)
            if file not in ("state.safetensors", "best.safetensors") and damage is not _bytes:
                yield Case(f"run: {file}", damage, f"run/{file}", _reported)
    for verb in (_reported, _listed):
        yield Case("run: data_name", _data_name, "run/partition.json", verb)


def _resumed(folder: Path, file: Path) -> list[str]:
    return ["run", "--resume", "--out", str(folder / "run"), "--set", "federation.rounds=2", "--json"]


def _run_exported(folder: Path, file: Path) -> list[str]:
    return ["export", str(folder / "run"), "--to", str(folder / "again.tern")]


def _reported(folder: Path, file: Path) -> list[str]:
    return ["report", str(folder / "run"), "--out", str(folder / "report")]


def _listed(folder: Path, file: Path) -> list[str]:
    return ["ls", str(folder / "run")]


def _data_name(file: Path, draw: random.Random) -> None:
    """Another name of the data set, in a run on data of somebody's own: only those are called by it."""
    config = file.with_name("config.toml")
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace('dataset = "digits"', f'dataset = "{BAIT}:make"'), encoding="utf-8")
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "data_name": _odd(draw)}), encoding="utf-8")


def _bytes(file: Path, draw: random.Random) -> None:
    data = file.read_bytes()
    file.write_bytes(mutate(data, data[::-1], draw) if draw.random() < 0.9 else data[: draw.randrange(len(data) + 1)])


def _sealed(file: Path, draw: random.Random) -> None:
    _bytes(file, draw)
    if draw.random() < 0.9:
        file.write_bytes(seal_file(file.read_bytes()))


def _header(file: Path, draw: random.Random) -> None:
    """Another description of the same numbers."""
    shape = draw.choice(
        ["(3, 1, 8, 8)", "(10000000000,)", "(-1,)", "()", "(0,)", "(3, 64)", "(1.5,)", "('x',)", "None"]
    )
    kind = draw.choice(["'<f4'", "'|O'", "'<c8'", "'<U9'", "'<M8[s]'", "'>f4'", "'<i8'", "[('a', '<f4')]", "'zz'", "0"])
    text = f"{{'descr': {kind}, 'fortran_order': {draw.choice(['True', 'False', '2'])}, 'shape': {shape}, }}".encode()
    text = text.ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(draw.choice([0, 100, 768, 1536]))
    if file.suffix == ".npy":
        file.write_bytes(data)
        return
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in draw.choice([["inputs.npy"], ["inputs.npy", "labels.npy"], ["\x1b[2J.npy"], []]):
            archive.writestr(name, data)


def odd(value: Any, draw: random.Random) -> Any:
    """A JSON value with one to three of its entries replaced, removed, or added to."""
    whole = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 2, 3])):
        places = list(_places(whole))
        if not places:
            return _odd(draw)
        holder, key = draw.choice(places)
        match draw.randrange(4):
            case 0 if isinstance(holder, dict):
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[draw.choice(["x", "\x1b[1m", "[b]", str(key) * 2])] = _odd(draw)
            case _:
                holder[key] = _odd(draw)
    return whole


def _odd(draw: random.Random) -> Any:
    """One of the odd values, of its own: a list that stood in two places could come to hold itself."""
    return copy.deepcopy(draw.choice(ODD))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


def _said(text: str, draw: random.Random) -> str:
    if draw.random() < 0.05:
        return draw.choice(["", "[" * 100_000, "null", "1", '"x"', "{", "NaN"])
    return json.dumps(odd(json.loads(text), draw))


def _tern_says(file: Path, draw: random.Random) -> None:
    tensors, notes = load_tern(file)
    if draw.random() < 0.2:  # the names of tensors too
        tensors = {draw.choice(["\x1b[2J", "[red]x", "a\nb", "x" * 9000]) + name: t for name, t in tensors.items()}
    save_tern(file, tensors, {**notes, KEY: _said(notes[KEY], draw)})


def _safetensors_says(file: Path, draw: random.Random) -> None:
    with safe_open(file, framework="pt") as stream:
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        said = stream.metadata()[KEY]
    if draw.random() < 0.2:
        tensors = {draw.choice(["\x1b[2J", "[red]x", "", "/"]) + name: tensor for name, tensor in tensors.items()}
    file.write_bytes(save(tensors, {KEY: _said(said, draw)}))


def _onnx_says(file: Path, draw: random.Random) -> None:
    import onnx

    model = onnx.load(str(file))
    for each in model.metadata_props:
        if each.key == KEY:
            each.value = _said(each.value, draw)
    file.write_bytes(model.SerializeToString())


def _json(file: Path, draw: random.Random) -> None:
    file.write_text(_said(file.read_text(encoding="utf-8"), draw), encoding="utf-8")


def _lines(file: Path, draw: random.Random) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    place = draw.randrange(len(lines))
    lines[place] = _said(lines[place], draw)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(file: Path, draw: random.Random) -> None:
    if draw.random() < 0.2:
        _bytes(file, draw)
        return
    import tomllib

    import tomli_w

    table = odd(tomllib.loads(file.read_text(encoding="utf-8")), draw)
    try:
        file.write_text(tomli_w.dumps(_without_none(table)), encoding="utf-8")
    except (TypeError, ValueError):
        _bytes(file, draw)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value if inner is not None] if isinstance(value, list) else value


@contextmanager
def _standing_in(folder: Path) -> Iterator[None]:
    """The current folder holds the bait, also under the name of a library that may be missing."""
    import os

    before = os.getcwd()
    (folder / f"{BAIT}.py").write_text("def make():\n    return None\n", encoding="utf-8")
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def table(fuzzed: Fuzzed) -> str:
    """How often each file was read, refused, or failed."""
    names = sorted({name for name, _ in fuzzed.outcomes})
    rows = [(name, *(f"{fuzzed.outcomes[name, code]:,}" for code in ("0", "2", "1"))) for name in names]
    head = (
        f"{fuzzed.outcomes.total():,} damaged files, seed {fuzzed.seed}: no traceback; slowest {fuzzed.slowest:.1f} s"
    )
    return head + "\n\n" + markdown(("file", "read", "refused (2)", "failed (1)"), rows)

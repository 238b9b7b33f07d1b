"""The page of speed is made of what was stored; a peer that does not install is a sentence."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from ternfed.bench import convolutions, gpu, peers, server_memory, speed
from ternfed.cli.app import app

ROW = {"part": "wire", "what": "decoding", "promised": "≥ 400", "measured": "302", "kept": False, "command": "x"}


def test_the_page_is_made_of_the_stored_measurement(tmp_path: Path) -> None:
    stored, page = tmp_path / "speed.json", tmp_path / "page.md"
    stored.write_text(json.dumps({"decoding": {"machine": "here", "rows": [ROW, {**ROW, "kept": True}]}}))
    page.write_text("before\n<!-- begin speed -->\n<!-- end speed -->\nafter\n")
    arguments = ["bench", "speed", "--stored", "--out", str(stored), "--into", str(page)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    text = page.read_text()
    assert "1 of 2 promises are kept" in text
    assert "| wire | decoding | ≥ 400 | 302 | **missed** | `x` |" in text
    assert text.startswith("before")
    assert text.endswith("after\n")


def test_nothing_stored_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "speed", "--stored", "--out", str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "no stored measurement" in result.output


def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "speed", "--part", "sound", "--out", str(tmp_path / "s.json")])
    assert result.exit_code == 2
    assert "no part 'sound'" in result.output


def test_a_part_for_a_gpu_is_left_out_where_none_is_and_what_is_stored_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stored = tmp_path / "speed.json"
    result = CliRunner().invoke(app, ["bench", "speed", "--part", "GPU", "--out", str(stored)])
    assert result.exit_code == 2
    assert "the part 'GPU' needs an NVIDIA GPU" in result.output
    kept = {"GPU": {"machine": "an H200", "limits": {}, "rows": [{**ROW, "part": "GPU"}]}}
    stored.write_text(json.dumps({**kept, "convolutions": {"machine": "another run", "limits": {}, "rows": [ROW]}}))
    monkeypatch.setattr(
        speed, "PARTS", {"decoding": lambda limits: iter([speed.Kept(**ROW)]), "GPU": speed.PARTS["GPU"]}
    )
    assert CliRunner().invoke(app, ["bench", "speed", "--out", str(stored)]).exit_code == 0
    found = json.loads(stored.read_text())
    assert found["GPU"] == kept["GPU"]
    assert found["decoding"]["rows"] == [ROW]
    assert set(found) == {"GPU", "decoding"}, "of another whole run nothing else stays"


def test_a_step_on_a_gpu_is_measured_beside_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCH": 2, "STEPS": 2, "CALLS": 1, "EPOCHS": {"float32": 1, "bfloat16": 1}}.items():
        monkeypatch.setattr(gpu, name, value)
    (row,) = gpu.run(("cnn",), ("float32",), (2,), (False,), device="cpu")
    assert min(row.fedavg, row.tfedavg, row.loop) > 0
    assert row.speedup == pytest.approx(row.loop / row.fedavg)
    assert "plain loop (ms)" in gpu.table([row])


def test_the_projects_page_is_that_of_its_stored_measurement() -> None:
    root = Path(__file__).parents[2]
    stored = json.loads((root / "results" / "speed.json").read_text())
    assert speed.page(stored) in (root / "docs" / "speed.md").read_text()


def test_a_peer_that_does_not_install_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "folder", lambda: tmp_path)
    monkeypatch.setattr(peers, "environment", lambda place, needs: (place, "No matching distribution found"))
    rows = list(peers.run())
    assert [row.ratio for row in rows] == [None] * len(peers.PEERS)
    assert peers.table(rows).count("does not install here: No matching distribution found") == len(rows)


def test_packages_that_pip_does_not_find_are_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = "WARNING: slow\nERROR: Could not find a version\nERROR: No matching distribution found for pfl==0.6.0\n"
    failed = subprocess.CompletedProcess((), 1, "", said)
    monkeypatch.setattr(peers.venv, "create", lambda place, **options: None)
    monkeypatch.setattr(peers.subprocess, "run", lambda *arguments, **options: failed)
    problem = peers.environment(tmp_path / "pfl", peers.PFL)[1]
    assert problem == "No matching distribution found for pfl==0.6.0"
    assert not (tmp_path / "pfl").exists()


@pytest.mark.parametrize(
    "peer", [peer for peer in peers.PEERS if peer.folder in ("fedjax", "pfl")], ids=lambda peer: peer.folder
)
def test_a_peer_that_ends_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, peer: peers.Peer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Here because the environment lacks it: the script's last words, and no traceback."""
    if importlib.util.find_spec(peer.folder) is not None:
        pytest.skip(f"{peer.name} is installed here")
    monkeypatch.setattr(peers, "PEERS", (peer,))
    monkeypatch.setattr(peers, "environment", lambda place, needs: (Path(sys.executable), ""))
    (row,) = peers.run(3)
    words = f"does not run here: {peer.folder}_round.py ended: ModuleNotFoundError: No module named '{peer.folder}'"
    assert (row.name, row.ratio, row.said) == (peer.name, None, words)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_servers_sums_do_not_grow_with_its_clients() -> None:
    few, many = server_memory.run((5, 50))
    assert many.sums == few.sums
    assert many.notes / 50 < 600


def _small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 10))


@pytest.mark.parametrize("has", [True, False])
def test_convolutions_are_measured_as_a_run_trains_them(monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    """In bfloat16 only where the CPU has it: elsewhere that would take minutes, and the answer is a sentence."""
    monkeypatch.setattr(convolutions, "cpu_has_bfloat16", lambda: has)
    rows = list(convolutions.run(1, {"small": _small}, size=8))
    assert [row.way for row in rows if row.is_ours] == ["ternfed, float32", "ternfed, bfloat16"][: 1 + has]
    assert rows[0].speedup == 1.0
    assert ("no instructions for bfloat16" in convolutions.table(rows)) == (not has)

"""docs/edge.md: from a finished run to predictions on another machine, in the three commands that stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
import torch

from ternfed.data.sets import load
from ternfed.edge import from_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "edge.md"
UNREACHABLE = ("No matching distribution", "NewConnectionError", "ConnectTimeout", "ProxyError", "Could not fetch")


def three_commands() -> list[str]:
    block = re.search(r"<!-- trial -->\n```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    commands = [line for line in block[1].replace("\\\n", "").splitlines() if line and not line.startswith("#")]
    assert len(commands) == 3
    return commands


def shell(command: str, folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """A command as a user types it, with nothing of this test's environment but the programs of one folder."""
    keep = ("HOME", "LANG", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "PIP_FIND_LINKS", "TMPDIR")
    kept = {key: os.environ[key] for key in keep if key in os.environ}
    path = os.pathsep.join([str(programs), "/usr/bin", "/bin"])
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, env={**kept, "PATH": path}, capture_output=True, text=True, timeout=600
    )


def test_three_commands_lead_from_a_run_to_predictions_in_a_fresh_environment(
    finished_run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript", reason="the extra [edge]")
    export, install, predict = three_commands()
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    shutil.copytree(finished_run, here / "runs" / "digits")

    exported = shell(export, here, Path(sys.executable).parent)
    assert exported.returncode == 0, exported.stderr
    # Only these two files travel.
    shutil.copy(here / "model.onnx", there)
    samples = load("digits").test.inputs
    np.save(there / "samples.npy", samples.numpy())

    venv.create(there / "env", with_pip=True)
    programs = there / "env" / ("Scripts" if os.name == "nt" else "bin")
    installed = shell(install, there, programs)
    if installed.returncode and any(word in installed.stderr for word in UNREACHABLE):
        pytest.skip(f"pip reaches no package registry: {installed.stderr.strip().splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    held = shell("python -m pip list --format=freeze", there, programs).stdout.lower()
    assert "onnxruntime" in held
    assert "torch" not in held
    assert "ternfed" not in held

    found = shell(predict, there, programs)
    assert found.returncode == 0, found.stderr
    model = from_run(finished_run)
    with torch.no_grad():
        ready = (samples - model.inputs.mean[0]) / model.inputs.std[0]
        wanted = model.network(ready).argmax(1).tolist()
    assert [int(word) for word in re.findall(r"\d+", found.stdout)] == wanted

"""The three apps of `examples/flower` run as they are, in one process and under Flower's own commands."""

from __future__ import annotations

import importlib
import logging
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")
pytest.importorskip("sklearn", reason="the digits come with scikit-learn, the extra [data]")

import ternfed
from ternfed.bench import stock_flower as stock_flower_module
from ternfed.bench.stock_flower import run_app, simulated_flower, stock_flower
from ternfed.cli import app as command_line
from ternfed.engines.flower import adapter
from ternfed.engines.flower.adapter.in_process import in_process_grid

EXAMPLES = Path(__file__).parents[3] / "examples" / "flower"
BEST = {"updates": 0.85, "ternary": 0.75, "head": 0.8}
"""What each app reaches at least."""


def scores(lines: str) -> list[float]:
    return [float(number) for number in re.findall(r"'?accuracy'?\"?: '?([\d.e+-]+)", lines)]


@pytest.mark.parametrize("name", BEST)
def test_an_app_learns_and_little_travels(name: str, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from flwr.app import Context, RecordDict

    monkeypatch.syspath_prepend(str(EXAMPLES / name))
    server, client = (importlib.import_module(f"{name}_app.{side}_app") for side in ("server", "client"))
    logger = logging.getLogger("flwr")
    logger.setLevel(logging.INFO)
    logger.propagate = True
    config = {"num-server-rounds": 5, "min-nodes": 2, "local-epochs": 2}
    grid = in_process_grid({1: client.app, 2: client.app}, config)
    with caplog.at_level(logging.INFO, "flwr"):
        server.main(grid, Context(1, 1, {}, RecordDict(), config))
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert scores(said)[-1] > BEST[name]
    shares = [float(share) for share in re.findall(r"share-of-float32-up': ([\d.]+)", said)]
    assert 0 < shares[-1] < 1 / 10  # of a model with 9,000 weights
    for module in [each for each in sys.modules if each.startswith(f"{name}_app")]:
        del sys.modules[module]


@pytest.mark.parametrize(
    "name", ["updates", *(pytest.param(each, marks=pytest.mark.slow) for each in ("ternary", "head"))]
)
def test_flwr_run_runs_an_app_as_it_is_and_it_learns(name: str, tmp_path: Path) -> None:
    app = tmp_path / name
    shutil.copytree(EXAMPLES / name, app, ignore=shutil.ignore_patterns("__pycache__"))
    with stock_flower(tmp_path, 2) as environment:
        lines = "\n".join(line for _, line in run_app(app, environment, "num-server-rounds=3", seconds=400))
    assert scores(lines), lines[-3000:]
    assert scores(lines)[-1] > BEST[name] - 0.1
    assert "ternfed-share-of-float32-up" in lines


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation needs Ray, the extra [simulation]")
@pytest.mark.parametrize("name", BEST)
def test_an_app_runs_in_flowers_simulation_and_learns(name: str, tmp_path: Path) -> None:
    app = tmp_path / name
    shutil.copytree(EXAMPLES / name, app, ignore=shutil.ignore_patterns("__pycache__"))
    with simulated_flower(tmp_path / "flower", 2) as environment:
        lines = "\n".join(line for _, line in run_app(app, environment, "num-server-rounds=3", seconds=900))
    assert scores(lines), lines[-3000:]
    assert scores(lines)[-1] > BEST[name] - 0.1
    assert "ternfed-share-of-float32-up" in lines


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock_flower_module, "find_spec", lambda name: None)
    ended = CliRunner().invoke(command_line.app, ["bench", "flower", "--simulated", "--dataset", "digits"])
    assert ended.exit_code == 1
    sentence = "Flower's simulation needs Ray; install the extra [simulation]: pip install 'ternfed[simulation]'"
    assert sentence in " ".join(ended.output.split())


def test_the_two_lines_are_all_that_an_app_needs() -> None:
    """Every file of `updates` but for these names is one that knows nothing of ternfed."""
    package = EXAMPLES / "updates" / "updates_app"
    lines = [line for file in package.glob("*.py") for line in file.read_text(encoding="utf-8").splitlines()]
    code = [line for line in lines if "ernary" in line and not line.startswith(('"', "from"))]
    assert sorted(line.strip() for line in code) == [
        "app = ClientApp(mods=[ternary_mod])  # was: ClientApp()",
        "strategy = TernaryStrategy(strategy)  # the one line",
    ]


def test_an_app_that_carries_ternfed_needs_it_nowhere_else(tmp_path: Path) -> None:
    """As `examples/flower/README.md` says: the package is copied into the app, and Flower packs it."""
    app = tmp_path / "updates"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLES / "updates", app, ignore=ignored)
    shutil.copytree(ternfed.__path__[0], app / "ternfed", ignore=ignored)
    told = (EXAMPLES / "README.md").read_text(encoding="utf-8").partition("## An app that carries ternfed")[2]
    (included,) = re.findall(r"^fab-include = .*$", told, re.MULTILINE)
    project = (app / "pyproject.toml").read_text(encoding="utf-8")
    (app / "pyproject.toml").write_text(re.sub(r"(?m)^fab-include = .*$", included, project), encoding="utf-8")
    subprocess.run([adapter.program("flwr"), "build"], cwd=app, check=True, capture_output=True, timeout=120)
    (packed,) = app.glob("*.fab")
    assert packed.stat().st_size < 10 << 20  # Flower takes no larger ones
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path / "unpacked")
    found = "import ternfed, updates_app.client_app, updates_app.server_app; print(ternfed.__file__)"
    own = {**os.environ, "PYTHONPATH": str(tmp_path / "unpacked")}
    done = subprocess.run([sys.executable, "-c", found], env=own, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "unpacked" / "ternfed" / "__init__.py"

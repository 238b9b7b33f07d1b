"""What is handed out works without the source tree: wheel and source archive, in an environment of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

ROOT = Path(__file__).parent.parent
pytest.importorskip("hatchling", reason="part of the extra [dev]")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both files, from a copy of what is in the repository."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", out], cwd=ROOT, check=True, capture_output=True
    )
    return out


def version() -> str:
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return found


def test_wheel_and_archive_hold_what_they_need_and_no_more(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (archive,) = built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    rows = [name for name in names if name.startswith("ternfed/experiments/") and name.endswith(".toml")]
    assert len(rows) == len(list((ROOT / "experiments").glob("*.toml")))
    assert {"ternfed/py.typed", "ternfed/report/templates/page.html", "ternfed/watch/page/index.html"} <= set(names)
    assert all(name.startswith(("ternfed/", f"ternfed-{version()}.dist-info/")) for name in names)
    with tarfile.open(archive) as tar:
        inside = {Path(name).parts[1] for name in tar.getnames() if len(Path(name).parts) > 1}
    assert {"src", "tests", "docs", "experiments", "README.md", "LICENSE", "pyproject.toml"} <= inside
    assert "results" not in inside  # hundreds of run folders, for the tables of the repository
    assert archive.stat().st_size < 5_000_000


@pytest.mark.slow
def test_a_fresh_environment_runs_it(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    place = tmp_path / "environment"
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    within = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    calm = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command: object) -> str:
        done = subprocess.run(
            [str(part) for part in command], cwd=tmp_path, env=calm, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    # The dependencies are this environment's, so that no gigabyte is fetched; ternfed itself is the wheel's.
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    (within / "dependencies.pth").write_text("\n".join(packages) + "\n", encoding="utf-8")
    ternfed = place / "bin" / "ternfed"
    assert Path(run(python, "-c", "import ternfed; print(ternfed.__file__)").strip()).is_relative_to(place)
    assert run(ternfed, "--version") == f"ternfed {version()}\n"
    run(ternfed, "demo", "--rounds", "2")
    assert (tmp_path / "demo" / "demo.png").stat().st_size > 10_000
    assert "cifar10-resnet18-iid-tfedavg" in run(ternfed, "reproduce", "--list", "--json")


@pytest.mark.slow
def test_three_commands_lead_from_a_clone_to_a_live_page(tmp_path: Path) -> None:
    """As the start page has them; only the dependencies are this environment's, so that no gigabyte is fetched."""
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    said = re.search(r"Three commands.*?```sh\n(.*?)```", page, re.DOTALL)
    assert said is not None
    make, install, start = said[1].strip().splitlines()
    clone, calm = tmp_path / "clone", {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    subprocess.run(shlex.split(make), cwd=clone, env=calm, check=True)
    place = clone / ".venv"
    within = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    (within / "dependencies.pth").write_text("\n".join(packages) + "\n", encoding="utf-8")
    for program in Path(sys.executable).parent.glob("flower-*"):
        (place / "bin" / program.name).symlink_to(program)
    offline = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    subprocess.run([*shlex.split(install), *offline], cwd=clone, env=calm, check=True)
    server = subprocess.Popen(shlex.split(start), cwd=clone, env=calm, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        address = next(at[1] for line in server.stderr if (at := re.search(r"live page is (http://127\S+/)", line)))
        end, rounds = time.monotonic() + 300, 0
        while rounds < 2:
            assert time.monotonic() < end
            time.sleep(1)
            with build_opener(ProxyHandler({})).open(f"{address}state", timeout=60) as answer:
                runs = json.loads(answer.read())["runs"]
            rounds = len(runs[0]["rounds"]) if runs else 0
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert runs[0]["live"]["clients"].keys() == {"0", "1", "2", "3", "4"}


def test_the_version_is_the_same_everywhere() -> None:
    import ternfed

    assert ternfed.__version__ == version()
    assert f"\nversion: {version()}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {version()}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for page in ("docs/install.md", "docs/systemd.md"):
        assert f"ternfed-{version()}-py3-none-any.whl" in (ROOT / page).read_text(encoding="utf-8")

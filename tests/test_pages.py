"""The pages tell the truth: their Python runs, their commands and links exist."""

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ternfed.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(examples(ROOT / "README.md"))))
def test_the_readmes_python_runs_as_it_stands(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = examples(ROOT / "README.md")[number]
    (tmp_path / "my_texts").mkdir()
    for name, line in (("cat", "the cat sat on the mat. "), ("dog", "a dog lay by the log. ")):
        (tmp_path / "my_texts" / f"{name}.txt").write_text(100 * line)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, f"README example {number}", "exec"), names)
    if "federate" in code:
        last = capsys.readouterr().out.strip().splitlines()[-1]
        assert last.startswith("round 15:")
        assert float(last.split("%")[0].split()[-1]) > 85


def test_the_algorithm_in_contributing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = examples(ROOT / "CONTRIBUTING.md")
    (tmp_path / "page_algorithm.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    arguments = ["run", "--algorithm", "page_algorithm:algorithm", "--set", "algorithm.mu=0.3", "--rounds", "2"]
    result = CliRunner().invoke(app, [*arguments, "--epochs", "1", "--json"])
    assert result.exit_code == 0, result.output


def test_the_algorithm_in_contributing_is_the_one_in_the_package() -> None:
    (code,) = examples(ROOT / "CONTRIBUTING.md")
    assert code == (ROOT / "src/ternfed/algorithms/fedprox.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing


def test_every_file_of_the_readmes_tree_exists() -> None:
    tree = re.search(r"^src/ternfed/\n(.*?)^docs/", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert tree is not None
    named = re.findall(r"\b(\w+(?:\.py|/))", tree.group(1))
    missing = [name for name in named if not list((ROOT / "src").rglob(name.rstrip("/")))]
    assert not missing


def test_pages_hold_no_path_of_one_machine() -> None:
    for page in PAGES:
        assert not re.search(r"/(?:home|root|work|tmp)/", page.read_text()), page.name

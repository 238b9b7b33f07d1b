"""The pages tell the truth: their Python runs, their commands and links exist; and they can be read anywhere."""

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from ternfed.cli.app import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md",
    *sorted(DOCS.glob("*.md")), ROOT / "examples" / "flower" / "README.md",
]  # fmt: skip
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
WIDTH, COLUMNS = 120, 8


def examples(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


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
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.startswith("round 15:")
    assert float(last.split("%")[0].split()[-1]) > 85


def test_the_readme_has_a_classifier_a_language_model_and_a_part_of_a_model() -> None:
    first, second, third = examples(ROOT / "README.md")
    assert 'load("digits")' in first
    assert "task.name=language" in second
    assert "model.trainable" in third


@pytest.mark.parametrize("page", [page for page in sorted(DOCS.glob("*.md")) if examples(page)], ids=lambda p: p.stem)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")  # finished cells are read, not computed
    for settings in examples(page, "toml")[:1]:
        (tmp_path / "mnist.toml").write_text(settings, encoding="utf-8")
    names: dict[str, object] = {"__name__": f"page_{page.stem}"}
    module = type(sys)(f"page_{page.stem}")  # dataclasses ask for the module that they are in
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, code in enumerate(examples(page)):
        exec(compile(code, f"{page.name}, example {number}", "exec"), names)


@pytest.mark.parametrize(
    ("page", "setting"),
    [(ROOT / "CONTRIBUTING.md", "algorithm.mu=0.3"), (DOCS / "own_algorithm.md", "algorithm.pull=0.1")],
    ids=["contributing", "own_algorithm"],
)
def test_the_algorithm_of_a_page_runs(
    page: Path, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = examples(page)
    (tmp_path / f"page_{page.stem.lower()}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    arguments = ["run", "--algorithm", f"page_{page.stem.lower()}:algorithm", "--set", setting, "--rounds", "2"]
    result = CliRunner().invoke(app, [*arguments, "--epochs", "1", "--json"])
    assert result.exit_code == 0, result.output


def test_the_algorithm_in_contributing_is_the_one_in_the_package() -> None:
    (code,) = examples(ROOT / "CONTRIBUTING.md")
    assert code == (ROOT / "src/ternfed/algorithms/fedprox.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing


def commands_in(page: Path) -> list[list[str]]:
    """Every `ternfed …` of a page as a shell would cut it: whole lines of its blocks, and what stands in its text."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^```(?:sh|console|bash)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    lines = re.findall(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/)?ternfed (.+)$", blocks, re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines += [" ".join(found.split()) for found in re.findall(r"(?<!`)`ternfed ([^`]+)`(?!`)", prose)]
    return [shlex.split(re.split(r"\s[&|>;]", line)[0], comments=True) for line in lines if "…" not in line]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_are_understood_with_all_their_options(page: Path) -> None:
    for words in commands_in(page):
        command: Any = typer.main.get_command(app)
        named = ["ternfed"]
        while hasattr(command, "commands") and words and words[0] not in ("VERB", "NAME") and words[0][0] != "-":
            assert words[0] in command.commands, (page.name, words)
            command = command.commands[words[0]]
            named.append(words.pop(0))
        if not words or hasattr(command, "commands"):
            continue  # only named
        # N and $SEED stand for a value, $resume for an option or nothing.
        values = ["3" if re.fullmatch(r"\$?[A-Z_]+|\$out", word) else word for word in words if word != "$resume"]
        try:
            command.make_context(" ".join(named), values)
        except (click.exceptions.MissingParameter, click.exceptions.BadOptionUsage):
            pass  # of a sentence that names one option alone
        except click.exceptions.UsageError as error:
            raise AssertionError((page.name, *named, *words, error.format_message())) from error


def test_the_drawing_of_a_round_is_the_one_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    drawn = runpy.run_path(str(DOCS / "draw_round.py"))["picture"]()
    assert (DOCS / "images" / "round.svg").read_text(encoding="utf-8") == drawn


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_longer_than_an_editor_is_wide(page: Path) -> None:
    long = [line for line in written(page) if len(line) > WIDTH and not is_one_thing(line)]
    assert not long


def written(page: Path) -> Iterator[str]:
    """The lines of a page that somebody wrote: not those of the tables that `ternfed report` makes."""
    made = False
    for line in page.read_text(encoding="utf-8").splitlines():
        made = line.startswith("<!-- report:") or (made and line != "<!-- /report -->")
        if not made:
            yield line


def is_one_thing(line: str) -> bool:
    """A row of a table, a picture or an address cannot be broken."""
    return line.startswith(("|", "![")) or max(map(len, line.split())) > WIDTH // 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_has_more_columns_than_a_page_has_room_for(page: Path) -> None:
    rules = re.findall(r"^\|(?: *:?-+:? *\|)+$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(rule.count("|") - 1 <= COLUMNS for rule in rules)


def test_pages_hold_no_path_of_one_machine() -> None:
    for page in (*PAGES, *NOTEBOOKS):
        assert not re.search(r"/(?:home|root|work|tmp)/", page.read_text(encoding="utf-8")), page.name


class TestNotebooks:
    """They are stored with what they printed, so that the site needs no training."""

    @pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
    def test_every_cell_was_run_once_in_order_without_an_error(self, path: Path) -> None:
        cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
        assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
        kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
        assert kinds
        assert "error" not in kinds
        lines = [line.rstrip("\n") for cell in cells for line in cell["source"]]
        assert all(len(line) <= WIDTH for line in lines)

    @pytest.mark.slow
    @pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
    def test_they_run_again(self, path: Path, tmp_path: Path) -> None:
        nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
        pytest.importorskip("ipykernel")
        stored, again = nbformat.read(path, 4), nbformat.read(path, 4)
        nbclient.NotebookClient(again, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
        assert list(map(words, again.cells)) == list(map(words, stored.cells))


def words(cell: Any) -> str:
    """What a cell printed, without its numbers: they differ in the last digits from machine to machine."""
    told = [output.get("text") or output["data"]["text/plain"] for output in cell.get("outputs", ())]
    return re.sub(r"-?\d[\d.,]*", "#", " ".join(told)).replace(" ", "")

"""The page: everything is there, nothing is loaded, and what came out of a folder stays text."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from run_folders import known_run, real_run
from ternfed.cli.app import app
from ternfed.experiment.experiment import Experiment
from ternfed.paper.rows import Row
from ternfed.report.style import slug, spread
from ternfed.report.write import Written, write_report

pytest.importorskip("matplotlib")

FIGURES = {
    "convergence-digits-mlp-12-12-12-12-12-iid", "convergence-digits-mlp-12-12-12-12-12-nc2",
    "loss-digits-mlp-12-12-12-12-12-iid", "loss-digits-mlp-12-12-12-12-12-nc2",
    "participation-digits-mlp-12-12-12-12-12-t-fedavg", "balance-digits-mlp-12-12-12-12-12",
    "distribution-digits", "sizes-digits", "layers-digits-mlp-12-12-12-12-12-iid",
    "layers-digits-mlp-12-12-12-12-12-nc2", "changed-trits", "strategies", "seconds",
}  # fmt: skip
HOSTILE = "$x^{$<script>window.hacked=1</script><img src=x onerror=alert(1)>\"'&"


class Page(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for key, value in attrs:
            if key == "id":
                self.ids.append(value or "")
            elif key == "href" and tag == "a":
                self.links.append(value or "")
            elif key in ("src", "href", "xlink:href", "data", "srcset", "action"):
                self.loaded.append(value or "")
            elif key.startswith("on"):
                self.handlers.append(key)


@pytest.fixture(scope="module")
def written(runs: Path, rows: dict[str, Row], tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_report([runs], tmp_path_factory.mktemp("page") / "out", rows=rows)


@pytest.fixture(scope="module")
def html(written: Written) -> str:
    return written.page.read_text(encoding="utf-8")


def test_every_figure_and_table_that_the_runs_have_something_for_is_there(written: Written) -> None:
    assert set(written.figures) == FIGURES
    assert set(written.tables) == {"summary", "centralized", "iid", "non-iid", "participation", "balance"}
    assert (written.groups, written.runs, written.unfinished) == (12, 18, 1)


def test_every_figure_lies_beside_the_page_as_png_and_svg(written: Written) -> None:
    image = pytest.importorskip("PIL.Image")
    files = {path.name for path in (written.page.parent / "figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    for name in FIGURES:
        with image.open(written.page.parent / "figures" / f"{name}.png") as picture:
            assert picture.width >= 1600, name
            assert len(picture.convert("L").getcolors(256)) > 10, name


def test_the_page_loads_nothing_and_runs_its_own_script_alone(html: str) -> None:
    page = Page(html)
    assert all(value.startswith(("data:", "#")) for value in page.loaded)
    assert page.tags["script"] == 1
    assert page.tags["iframe"] == page.tags["img"] == 0
    assert page.handlers == []
    assert not re.search(r"@import|url\((?!#)", html)


def test_every_figure_stands_in_the_page_as_text_and_lines(html: str) -> None:
    page = Page(html)
    assert page.tags["figure"] == len(FIGURES)
    assert page.tags["svg"] == 2 * len(FIGURES)  # for a desk and for a phone
    assert {f"figure-{name}" for name in FIGURES} <= set(page.ids)
    assert re.search(r"<text[^>]*>T-FedAvg</text>", html)


def test_links_lead_somewhere_and_no_id_is_there_twice(html: str, written: Written) -> None:
    page = Page(html)
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids
        else:
            assert (written.page.parent / link).is_file()
    for target in re.findall(r"url\(#([^)]+)\)", html):
        assert target in page.ids


def test_an_unfinished_run_is_shown_as_such(html: str) -> None:
    assert "<strong>Unfinished:</strong> halted, seed 0: 2 of 3 rounds." in html
    assert "2 of 3 × 1, unfinished" in html


def test_a_group_tells_its_command_its_settings_and_its_machine(html: str) -> None:
    assert "<code>ternfed reproduce digits-iid-fedavg</code>" in html
    assert "<code>ternfed run config.toml</code>" in html  # of the one that is no row
    assert "PyTorch " in html
    (settings,) = (text for text in map(unescape, re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)) if "halted" in text)
    again = Experiment.from_toml(settings)
    assert (again.algorithm.name, again.federation.rounds) == ("stc", 3)


def test_the_tables_are_also_markdown(written: Written) -> None:
    text = (written.page.parent / "tables.md").read_text()
    assert "## Summary" in text
    assert "| paper: T-FedAvg | 90.50 ± 0.25 |" in text


def test_the_same_runs_give_the_same_files(written: Written, runs: Path, rows: dict[str, Row], tmp_path: Path) -> None:
    again = write_report([runs], tmp_path, rows=rows)
    assert again.page.read_bytes() == written.page.read_bytes()
    for path in sorted((tmp_path / "figures").iterdir()):
        assert path.read_bytes() == (written.page.parent / "figures" / path.name).read_bytes(), path.name


def test_runs_without_layers_partition_and_seconds_lack_only_those_figures(tmp_path: Path) -> None:
    path = real_run(tmp_path / "old")
    (path / "partition.json").unlink()
    (path / "timing.jsonl").unlink()
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({k: v for k, v in line.items() if k != "layer_bits"}) + "\n" for line in lines)
    (path / "rounds.jsonl").write_text(text)
    figures = write_report([path], tmp_path / "out", rows={}).figures
    network = "digits-mlp-12-12-12-12-12-iid"
    assert set(figures) == {f"convergence-{network}", f"loss-{network}", "changed-trits", "strategies"}


def test_folders_with_hardly_a_round_make_a_page(tmp_path: Path) -> None:
    settings = ["data.dataset=mnist", "algorithm.name=fedavg", "federation.rounds=5"]
    known_run(tmp_path / "none", settings, [])
    known_run(tmp_path / "one", [*settings, "data.classes_per_client=2"], [{}])
    known_run(tmp_path / "lost", [*settings, "training.rate=9"], [{"score": float("nan")}] * 5)
    written = write_report([tmp_path], tmp_path / "out", rows={})
    assert written.unfinished == 2
    assert "not finite" in written.page.read_text()


def hostile_run(path: Path) -> Path:
    """A real run whose every text was replaced by someone who means harm."""
    real_run(path)
    file = path / "config.toml"
    text = file.read_text()
    own = json.dumps(HOSTILE)
    for line in (
        'name = "digits-tfedavg"',
        'dataset = "digits"',
        'partition = "iid"',
        'name = "mlp"',
        'optimizer = "sgd"',
    ):
        assert line in text
        text = text.replace(line, f"{line.partition(' = ')[0]} = {own}")
    file.write_text(text.replace('name = "tfedavg"', f"name = {own}"))
    (path / "environment.json").write_text(json.dumps([{"processor": HOSTILE, "device": HOSTILE, "torch": HOSTILE}]))
    return path


def test_text_from_a_folder_stays_text(tmp_path: Path) -> None:
    written = write_report([hostile_run(tmp_path / "a")], tmp_path / "out", rows={})
    html = written.page.read_text()
    page = Page(html)
    assert (page.tags["script"], page.tags["img"]) == (1, 0)
    assert page.handlers == []
    assert html.count("&lt;script&gt;window.hacked=1") >= 3  # it is shown, in the summary, the settings, a figure
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in written.figures)
    for figure in (tmp_path / "out" / "figures").glob("*.svg"):
        assert "<script" not in figure.read_text()
    assert "<script" not in (tmp_path / "out" / "tables.md").read_text()


class TestCommand:
    def call(self, *arguments: object) -> Result:
        return CliRunner().invoke(app, ["report", *map(str, arguments)])

    def test_it_says_what_it_made(self, runs: Path, tmp_path: Path) -> None:
        result = self.call(runs / "halted", runs / "digits-central", "--out", tmp_path / "r")
        assert result.exit_code == 0, result.output
        assert "index.html: runs 2 (1 unfinished), groups 2, tables" in result.output.replace("\n", " ")
        assert (tmp_path / "r" / "index.html").is_file()

    def test_json_is_one_object(self, runs: Path, tmp_path: Path) -> None:
        result = self.call(runs / "halted", "--out", tmp_path / "r", "--json")
        value = json.loads(result.stdout)
        assert value["runs"] == value["unfinished"] == 1
        assert Path(value["page"]).is_file()

    def test_a_page_gets_its_tables(self, runs: Path, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text(
            "before\n\n<!-- report: summary -->\n<!-- /report -->\n\n<!-- report: ablation -->\n<!-- /report -->\n"
        )
        result = self.call(runs / "digits-iid-fedavg", "--out", tmp_path / "r", "--into", page)
        assert result.exit_code == 0, result.output
        assert "page.md: ablation: no run belongs to this table" in result.output.replace("\n", "")
        text = page.read_text()
        assert text.startswith("before\n\n<!-- report: summary -->\n\n| run | data | model |")
        assert "| Digits, IID |" in text

    @pytest.mark.parametrize("wrong", ["folder", "empty", "table", "page", "out"])
    def test_wrong_input_is_one_sentence_and_exit_code_2_and_nothing_is_written(
        self, runs: Path, tmp_path: Path, wrong: str
    ) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "page.md").write_text("<!-- report: wrong -->\n<!-- /report -->\n")
        (tmp_path / "file").write_text("")
        arguments = {
            "folder": (tmp_path / "nowhere", "--out", tmp_path / "r"),
            "empty": (runs, tmp_path / "empty", "--out", tmp_path / "r"),
            "table": (runs / "halted", "--out", tmp_path / "r", "--into", tmp_path / "page.md"),
            "page": (runs / "halted", "--out", tmp_path / "r", "--into", tmp_path / "no.md"),
            "out": (runs / "halted", "--out", tmp_path / "file"),
        }[wrong]
        expected = {
            "folder": "there is no such folder",
            "empty": "holds no run",
            "table": "names no table",
            "page": "a Markdown page is needed",
            "out": "cannot be written",
        }[wrong]
        result = self.call(*arguments)
        assert result.exit_code == 2
        assert expected in " ".join(result.output.split())
        assert "Traceback" not in result.output
        assert not (tmp_path / "r").exists()

    @pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
    def test_without_its_packages_the_extra_is_named_and_nothing_is_written(
        self, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
    ) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        result = self.call(runs / "halted", "--out", tmp_path / "r")
        assert result.exit_code == 2
        assert f"a report needs {package}: pip install 'ternfed[report]'" in result.output.replace("\n", "")
        assert not (tmp_path / "r").exists()


@given(st.lists(st.floats(0, 100), max_size=8), st.floats(0.1, 5))
def test_names_at_lines_keep_their_order_and_their_distance(places: list[float], gap: float) -> None:
    moved = spread(sorted(places), gap, 100.0)
    assert all(place <= 100.0 for place in moved)
    # A sum of eight numbers below 200 is exact to a few units in the fifteenth digit.
    assert all(second - first >= gap - 1e-12 for first, second in pairwise(moved))


@given(st.text())
def test_a_figures_file_name_is_plain(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", slug(text))


def test_the_old_runs_of_this_repository_make_a_page(tmp_path: Path) -> None:
    results = Path(__file__).parents[2] / "results" / "cifar-fedavg"
    if not results.is_dir():
        pytest.skip("this checkout has no results")
    shutil.copytree(results, tmp_path / "run")
    assert write_report([tmp_path / "run"], tmp_path / "out", rows={}).runs == 1

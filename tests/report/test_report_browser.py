"""The page in a real browser: nothing to complain about, every figure drawn, the table within the window, a print."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_browser import Browser, browser, programs
from test_report_page import FIGURES, hostile_run

from run_folders import known_run
from ternfed.paper.rows import Row
from ternfed.report.write import write_report

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.skipif(programs() is None, reason="needs chromium and chromedriver, and one is not installed")


@pytest.fixture(scope="module")
def page(runs: Path, rows: dict[str, Row], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tiny runs, and one as wide as the paper's: three-digit clients, thousands of megabytes, ten seeds."""
    folder = tmp_path_factory.mktemp("browser")
    values = {
        "bytes_up": 5_123_456_789, "bytes_down": 5_123_456_789, "bytes_up_fp32": 10**12, "bytes_down_fp32": 10**12,
        "bits_per_weight_up": 0.512, "validation": 0.9, "strategy": "I", "changed": 0.1,
    }  # fmt: skip
    for seed in range(10):
        for model in ("cnn", "resnet18"):
            settings = ["data.dataset=cifar10", f"model.name={model}", f"seed={seed}", "algorithm.preset=paper"]
            own = [*settings, "federation.rounds=2", "data.classes_per_client=5"]
            known_run(folder / f"runs/{model}-{seed}", own, [{**values, "score": 0.9 + seed / 100}] * 2)
    return write_report([runs, folder / "runs"], folder / "out", rows=rows).page


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def opened(tab: Browser, page: Path) -> Browser:
    tab.resize(1280, 800)
    tab.open(page)
    return tab


def test_the_browser_has_nothing_to_complain_about(opened: Browser) -> None:
    assert opened.console() == []


SHOWN = "[...document.querySelectorAll('figure svg')].filter(s => s.getBoundingClientRect().width)"
"""Of the drawings of a figure, the one that fits the window."""


def test_every_figure_is_drawn_as_wide_as_the_page(opened: Browser) -> None:
    boxes = opened.run(
        f"return {SHOWN}.map(s => {{const b = s.getBoundingClientRect();"
        "return [s.closest('figure').id.slice(7), b.width, b.height]})"
    )
    assert set(FIGURES) <= {name for name, _, _ in boxes}
    assert len(boxes) == opened.run("return document.querySelectorAll('figure').length")
    for name, width, height in boxes:
        assert width > 1000, name
        assert height > 100, name


@pytest.mark.parametrize("width", [1280, 400])
def test_text_in_figures_can_be_read(opened: Browser, width: int) -> None:
    opened.resize(width, 800)
    sizes = opened.run(
        f"return {SHOWN}.flatMap(s => [...s.querySelectorAll('text')]).map(t => t.getBoundingClientRect().height)"
    )
    assert len(sizes) > 100
    assert min(size for size in sizes if size) > 8


@pytest.mark.parametrize("width", [1280, 400])
def test_names_at_lines_are_inside_their_figure(opened: Browser, width: int) -> None:
    opened.resize(width, 800)
    outside = opened.run(
        f"return {SHOWN}.flatMap(s => {{const o = s.getBoundingClientRect();"
        "return [...s.querySelectorAll('text')].filter(t => {const b = t.getBoundingClientRect();"
        "return b.right > o.right + 2 || b.left < o.left - 2}).map(t => t.textContent)})"
    )
    assert outside == []


@pytest.mark.parametrize("width", [1280, 1440])
def test_the_summary_fits_the_window_and_so_does_the_page(opened: Browser, width: int) -> None:
    opened.resize(width, 800)
    table, box, whole = opened.run(
        "const t = document.getElementById('table-summary').getBoundingClientRect();"
        "return [t.width, document.querySelector('.wide').clientWidth, document.documentElement.scrollWidth]"
    )
    assert 600 < table <= box <= width
    assert whole <= width


def test_names_of_runs_have_room_for_words(opened: Browser) -> None:
    assert opened.run("return document.querySelector('#table-summary td').getBoundingClientRect().width") > 70


def test_on_a_small_window_wide_tables_scroll_in_their_own_box(opened: Browser) -> None:
    opened.resize(700, 800)
    assert opened.run("return document.documentElement.scrollWidth") <= 700
    inner, outer = opened.run("const w = document.querySelector('.wide'); return [w.scrollWidth, w.clientWidth]")
    assert inner > outer


def test_the_contents_lead_to_their_places(opened: Browser) -> None:
    count = opened.run(
        "return [...document.querySelectorAll('nav a')].filter(a => "
        "document.getElementById(decodeURIComponent(a.hash.slice(1)))).length"
    )
    assert count == opened.run("return document.querySelectorAll('nav a').length") > 10


def test_on_a_phone_nothing_scrolls_sideways_and_panels_stand_below_each_other(opened: Browser) -> None:
    panels = (
        "return [...document.querySelectorAll('figure')].filter(f => f.id.startsWith('figure-convergence'))[0]"
        ".querySelectorAll(KIND)[0]"
    )
    opened.resize(400, 800)
    assert opened.run("return document.documentElement.scrollWidth") <= 400
    assert opened.run(f"return {SHOWN}.filter(s => s.getBoundingClientRect().right > 400).length") == 0
    wide = opened.run(panels.replace("KIND", "'.broad'") + ".dataset.curves")
    stacked = opened.run(panels.replace("KIND", "'.narrow'") + ".dataset.curves")
    (left, top, *_), (left_2, top_2, *_) = (panel["box"] for panel in json.loads(wide))
    assert left_2 > left
    assert top_2 == pytest.approx(top, abs=0.02)
    (left, top, *_), (left_2, top_2, *_) = (panel["box"] for panel in json.loads(stacked))
    assert left_2 == pytest.approx(left, abs=0.05)
    assert top_2 > top + 0.2


def test_a_click_on_a_heading_sorts_by_its_numbers_and_another_the_other_way(opened: Browser) -> None:
    script = (
        "const t = document.getElementById('table-summary'), h = [...t.tHead.rows[0].cells];"
        "const at = h.findIndex(c => c.textContent.startsWith('up (MB)')); h[at].click(); {again}"
        "return [...t.tBodies[0].rows].map(r => r.cells[at].textContent)"
    )
    for again, sign in (("", 1), ("h[at].click();", -1)):
        shown = opened.run(script.replace("{again}", again))
        opened.open_again()
        numbers = [sign * float(text.replace(",", "")) for text in shown if text != "–"]
        assert len(numbers) > 5
        assert numbers == sorted(numbers)
        assert shown[len(numbers) :] == ["–"] * (len(shown) - len(numbers))


def test_a_table_is_also_csv(opened: Browser) -> None:
    text = opened.run("return csvOf(document.getElementById('table-summary'))")
    assert text.startswith('"run","data","model"')
    assert opened.run("return document.querySelectorAll('button.csv').length") == opened.run(
        "return document.querySelectorAll('table').length"
    )


def test_a_figure_tells_the_numbers_under_the_pointer(opened: Browser) -> None:
    told = opened.run(
        "const s = document.querySelector('.sheet[data-curves]'), b = s.getBoundingClientRect();"
        "const at = {clientX: b.left + b.width * .25, clientY: b.top + b.height * .5};"
        "s.dispatchEvent(new PointerEvent('pointermove', at));"
        "return s.querySelector('.tip').textContent"
    )
    assert "round" in told
    assert re.search(r"T-FedAvg: [\d.]+ at \d", told)


def test_in_the_dark_page_and_figures_are_dark(opened: Browser) -> None:
    opened.prefer("dark")
    try:
        page, paper, ink = opened.run(
            "const of = (e, key) => getComputedStyle(e)[key], svg = document.querySelector('figure svg');"
            "return [of(document.body, 'backgroundColor'), of(svg.querySelector('path'), 'fill'),"
            " of(svg.querySelector('text'), 'fill')]"
        )
    finally:
        opened.prefer("light")
    assert page == paper
    assert int(re.findall(r"\d+", page)[0]) < 60 < 150 < int(re.findall(r"\d+", ink)[0])


def test_in_the_dark_no_figure_is_a_white_sheet(opened: Browser) -> None:
    """The heatmaps are pictures of their own, with colours that no style of the page reaches."""
    image = pytest.importorskip("PIL.Image")
    heatmaps = opened.run("return [...document.querySelectorAll('figure:has(image)')].map(f => f.id)")
    assert len(heatmaps) > 2
    for scheme, bright in (("light", True), ("dark", False)):
        opened.prefer(scheme)
        for name in heatmaps:
            shown = image.open(io.BytesIO(opened.picture_of(f"#{name} .sheet"))).convert("L").histogram()
            assert (sum(shown[200:]) > sum(shown[:200])) == bright, (name, scheme)
    opened.prefer("light")


def test_it_prints(opened: Browser) -> None:
    pdf = opened.printed()
    assert pdf.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf)) <= 40


def test_text_from_a_folder_runs_nothing(tab: Browser, tmp_path: Path) -> None:
    tab.open(write_report([hostile_run(tmp_path / "a")], tmp_path / "out", rows={}).page)
    assert tab.run("return typeof window.hacked") == "undefined"
    assert tab.run("return document.querySelectorAll('body script, img').length") == 0
    assert tab.console() == []

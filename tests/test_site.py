"""The documentation site: no warning, no dead link, nothing from elsewhere; and how it looks in a browser."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ternfed

sys.path.insert(0, str(Path(__file__).parent / "report"))
from report_browser import Browser, browser, programs

for part in ("sphinx", "furo", "myst_nb"):
    pytest.importorskip(part, reason="part of the extra [docs]")

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CHECK = runpy.run_path(str(DOCS / "check_links.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it: a warning is an error."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", out / "doctrees"]
    done = subprocess.run([*command, DOCS, out / "html"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_no_link_leads_nowhere_and_nothing_comes_from_elsewhere(site: Path) -> None:
    assert list(CHECK["faults"](site)) == []


def test_a_dead_link_and_a_foreign_script_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(
        '<a href="two.html#there">a</a> <a href="two.html#not">b</a> <a href="three.html">c</a>'
        '<script src="https://example.org/a.js"></script><img src="none.png">'
    )
    (tmp_path / "two.html").write_text('<p id="there"></p>')
    assert sorted(CHECK["faults"](tmp_path)) == [
        "one.html: loads https://example.org/a.js",
        "one.html: loads none.png, which is not there",
        "one.html: three.html leads nowhere",
        "one.html: two.html#not names no place of that page",
    ]


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    documented = set(re.findall(r'<dt[^>]* id="ternfed\.([^"]+)"', page))
    assert set(ternfed.__all__) <= documented


def test_every_page_can_be_reached_from_the_first(site: Path) -> None:
    first = CHECK["read"](site / "index.html")
    linked = {link.split("#")[0] for link in first.links}
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"index.html", "search.html"}
    assert pages - {"genindex.html"} <= linked


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if programs() is None:
        pytest.skip("Chromium and chromedriver are not installed")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["index", "results", "api", "notebooks/first_federation"])
def test_a_page_fits_its_window_in_light_and_dark(site: Path, tab: Browser, name: str, width: int) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        tab.prefer(scheme)
        tab.resize(width, 900)
        tab.open(site / f"{name}.html")
        assert tab.run("return document.documentElement.scrollWidth <= innerWidth")
        assert tab.run("return [...document.images].every(image => image.complete && image.naturalWidth > 0)")
        grounds.add(tab.run("return getComputedStyle(document.body).backgroundColor"))
        assert tab.console() == []
    assert len(grounds) == 2


@pytest.mark.parametrize("chosen", ["light", "dark", "auto"])
@pytest.mark.parametrize("system", ["light", "dark"])
def test_drawings_and_figures_follow_the_sites_own_switch(site: Path, tab: Browser, chosen: str, system: str) -> None:
    image = pytest.importorskip("PIL.Image")
    dark = "dark" in (chosen, system if chosen == "auto" else "")
    tab.resize(1280, 900)
    tab.prefer(system)
    for page, kind in (("index", ".svg"), ("commands", ".png")):
        tab.open(site / f"{page}.html")
        tab.run(f"document.body.dataset.theme = {chosen!r}")
        shown = image.open(io.BytesIO(tab.picture_of(f'article img[src$="{kind}"]'))).convert("L").histogram()
        assert (sum(shown[:100]) > sum(shown[100:])) == dark, page
    tab.prefer("light")

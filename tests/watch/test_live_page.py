"""The live page: what its server answers, and the page itself in a real browser while a run grows."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from report_browser import Browser, browser, programs
from test_follow import EXPERIMENT, SETTINGS, record

from run_folders import known_run
from ternfed.report.compare import write_comparison
from ternfed.report.write import write_report
from ternfed.runs.folder import RunFolder
from ternfed.runs.live import LiveFile, Moment
from ternfed.runs.overview import overviews

pytest.importorskip("uvicorn")
from ternfed.watch.server import Address, serving


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, Address]]:
    (tmp_path / "runs").mkdir()
    with serving([tmp_path / "runs"]) as address:
        yield tmp_path / "runs", address


def get(address: Address, path: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(address.url).netloc, timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


class TestTheServer:
    def test_answers_with_everything_that_the_page_needs_and_no_cookie(self, place: tuple[Path, Address]) -> None:
        folder, address = place
        known_run(folder / "a", SETTINGS, [{"score": 0.25}])
        for path, kind in (
            ("/", "text/html"),
            ("/page.js", "text/javascript"),
            ("/page.css", "text/css"),
            ("/base.css", "text/css"),
        ):
            status, headers, body = get(address, path)
            assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
            assert "set-cookie" not in headers
            assert "default-src 'none'" in headers["content-security-policy"]
            assert b"https://" not in body
        state = json.loads(get(address, "/state")[2])
        assert state["runs"][0]["rounds"][0][:2] == [1, 0.25]
        assert b'ternfed_rounds_total{run="a"} 1.0' in get(address, "/metrics")[2]
        assert get(address, "/../page.js")[0] in (400, 404)

    def test_listens_on_this_machine_alone_and_to_its_own_names_alone(self, place: tuple[Path, Address]) -> None:
        _, address = place
        assert address.host == "127.0.0.1"
        assert get(address, "/state", host=f"localhost:{address.port}")[0] == 200
        assert get(address, "/state", host="evil.example")[0] == 400

    def test_gives_prometheus_numbers_alone_where_no_page_is_wanted(self, tmp_path: Path) -> None:
        with serving([tmp_path], page=False) as address:
            assert [get(address, path)[0] for path in ("/metrics", "/", "/state")] == [200, 404, 404]

    def test_a_port_that_is_taken_is_one_sentence(self, place: tuple[Path, Address]) -> None:
        with pytest.raises(ValueError, match="cannot listen there"), serving([], port=place[1].port):
            pass


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if programs() is None:
        pytest.skip("needs chromium and chromedriver, and one is not installed")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def until(holds: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def text_of(tab: Browser, selector: str) -> str:
    return str(tab.run(f"return [...document.querySelectorAll({selector!r})].map(e => e.textContent).join(' ')"))


TRITS = {"changed": 0.05, "strategy": "I", "validation": 0.6, "train_loss": 0.4}


class TestInABrowser:
    def test_it_grows_with_the_run_without_a_reload_and_has_nothing_to_complain_about(
        self, tab: Browser, place: tuple[Path, Address]
    ) -> None:
        folder, address = place
        tab.resize(1280, 900)
        tab.visit(address.url)
        until(lambda: text_of(tab, "#link") == "live", "the events")
        assert "No run yet" in text_of(tab, "#none")
        tab.run("window.notReloaded = true")
        with RunFolder.create(folder / "grown", EXPERIMENT) as run:
            LiveFile(folder / "grown").tell(Moment(1, "waiting", time.time(), {0: "ready", 1: "away"}))
            until(lambda: "Waiting for clients: 1 of 2" in text_of(tab, ".now"), "who is awaited")
            run.append(record(1, **TRITS))
            clients = {0: "done", 1: "training", 2: "uploading"}
            LiveFile(folder / "grown").tell(Moment(2, "train", time.time(), clients))  # type: ignore[arg-type]
            until(lambda: "round 1 of 4" in text_of(tab, "h2"), "the first round")
            until(lambda: "1 of 3 clients done" in text_of(tab, ".now"), "what happens inside a round")
            run.append(record(2, score=0.75, **TRITS))
            until(lambda: "75.00%" in text_of(tab, ".tiles"), "the second round")
            shown = text_of(tab, "main")
            for words in (
                "1 training",
                "2 uploading",
                "uploaded",
                "2.0 kB",
                "flips",
                "5%",
                "strategy by round: full colour I",
                "time left",
                "train",
            ):
                assert words in shown, words
            charts = tab.run("return [...document.querySelectorAll('figure')].map(f => f.id)")
            assert charts == ["chart-score", "chart-loss", "chart-up", "chart-down", "chart-flips", "chart-seconds"]
            assert tab.run("return document.querySelectorAll('#chart-loss .curve').length") == 2
            for number in (3, 4):
                run.append(record(number))
            run.finish({"warnings": ["all is lost"]})
        until(lambda: text_of(tab, ".state") == "finished", "the end")
        assert "Warning: all is lost" in text_of(tab, ".warning")
        assert tab.run("return window.notReloaded") is True
        assert tab.console() == []
        assert tab.cookies() == []

    def test_several_runs_stand_side_by_side_with_what_differs(self, tab: Browser, place: tuple[Path, Address]) -> None:
        folder, address = place
        known_run(folder / "one", SETTINGS, [{"score": 0.3}, {"score": 0.4}])
        known_run(
            folder / "two", [*SETTINGS, "algorithm.name=fedavg"], [{"score": 0.5, "dropped": ("client 3: late",)}]
        )
        tab.visit(address.url)
        until(lambda: tab.run("return document.querySelectorAll('.run').length") == 2, "both runs")
        assert "algorithm.name = fedavg" in text_of(tab, ".facts")
        assert "data.dataset" not in text_of(tab, ".facts")
        assert tab.run("return document.querySelectorAll('#chart-score .curve').length") == 2
        assert "two, round 1: client 3: late" in text_of(tab, "#dropped")
        tab.run(
            "const s = document.querySelector('#chart-score svg'), b = s.getBoundingClientRect();"
            "s.dispatchEvent(new PointerEvent('pointermove', {clientX: b.left + 60, clientY: b.top + 50}))"
        )
        assert "round 1" in text_of(tab, ".tip")
        assert "two: 50.00%" in text_of(tab, ".tip")
        assert tab.console() == []

    @pytest.mark.parametrize("width", [1280, 400])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_it_can_be_read(self, tab: Browser, place: tuple[Path, Address], width: int, scheme: str) -> None:
        folder, address = place
        known_run(folder / ("a-long-name-" * 6), SETTINGS, [dict(TRITS)] * 3)
        known_run(folder / "b", [*SETTINGS, "seed=1"], [dict(TRITS)] * 4)
        (folder / "b/network").mkdir()
        own = {"payload_up": 10**9, "payload_down": 10**9, "socket_up": 10**9, "socket_down": 10**9, "seconds": 9}
        (folder / "b/network/bytes.jsonl").write_text(json.dumps({"round": 1, "clients": {"0": own}}) + "\n")
        tab.prefer(scheme)
        tab.resize(width, 900)
        tab.visit(address.url)
        until(lambda: tab.run("return document.querySelectorAll('figure svg path').length") > 5, "the curves")
        assert tab.run("return document.documentElement.scrollWidth") <= width
        heights = tab.run(
            "return [...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)"
        )
        assert min(heights) > 8
        ink, page = (
            _brightness(tab.run(f"return getComputedStyle(document.body).{key}"))
            for key in ("color", "backgroundColor")
        )
        assert abs(ink - page) > 150
        assert (page < 60) == (scheme == "dark")
        tab.prefer("light")

    def test_text_from_a_folder_is_text(self, tab: Browser, place: tuple[Path, Address]) -> None:
        folder, address = place
        name = "<img src=x onerror=window.hacked=1>"
        known_run(folder / name, SETTINGS, [{"dropped": ("<script>window.hacked=1</script>",)}])
        tab.visit(address.url)
        until(lambda: name in text_of(tab, "h2"), "its name")
        assert tab.run("return typeof window.hacked") == "undefined"
        assert tab.run("return document.querySelectorAll('main img, main script').length") == 0

    def test_a_server_that_ends_says_so_and_leaves_how_the_run_ended(self, tab: Browser, tmp_path: Path) -> None:
        with serving([tmp_path]) as address, RunFolder.create(tmp_path / "one", EXPERIMENT) as run:
            tab.visit(address.url)
            until(lambda: "starting" in text_of(tab, ".state"), "the run")
            for number in range(1, 5):
                run.append(record(number))
            run.finish({})  # and the page ends at once, as with --watch
        until(lambda: "ended with its command" in text_of(tab, "#link"), "the end")
        assert text_of(tab, ".state") == "finished"
        assert "round 4 of 4" in text_of(tab, "h2")
        with serving([tmp_path / "other"], port=address.port):
            known_run(tmp_path / "other/two", SETTINGS, [{"score": 0.5}])
            until(lambda: "two" in text_of(tab, "h2"), "another server at the same place")
            assert "one" not in text_of(tab, "h2")


class TestAllPages:
    def test_have_one_head_and_the_same_colours(self, place: tuple[Path, Address]) -> None:
        folder, address = place
        run = known_run(folder / "a", SETTINGS, [{"score": 0.25}, {"score": 0.5}])
        live = get(address, "/")[2].decode()
        compared = write_comparison(overviews([run]), folder / "compare.html").read_text()
        reported = write_report([run], folder / "out", rows={}).page.read_text()
        heads = [page.partition("<title>")[0] for page in (live, compared, reported)]
        assert heads[0] == heads[1] == heads[2]
        assert "viewport" in heads[0]
        looks = get(address, "/base.css")[2].decode().strip()
        assert "prefers-color-scheme: dark" in looks
        assert looks in compared
        assert looks in reported


def _brightness(colour: str) -> float:
    red, green, blue = (float(part) for part in colour.partition("(")[2].strip(")").split(",")[:3])
    return (red + green + blue) / 3

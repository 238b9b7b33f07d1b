"""A real browser for tests: headless Chromium, driven by chromedriver over plain HTTP."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def programs() -> tuple[str, str] | None:
    """Chromium and chromedriver; None where one of them is not installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """One tab."""

    def __init__(self, session: str) -> None:
        self.session = session

    def open(self, path: Path) -> None:
        self.visit(path.resolve().as_uri())

    def open_again(self) -> None:
        _call(f"{self.session}/refresh", {})

    def visit(self, address: str) -> None:
        _call(f"{self.session}/url", {"url": address})
        end = time.monotonic() + 30
        while self.run("return document.readyState") != "complete":  # the driver answers before a large page is read
            assert time.monotonic() < end, address
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """What a JavaScript function's body returns."""
        return _call(f"{self.session}/execute/sync", {"script": script, "args": []})

    def console(self) -> list[str]:
        """Everything the page complained about."""
        return [entry["message"] for entry in _call(f"{self.session}/se/log", {"type": "browser"})]

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """What a reader has chosen: `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def cookies(self) -> list[Any]:
        return list(self._devtools("Network.getAllCookies", {})["cookies"])

    def printed(self) -> bytes:
        """The page as a PDF, on the paper that its style asks for."""
        answer = self._devtools("Page.printToPDF", {"preferCSSPageSize": True})
        return base64.b64decode(answer["data"])

    def picture_of(self, selector: str) -> bytes:
        """What an element looks like, as a PNG."""
        left, top, width, height = self.run(
            f"const b = document.querySelector({selector!r}).getBoundingClientRect();"
            "return [b.left + scrollX, b.top + scrollY, b.width, b.height]"
        )
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        answer = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        return base64.b64decode(answer["data"])

    def _devtools(self, command: str, values: dict[str, Any]) -> Any:
        return _call(f"{self.session}/goog/cdp/execute", {"cmd": command, "params": values})


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile, ended with the block."""
    found = programs()
    assert found is not None
    chromium, driver = found
    process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        port = next(
            int(at.group(1)) for line in process.stdout if (at := re.search(r"successfully on port (\d+)", line))
        )
        options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        server = f"http://127.0.0.1:{port}/session"
        session = f"{server}/{_call(server, {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"
        try:
            yield Browser(session)
        finally:
            _call(session, None, "DELETE")
    finally:
        process.terminate()
        process.wait(10)


def _call(address: str, values: dict[str, Any] | None, method: str = "POST") -> Any:
    data = None if values is None else json.dumps(values).encode()
    request = Request(address, data, {"Content-Type": "application/json"}, method=method)
    with build_opener(ProxyHandler({})).open(request, timeout=60) as answer:  # a proxy has no business here
        return json.loads(answer.read())["value"]

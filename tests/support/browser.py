"""A headless Chromium, driven through chromedriver's HTTP interface; tests that need one are skipped without it."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
WAIT = 120.0
"""Seconds to wait for a condition of a page."""


class Browser:
    """One tab of a headless Chromium. A context manager."""

    def __init__(self) -> None:
        driver = shutil.which("chromedriver")
        if driver is None or not (shutil.which("chromium") or shutil.which("google-chrome")):
            pytest.skip("there is no Chromium with chromedriver")
        self._process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        lines = iter(self._process.stdout.readline, "")
        port = next(match[1] for line in lines if (match := re.search(r"started successfully on port (\d+)", line)))
        self._address = f"http://127.0.0.1:{port}/session"
        options = {"goog:chromeOptions": {"args": ARGUMENTS}, "goog:loggingPrefs": {"browser": "ALL"}}
        try:
            made = self._ask("POST", "", {"capabilities": {"alwaysMatch": options}})
        except BaseException:
            self._process.kill()
            raise
        self._address += f"/{made['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ask("DELETE", "")
        finally:
            self._process.terminate()
            self._process.wait()
            self._process.stdout.close()  # type: ignore[union-attr]

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> object:
        """Run the body of a JavaScript function; returns its result."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> object:
        """Wait until the body of a JavaScript function returns something true; returns that."""
        end = time.monotonic() + WAIT
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"the page never had: {script}"
            time.sleep(0.05)
        return found

    def view(self, width: int, height: int, scheme: str = "light") -> None:
        """Set the size of the page and the color scheme of the system."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._cdp("Emulation.setDeviceMetricsOverride", size)
        self._cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def screenshot(self, file: Path) -> None:
        """Save the whole page as PNG."""
        shot = self._cdp("Page.captureScreenshot", {"captureBeyondViewport": True})
        file.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Return the errors of the page since the last call: exceptions, and what its policy refused."""
        entries = self._ask("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def _cdp(self, command: str, parameters: dict) -> dict:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _ask(self, method: str, path: str, content: dict | None = None):
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            self._address + path, body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

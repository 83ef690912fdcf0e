"""The page of `fedhp dash` in a real browser: a server as a process, what tests ask the page."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

import fedhp
from ui.browser import Browser
from waiting import wait_until

KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Escape": 27}
SECTIONS = ("progress", "topology", "timeline", "decisions", "workers", "events")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class DashServer:
    """`fedhp dash` on one port; it can be killed and started again there."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self._options = folder, options
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        source = str(Path(fedhp.__file__).parents[1])
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "fedhp", "dash", str(self.folder)),
                *("--port", str(self.port), *self._options),
            ],
            env={**os.environ, "PYTHONPATH": source},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers, "an answer of the server")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the server has ended"
        try:
            return httpx.get(f"{self.url}/api/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


class DashPage:
    """The page in a browser."""

    def __init__(self, browser: Browser, server: DashServer) -> None:
        self.browser, self.server = browser, server
        browser.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def open(
        self,
        *runs: str,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        **view: object,
    ) -> None:
        """Show these runs, or the list; the page starts from nothing."""
        self.browser.open("about:blank")
        query = urlencode([*(("run", run) for run in runs), *view.items()], safe="/")
        address = f"{self.server.url}/#{query}" if query else f"{self.server.url}/"
        self.browser.open(address, width=width, height=height, dark=dark)
        self.wait("document.querySelector('main h1') !== null", "a heading")

    def ask(self, expression: str) -> Any:
        return self.browser.evaluate(expression)

    def wait(self, expression: str, what: str) -> None:
        """Until something holds in the page; else an error with the page's words."""
        wait_until(
            lambda: bool(self.ask(expression)),
            lambda: f"{what}; the page says: {self.text()[:1500]}; {self.browser.complaints}",
            seconds=30,
        )

    def text(self, selector: str = "main") -> str:
        return str(self.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_text(self, words: str, selector: str = "main") -> None:
        place = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"({place}?.innerText ?? '').includes({json.dumps(words)})", words)

    def click(self, words: str, *, within: str = "body", kind: str = "button, a") -> None:
        """Click what has exactly these words, or this accessible name."""
        done = self.ask(
            f"(() => {{ const found = [...document.querySelector({json.dumps(within)})"
            f".querySelectorAll({json.dumps(kind)})].find(each => each.textContent.trim() === "
            f"{json.dumps(words)} || each.getAttribute('aria-label') === {json.dumps(words)});"
            "if (!found) return false; found.focus(); found.click(); return true; })()"
        )
        assert done, f"nothing to click: {words}"

    def key(self, name: str) -> None:
        """Press a key where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.browser.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name,
                windowsVirtualKeyCode=KEYS.get(name, 0),
            )

    def move_to(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def pixels(self, selector: str) -> str:
        """What a canvas shows, to be compared."""
        place = json.dumps(selector)
        return str(self.ask(f"document.querySelector({place}).toDataURL()"))

    def wait_ink(self, selector: str) -> None:
        """Until something is drawn on a canvas, which is a frame or more after its text."""
        place = json.dumps(selector)
        self.wait(
            f"(() => {{ const canvas = document.querySelector({place});"
            "if (!canvas || !canvas.width) return false;"
            "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, "
            "canvas.height).data; for (let i = 3; i < data.length; i += 4) "
            "if (data[i]) return true; return false; })()",
            f"a drawing on {selector}",
        )

    def picture(self) -> bytes:
        """The window as a PNG."""
        reply = self.browser.call("Page.captureScreenshot", format="png")
        return base64.b64decode(reply["data"])

    def assert_quiet(self) -> None:
        """No complaint in the console, no request to another host."""
        assert self.browser.complaints == []
        foreign = [
            url
            for url in self.browser.requests
            if not url.startswith((self.server.url + "/", "data:", "blob:", "about:"))
        ]
        assert foreign == []

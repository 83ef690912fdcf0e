"""A real browser without further packages: Chromium, spoken to over its debugging pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import selectors
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from waiting import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """The browser's program, None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page; keeps what the page asked for and complained about."""

    def __init__(self, program: str, profile: Path) -> None:
        read_theirs, self._write = os.pipe()
        self._read, write_theirs = os.pipe()

        def hand_over() -> None:
            # The protocol is fixed to the descriptors 3 and 4, which may be one of ours by now.
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_theirs, write_theirs)]
            for place, end in enumerate(ends, start=3):
                os.dup2(end, place)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=hand_over,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_theirs)
        os.close(write_theirs)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read, selectors.EVENT_READ)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._loaded = False
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the browser, gently or not."""
        self._session = ""
        try:
            self.call("Browser.close")
            self._process.wait(timeout=10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._selector.close()
        os.close(self._read)
        os.close(self._write)

    def open(self, url: str, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Show a page and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.requests, self.complaints, self._loaded = [], [], False
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + PATIENCE
        while not self._loaded:
            self._hear(deadline)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        reply = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        reply = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(reply["data"]))

    def call(self, method: str, **parameters: Any) -> Any:
        """Carry out a command of the debugging protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._hear(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _hear(self, deadline: float) -> Any:
        """The next message; events are noted on the way."""
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            assert left > 0, f"the browser said nothing for {PATIENCE} s"
            if self._selector.select(left):
                got = os.read(self._read, 1 << 20)
                assert got, "the browser has ended"
                self._buffer += got
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, details: Any) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(details["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(details["args"]))
        elif event == "Log.entryAdded":
            self.complaints.append(details["entry"]["text"])
        elif event == "Page.loadEventFired":
            self._loaded = True

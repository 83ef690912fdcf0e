"""The page next to a command that runs: a process of its own that ends with the command.

The command does not do anything for it but start it, so the run is the same with and without it.
The process has the lowest priority, and ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from fedhp.errors import RunError

START_SECONDS = 30.0
GOODBYE_SECONDS = 5.0
NICENESS = 10


class DashChild:
    """The page of a folder, while a command runs; a context manager that ends it."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder
        arguments = {"folder": str(folder.absolute()), "port": port}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedhp.dash", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the command, which then ends it
        )

    def url(self) -> str:
        """Where the page is, as soon as it is there; RunError if it cannot be."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(START_SECONDS) else b""
        try:
            answer = json.loads(line)
        except ValueError:
            answer = {"error": f"it did not start within {START_SECONDS:.0f} s"}
        if "url" in answer:
            return str(answer["url"])
        self.close()
        raise RunError(
            f"the live page cannot be started: {answer['error']}",
            allowed="--dash with a free port",
            fix="choose another --dash-port, or leave --dash out",
        )

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> DashChild:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def main() -> None:
    """The process: serve until standard input ends."""
    from fedhp.dash.app import DashSettings
    from fedhp.dash.security import LOOPBACK, Access
    from fedhp.dash.server import listening_socket, serve, url_of
    from fedhp.errors import FedhpError

    arguments = json.loads(sys.argv[1])
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    host = "127.0.0.1"
    try:
        listener = listening_socket(host, arguments["port"])
    except FedhpError as error:
        print(json.dumps({"error": error.problem}), flush=True)  # noqa: T201
        return
    settings = DashSettings(Path(arguments["folder"]), Access(hosts=frozenset(LOOPBACK)))

    def say() -> None:
        url = url_of(listener, host, tls=False)
        print(json.dumps({"url": url}), flush=True)  # noqa: T201

    serve(settings, listener, started=say, ended=sys.stdin.buffer.read)

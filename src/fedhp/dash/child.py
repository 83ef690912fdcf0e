"""The page next to a command that runs: a process of its own that ends with the command.

The command takes the address and starts the process, nothing else, so the run is the same with and
without it. The process has a low priority, and ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from fedhp.children import NEUTRAL, module_command, neutral_environment
from fedhp.dash.listening import listening_socket, url_of

HOST = "127.0.0.1"
GOODBYE_SECONDS = 5.0
NICENESS = 10


class DashChild:
    """The page of a folder, while a command runs; a context manager that ends it.

    The folder may not exist yet. A browser that comes before the process is ready waits for it.
    """

    def __init__(self, folder: Path, *, port: int | None = None, option: str = "--port") -> None:
        with listening_socket(HOST, port, option=option) as listener:
            self.url = url_of(listener, HOST, tls=False)
            number = listener.fileno()
            arguments = {"folder": str(folder.absolute()), "listener": number}
            self._process = subprocess.Popen(
                module_command("fedhp.dash", json.dumps(arguments)),
                cwd=NEUTRAL,
                env=neutral_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,  # Ctrl-C is for the command, which then ends it
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def failed(self) -> bool:
        """Whether it ended before it was ended."""
        return self._process.poll() is not None

    def __enter__(self) -> DashChild:
        return self

    def __exit__(self, *details: object) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    arguments = json.loads(sys.argv[1])
    with contextlib.suppress(OSError):
        os.nice(NICENESS)

    from fedhp.dash.app import DashSettings
    from fedhp.dash.security import LOOPBACK, Access
    from fedhp.dash.server import serve

    listener = socket.socket(fileno=arguments["listener"])
    settings = DashSettings(Path(arguments["folder"]), Access(hosts=frozenset(LOOPBACK)))
    serve(settings, listener, ended=sys.stdin.buffer.read)

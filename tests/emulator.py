"""A small terminal: what a user sees of what a command writes, at a given width."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from rich.cells import cell_len

from waiting import PATIENCE

ESCAPE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
ROWS = 50


class Screen:
    """Text, line breaks and the escape sequences that a live display needs."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.cursor_visible = True
        self.broken: list[str] = []  # lines that were too long; the terminal broke them
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self._rest = ""

    @property
    def lines(self) -> list[str]:
        """Everything on the screen and above it."""
        return ["".join(line).rstrip() for line in self._lines]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip("\n")

    def feed(self, text: str) -> None:
        """Show what was written."""
        text, self._rest = self._rest + text, ""
        position = 0
        while position < len(text):
            if text[position] == "\x1b":
                match = ESCAPE.match(text, position)
                if match is None:  # the rest comes later
                    self._rest = text[position:]
                    return
                self._obey(*match.groups())
                position = match.end()
            else:
                self._put(text[position])
                position += 1

    def _put(self, character: str) -> None:
        if character == "\n":
            self._move(1)
        elif character == "\r":
            self._column = 0
        else:
            if self._column + cell_len(character) > self.columns:
                self.broken.append("".join(self._lines[self._row]))
                self._move(1)
                self._column = 0
            line = self._lines[self._row]
            line += " " * (self._column + 1 - len(line))
            line[self._column] = character
            self._column += cell_len(character)

    def _move(self, rows: int) -> None:
        self._row = max(0, self._row + rows)
        while len(self._lines) <= self._row:
            self._lines.append([])

    def _obey(self, argument: str, kind: str) -> None:
        if kind == "A":
            self._move(-int(argument or 1))
        elif kind == "K":
            self._lines[self._row] = [] if argument == "2" else self._lines[self._row]
        elif argument == "?25":
            self.cursor_visible = kind == "h"
        else:
            assert kind == "m", f"an unknown escape sequence: {argument}{kind}"


class FakeTerminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


@contextmanager
def fake_terminal(columns: int, *, term: str = "xterm", color: bool = True) -> Iterator[Screen]:
    """Standard output and error are a terminal of this width; its screen is filled at the end."""
    terminal, screen = FakeTerminal(), Screen(columns)
    size = os.terminal_size((columns, ROWS))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", term)
        if not color:
            patch.setenv("NO_COLOR", "1")
        patch.setattr(os, "get_terminal_size", lambda handle=1: size)
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        try:
            yield screen
        finally:
            screen.feed(terminal.getvalue().replace("\n", "\r\n"))  # as a terminal does


class TerminalProcess:
    """A command in a real pseudo-terminal."""

    def __init__(self, arguments: Sequence[str], *, columns: int, env: Mapping[str, str]) -> None:
        self.screen = Screen(columns)
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        size = struct.pack("HHHH", ROWS, columns, 0, 0)
        self._pid, self._handle = pty.fork()
        if not self._pid:  # the new process
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execvpe(arguments[0], list(arguments), dict(env))

    def resize(self, columns: int) -> None:
        """As a user does with the mouse."""
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
        self.screen.columns = columns
        self.screen.broken.clear()

    def press_control_c(self) -> None:
        os.write(self._handle, b"\x03")

    def read_until(self, holds: Callable[[], bool]) -> None:
        """Read until something holds or the process ends; TimeoutError if neither happens."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the screen is:\n{self.screen.text}")
            if not select.select([self._handle], [], [], 0.1)[0]:
                continue
            try:
                written = os.read(self._handle, 65536)
            except OSError:  # the process has ended
                return
            self.screen.feed(self._decode(written))

    def wait(self) -> int:
        """Read until its end; its exit code."""
        self.read_until(lambda: False)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def kill(self) -> None:
        """End it, if it still runs."""
        try:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._handle)

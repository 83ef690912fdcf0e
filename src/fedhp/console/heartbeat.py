"""A line on standard error at least every ten seconds, so that long work is never silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Self

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape

from fedhp.terminal import duration, shorten_words, size_of_dumb_terminal

# Less than the promised ten, for a busy machine.
SILENT_SECONDS = 7.0


def error_console() -> Console:
    """The console for progress; a dumb terminal has its real width too."""
    console = Console(stderr=True, highlight=False)
    size_of_dumb_terminal(console)
    return console


def is_live(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def print_line(console: Console, text: str) -> None:
    """Print a line; a terminal breaks it only between words."""
    if console.is_terminal:
        console.print(shorten_words(text, console.width), markup=False, highlight=False)
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)


class Heartbeat:
    """Calls `beat` in a thread whenever nothing was printed for some seconds."""

    def __init__(self, beat: Callable[[], None], *, seconds: float = SILENT_SECONDS) -> None:
        self._beat, self._seconds = beat, seconds
        self._ended = threading.Event()
        self._printed = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No beat comes after this."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def printed(self) -> None:
        """Something was printed: the next beat is due later."""
        self._printed = time.monotonic()

    def _run(self) -> None:
        while True:
            due = self._printed + self._seconds - time.monotonic()
            if due > 0:
                if self._ended.wait(due):
                    return
            else:
                self.printed()
                self._beat()


class Display:
    """A live display in a terminal; plain lines elsewhere, with one at least every few seconds."""

    def __init__(
        self,
        console: Console | None,
        beat: Callable[[], None],
        *,
        seconds: float,
        get_renderable: Callable[[], RenderableType] | None = None,
    ) -> None:
        self._console = error_console() if console is None else console
        self._is_live = is_live(self._console)
        self._live = Live(
            console=self._console, get_renderable=get_renderable, refresh_per_second=4
        )
        self._heartbeat = Heartbeat(beat, seconds=seconds)

    def __enter__(self) -> Self:
        (self._live if self._is_live else self._heartbeat).start()
        return self

    def __exit__(self, *details: object) -> None:
        (self._live if self._is_live else self._heartbeat).stop()

    def _print(self, text: str) -> None:
        self._heartbeat.printed()
        print_line(self._console, text)


class Activity:
    """Work without rounds, such as drawing: a spinner in a terminal, a line now and then else."""

    def __init__(
        self, what: str, *, console: Console | None = None, seconds: float = SILENT_SECONDS
    ) -> None:
        self._what, self._detail = what, ""
        self._console = error_console() if console is None else console
        self._began = time.monotonic()
        self._status = self._console.status(escape(what)) if is_live(self._console) else None
        self._heartbeat = Heartbeat(self._show, seconds=0.5 if self._status else seconds)

    def __enter__(self) -> Activity:
        if self._status is not None:
            self._status.start()
        self._heartbeat.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._heartbeat.stop()
        if self._status is not None:
            self._status.stop()

    def note(self, detail: str) -> None:
        """What is being done now, such as "12 figures"."""
        self._detail = detail

    def now(self, what: str) -> None:
        """The next part of the work begins; the silence goes on from the part before."""
        self._what, self._detail = what, ""
        self._began = time.monotonic()

    def _words(self) -> str:
        detail = f": {self._detail}" if self._detail else ""
        return f"{self._what}{detail}, {duration(time.monotonic() - self._began)} so far"

    def _show(self) -> None:
        if self._status is None:
            print_line(self._console, self._words())
            return
        room = self._console.width - 2  # for the spinner
        words = self._words()
        if cell_len(words) > room:
            words = words.removesuffix(" so far")
        self._status.update(escape(shorten_words(words, room)))

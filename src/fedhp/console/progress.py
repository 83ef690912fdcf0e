"""One line per run: label, bar, round, time left, metric, virtual time, waiting, local steps.

It goes to standard error, so that standard output has only results. A narrow terminal gets fewer
columns; a file, a pipe or a dumb terminal gets plain lines instead of bars.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.text import Text

from fedhp.console.heartbeat import SILENT_SECONDS, Display
from fedhp.terminal import GAP, duration, fit_text, shorten

ACCURACY = "accuracy"
UNKNOWN = "-"
LEAST_LABEL = 18
LABEL_BEFORE = (LEAST_LABEL, 26, 34, 34)  # its room before metric, clock, waiting, steps are shown
NARROWEST_LABEL = 8
LEAST_BAR, WIDEST_BAR = 6, 24
LONGEST_METRIC = 12
LONGEST_TIME_LEFT = len("; about 10 h 59 min left")
MOST_LINES = 8  # runs of a campaign that a plain progress report names


@dataclass(slots=True)
class RunState:
    """A run as the display knows it."""

    label: str
    rounds: int
    first: int  # rounds that were done when the display began
    began: float
    short: str = ""  # a shorter label, for where this one does not fit
    round: int = 0
    metric: str = ACCURACY
    value: float | None = None  # of the metric, in the last test
    clock: float | None = None
    waiting: float | None = None
    steps: float | None = None
    last_printed: int = -1  # the round of its last plain line
    horizon: float | None = None  # s of virtual time, for a run without a number of rounds
    first_share: float | None = None  # share done when the display began; None: not known yet

    @property
    def share(self) -> float:
        if self.horizon is None:
            return min(1.0, self.round / max(1, self.rounds))
        return min(1.0, (self.clock or 0.0) / self.horizon)

    def update(self, event: dict[str, Any]) -> None:
        self.round, self.clock = event["round"], event["clock"]
        if self.first_share is None and self.first:  # a resumed run: its time is known only now
            self.first_share = self.share
        self.waiting, self.steps = event["waiting"], event["steps"]
        self.metric = event.get("metric", self.metric)
        if event["accuracy"] is not None:
            self.value = event["accuracy"]

    def time_left(self, now: float) -> str:
        """How long the rest takes if it takes as long as what was done so far."""
        if self.horizon is None:
            done, rest = float(self.round - self.first), float(self.rounds - self.round)
        else:
            first = self.share if self.first_share is None else self.first_share
            done, rest = self.share - first, 1 - self.share
        if rest <= 0:
            return "0 s"
        return UNKNOWN if done <= 0 else duration((now - self.began) / done * rest)

    def counter(self) -> str:
        """The round, with room for the last one; with a horizon, the virtual time."""
        if self.horizon is not None:
            return f"{self.clock or 0.0:.0f}/{self.horizon:g} s"
        return f"{self.round:>{len(str(self.rounds))}}/{self.rounds}"

    def numbers(self) -> list[str]:
        """Metric, clock, waiting and steps, the most important first."""
        digits = ".3f" if abs(self.value or 0.0) < 1000 else ".3g"
        return [
            UNKNOWN if self.value is None else f"{self.value:{digits}}",
            UNKNOWN if self.clock is None else f"{self.clock:.1f} s",
            UNKNOWN if self.waiting is None else f"{self.waiting:.2f} s",
            UNKNOWN if self.steps is None else f"{self.steps:.1f}",
        ]


def short_label(label: str, width: int) -> str:
    """A label with an ellipsis where it is too long; the seed at its end stays."""
    name, separator, seed = label.rpartition(" seed ")
    room = width - len(separator) - len(seed)
    if separator and room >= 5:
        return shorten(name, room) + separator + seed
    return shorten(label, width)


class ProgressLines:
    """The lines of some runs, drawn for the width of the terminal."""

    def __init__(
        self, runs: Sequence[RunState], *, now: float, summary: Sequence[str] = ()
    ) -> None:
        """`summary` is one line in several lengths, the longest first."""
        self._runs, self._now, self._summary = runs, now, summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        if not self._summary:
            width -= len("^C")  # the terminal shows a Ctrl-C where the last line ends
        lines = self._lines(width, ascii_only=options.ascii_only) if self._runs else []
        fitting = [text for text in self._summary if cell_len(text) <= width]
        if self._summary:
            lines.append(fitting[0] if fitting else shorten(self._summary[-1], width))
        for line in lines:
            text = line.replace("…", "~") if options.ascii_only else line
            yield Text(text, no_wrap=True, overflow="crop")

    def _lines(self, width: int, *, ascii_only: bool) -> list[str]:
        metrics = {run.metric for run in self._runs}
        metric = shorten(metrics.pop(), LONGEST_METRIC) if len(metrics) == 1 else "test"
        by_time = any(run.horizon is not None for run in self._runs)
        counters = ["time" if by_time else "round", *(run.counter() for run in self._runs)]
        left = ["left", *(run.time_left(self._now) for run in self._runs)]
        heads = (metric, "clock", "waiting", "steps")
        numbers = list(zip(heads, *(run.numbers() for run in self._runs), strict=True))
        for labels in (
            ["run", *(run.label for run in self._runs)],
            ["run", *(run.short or run.label for run in self._runs)],
        ):
            label_width, bar_width, columns = _layout(
                width, longest=_widest(labels), counters=counters, left=left, numbers=numbers
            )
            if label_width >= _widest(labels):
                break
        bars = ["", *(_bar(run, bar_width, ascii_only=ascii_only) for run in self._runs)]
        lines = []
        for row, label in enumerate(labels):
            short = short_label(label, label_width)
            cells = [short + " " * (label_width - cell_len(short))]
            if bar_width:
                cells.append(f"{bars[row]:<{bar_width}}")
            cells += [f"{column[row]:>{_widest(column)}}" for column in columns]
            lines.append((" " * GAP).join(cells).rstrip())
        return lines


def _widest(texts: Sequence[str]) -> int:
    return max(cell_len(text) for text in texts)


def _layout(
    width: int,
    *,
    longest: int,
    counters: Sequence[str],
    left: Sequence[str],
    numbers: Sequence[Sequence[str]],
) -> tuple[int, int, list[Sequence[str]]]:
    """The widths of label and bar (0: none), and the other columns that fit."""
    columns: list[Sequence[str]] = [counters]
    free = width - _widest(counters) - GAP  # for the label and everything else
    bar = 0
    least = min(longest, NARROWEST_LABEL)
    if free - GAP - LEAST_BAR >= least:
        bar, free = LEAST_BAR, free - GAP - LEAST_BAR
    if free - GAP - _widest(left) >= least:
        columns.append(left)
        free -= GAP + _widest(left)
    for room_for_label, column in zip(LABEL_BEFORE, numbers, strict=True):
        if free - GAP - _widest(column) < min(longest, room_for_label):
            break
        columns.append(column)
        free -= GAP + _widest(column)
    if bar:
        # What a whole label leaves, or a part of the room of a label that is cut in any case.
        share = max(0, free - LEAST_LABEL) // 3
        bar = min(WIDEST_BAR, bar + (free - longest if free >= longest else share))
        free -= bar - LEAST_BAR
    return min(longest, free), bar, columns


def _bar(run: RunState, width: int, *, ascii_only: bool) -> str:
    done, rest = ("#", "-") if ascii_only else ("━", "─")
    by_rounds = width * run.round // max(1, run.rounds)
    full = by_rounds if run.horizon is None else int(width * run.share)
    return done * full + rest * (width - full)


class CampaignProgress(Display):
    """The display of many runs at the same time; without `total`, of a single one."""

    def __init__(
        self,
        total: int = 0,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._clock = clock
        self._runs: dict[str, RunState] = {}
        self._total, self._ended = total, 0
        self._seconds_left: float | None = None
        # Never held while a live display prints: drawing takes it under the display's own lock.
        self._lock = threading.RLock()
        super().__init__(console, self._report, seconds=silent_seconds, get_renderable=self.lines)

    def __enter__(self) -> Self:
        if not self._is_live:
            self._report()
        return super().__enter__()

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        if not self._is_live:
            self._report(only_news=True)

    def lines(self) -> ProgressLines:
        with self._lock:
            runs = list(self._runs.values())
            return ProgressLines(runs, now=self._clock(), summary=self._summary())

    def begin(
        self,
        label: str,
        rounds: int,
        *,
        done: int = 0,
        short: str = "",
        horizon: float | None = None,
    ) -> None:
        """A run starts, or resumes after `done` rounds; `short` is its name where room is scarce.

        If it began before, its time left counts from now.
        """
        with self._lock:
            short = short if cell_len(short) <= cell_len(label) else ""
            run = RunState(label, rounds, done, self._clock(), short, round=done, horizon=horizon)
            run.first_share = None if done else 0.0
            self._runs[label] = run

    def update(self, label: str, event: dict[str, Any], seconds_left: float | None = None) -> None:
        """A round of a run is done; all runs together need `seconds_left` more."""
        with self._lock:
            run = self._runs[label]
            before = run.share
            run.update(event)
            self._seconds_left = seconds_left
            fifth = run.round % max(1, run.rounds // 5) == 0
            if run.horizon is not None:
                fifth = int(5 * run.share) > int(5 * before)
            if not self._is_live and fifth:
                self._print_run(run)

    def end(
        self, label: str, outcome: str, seconds_left: float | None = None, *, done: bool = True
    ) -> None:
        """A run has ended; a line replaces its bar. It is not done if the user stopped it."""
        with self._lock:
            self._ended += done
            self._seconds_left = seconds_left
            run = self._runs.pop(label, None)
            counter = f"[{self._ended}/{self._total}] " if done else ""
        time_left = f"; about {duration(seconds_left)} left" if seconds_left else ""
        end = f": {outcome}"
        if self._console.is_terminal:
            width = self._console.width
            if cell_len(counter + label + end) + LONGEST_TIME_LEFT > width:
                label = run.short if run is not None and run.short else label
            if cell_len(counter + label + end + time_left) > width:
                time_left = ""
            label = short_label(label, max(LEAST_LABEL, width - cell_len(counter + end)))
        self._print(f"{counter}{label}{end}{time_left}")
        if self._is_live:
            self._live.refresh()

    def expect(self, runs: int) -> int:
        """So many runs are still to come, in all or at most; returns how many there are then."""
        with self._lock:
            self._total = self._ended + runs
            return self._total

    def note(self, text: str) -> None:
        width = self._console.width if self._console.is_terminal else None
        self._print(fit_text(text, width))

    def _summary(self) -> list[str]:
        if not self._total:
            return []
        done = f"{self._ended} of {self._total} {'run' if self._total == 1 else 'runs'} done"
        if not self._seconds_left or self._ended == self._total:
            return [done]
        left = duration(self._seconds_left)
        return [f"{done}, about {left} left", f"{self._ended}/{self._total} runs, {left} left"]

    def _report(self, *, only_news: bool = False) -> None:
        """Print all runs as plain lines, or only those that had a round since their last line."""
        with self._lock:
            runs = [r for r in self._runs.values() if not only_news or r.round != r.last_printed]
            for run in runs[:MOST_LINES]:
                self._print_run(run)
            hidden = len(runs) - MOST_LINES
            if hidden > 0:
                self._print(f"... and {hidden} more runs")
            if self._total:
                self._print(self._summary()[0])

    def _print_run(self, run: RunState) -> None:
        run.last_printed = run.round
        self._print(self._plain(run))

    def _plain(self, run: RunState) -> str:
        """A run in one line; on a terminal as much of it as fits."""
        value, clock, waiting, steps = run.numbers()
        left = run.time_left(self._clock())
        by_rounds = run.horizon is None
        parts = [f"round {run.round}" + (f"/{run.rounds}" if by_rounds else f", {run.counter()}")]
        if left != UNKNOWN and run.share < 1:
            parts.append(f"{left} left")
        if run.clock is not None:
            numbers = (f"{run.metric} {value}", f"clock {clock}", f"waiting {waiting}")
            parts += [*numbers, f"steps {steps}"]
        label = run.label
        if self._console.is_terminal:
            width = self._console.width
            room = max(NARROWEST_LABEL, width - GAP - len(parts[0]))
            if cell_len(label) > room:
                label = short_label(run.short or label, room)
            while len(parts) > 1 and cell_len("  ".join([label, *parts])) > width:
                parts.pop()
        return "  ".join([label, *parts])

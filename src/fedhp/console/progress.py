"""One progress bar per run: round, accuracy, virtual time, waiting, time left.

It goes to standard error, so that standard output has only results. Without a terminal, a line
now and then instead of bars.
"""

from __future__ import annotations

import threading
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=False,
        refresh_per_second=5,
    )


def live_numbers(event: dict[str, Any], accuracy: float | None) -> str:
    """The numbers of a run's last round in one line."""
    shown = "   -  " if accuracy is None else f"{accuracy:6.3f}"
    return (
        f"accuracy {shown}  clock {event['clock']:8.1f} s  "
        f"waiting {event['waiting']:5.2f} s  steps {event['steps']:5.1f}"
    )


class RunProgress:
    """The display of a single run."""

    def __init__(self, label: str, rounds: int, *, done: int = 0) -> None:
        self._campaign = CampaignProgress(total=1)
        self._label, self._rounds, self._done = label, rounds, done

    def __enter__(self) -> RunProgress:
        self._campaign.__enter__()
        self._campaign.begin(self._label, self._rounds, done=self._done)
        return self

    def __exit__(self, *details: object) -> None:
        self._campaign.__exit__(*details)

    def update(self, event: dict[str, Any]) -> None:
        """Show a round."""
        self._campaign.update(self._label, event)


class CampaignProgress:
    """The display of many runs at the same time."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True)
        self._live = self._console.is_terminal
        self._bars = _bars(self._console)
        self._tasks: dict[str, TaskID] = {}
        self._rounds: dict[str, int] = {}
        self._accuracy: dict[str, float | None] = {}
        self._total, self._ended = total, 0
        self._lock = threading.Lock()

    def __enter__(self) -> CampaignProgress:
        if self._live:
            self._bars.start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._live:
            self._bars.stop()

    def begin(self, label: str, rounds: int, *, done: int = 0) -> None:
        """A run starts, or resumes after `done` rounds."""
        with self._lock:
            self._rounds[label] = rounds
            self._accuracy[label] = None
            if self._live:
                self._tasks[label] = self._bars.add_task(
                    f"{label:<28}", total=rounds, completed=done, numbers=""
                )

    def update(self, label: str, event: dict[str, Any]) -> None:
        """A round of a run is done."""
        with self._lock:
            if event["accuracy"] is not None:
                self._accuracy[label] = event["accuracy"]
            text = live_numbers(event, self._accuracy[label])
            if self._live:
                self._bars.update(self._tasks[label], completed=event["round"], numbers=text)
            elif event["round"] % max(1, self._rounds[label] // 5) == 0:
                self._console.print(
                    f"{label}  round {event['round']}/{self._rounds[label]}  {text}",
                    highlight=False,
                    soft_wrap=True,
                )

    def end(self, label: str, outcome: str) -> None:
        """A run has ended; a line replaces its bar."""
        with self._lock:
            self._ended += 1
            if self._live and label in self._tasks:
                self._bars.remove_task(self._tasks.pop(label))
            self._console.print(
                f"[{self._ended}/{self._total}] {label}: {outcome}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

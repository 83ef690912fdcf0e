"""What an operator should look at while the run goes on: a key, names, a number and a sentence.

Whatever notices something unusual sets a warning and ends it. `fedhp cluster status`, the metrics,
the log and the history (from which the page takes it) all show the same one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from fedhp.cluster import events
from fedhp.cluster.history import History
from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.cluster.protocol.call_limits import LogThrottle
from fedhp.cluster.protocol.message_checks import (
    MAX_WARNING_MEMBERS,
    MAX_WARNINGS,
    one_line,
)

LOG = logging.getLogger("fedhp.coordinator")


@dataclass(frozen=True, slots=True)
class RunWarning:
    """Something unusual that lasts."""

    key: str  # for programs: a few lower-case words with "_" between them
    members: tuple[str, ...]  # the names of those that it is about, sorted
    value: float
    text: str  # for people

    def to_wire(self) -> wire.Warning:
        """For a status."""
        members = self.members[:MAX_WARNING_MEMBERS]
        return wire.Warning(
            key=self.key, members=members, value=self.value, text=one_line(self.text)
        )


class Warnings:
    """The warnings that last, by key and members."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._current: dict[tuple[str, tuple[str, ...]], RunWarning] = {}
        self._throttle = LogThrottle()

    def set(self, key: str, *, members: Iterable[str] = (), value: float, text: str) -> None:
        """Something unusual begins, or goes on with another number: only the first is logged."""
        names = tuple(sorted(members))
        before = self._current.get((key, names))
        if before is None and len(self._current) >= MAX_WARNINGS:
            return
        self._current[key, names] = warning = RunWarning(key, names, value, text)
        if before is None and self._throttle.admit(key, *names)[0]:
            self._history.note(events.Warned(key, names, value, text))
            LOG.warning("%s", warning.text)

    def end(self, key: str, *, members: Iterable[str] | None = None) -> None:
        """It is over: the warning of these members, or all of this key."""
        names = None if members is None else tuple(sorted(members))
        for subject in [each for each in self._current if each[0] == key]:
            if names is None or subject[1] == names:
                del self._current[subject]

    def on_wire(self) -> list[wire.Warning]:
        """All of them, for a status."""
        return [self._current[subject].to_wire() for subject in sorted(self._current)]

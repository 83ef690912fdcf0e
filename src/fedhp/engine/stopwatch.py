"""Real seconds by phase of a round: shown to people, never part of a result."""

from __future__ import annotations

import time


class Stopwatch:
    """Laps of one round."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to a phase."""
        now = time.monotonic()
        self.laps[phase] = self.laps.get(phase, 0.0) + now - self._last
        self._last = now

    def resume(self) -> None:
        """What went by since the last lap belongs to nobody."""
        self._last = time.monotonic()

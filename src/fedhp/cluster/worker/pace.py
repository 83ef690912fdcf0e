"""How many local steps a worker takes in a round that goes by time: until the average is there,
and then until the deadline.

Asked before every step, in the thread that trains. With cluster.emulate a step lasts as long as
the emulated device needs for it. A step that does not fit any more begins in the next round, and
the time that was left counts for it: so a slow worker takes steps, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fedhp.types import FloatArray

MOST_STEPS = 1_000_000  # of one round: what a report may name
SAME_MOMENT = 0.01  # s between two steps of an emulated device that are only the machine's delay
LONGEST_WAIT = 0.05  # s without a look whether the training is to stop


class StepPace:
    """The steps of one round."""

    def __init__(
        self,
        *,
        usual: float,
        emulated: Callable[[int], FloatArray] | None,
        stopped: Callable[[], bool],
        carried: float = 0.0,
    ) -> None:
        """usual: s of a step in earlier rounds. emulated: the times of the first n steps. carried:
        s that the last round left for the first step."""
        self.steps = 0
        self.seconds = 0.0  # of all steps
        self.arrived = threading.Event()  # the average is there, or lost
        self.carried = carried
        self._usual = usual
        self._emulated = emulated
        self._stopped = stopped
        self._begun = 0.0  # when the running step began; 0: none runs
        self._ended = 0.0  # when the last one ended

    def until_arrival(self) -> bool:
        """Whether to take another step before the average is there."""
        self._end_step()
        return not self.arrived.is_set() and self._begin_step()

    def until(self, end: float) -> bool:
        """Whether another step fits before a moment."""
        self._end_step()
        now = time.monotonic()
        if now + self._next_seconds() <= end:
            return self._begin_step()
        self.carried += max(0.0, end - now)
        return False

    def _next_seconds(self) -> float:
        """That the next step, or the one that runs, still needs."""
        usual = self.seconds / self.steps if self.steps else self._usual
        if self._emulated is not None:
            usual = float(self._emulated(self.steps + 1)[self.steps])
        return max(0.0, usual - self.carried)

    def _begin_step(self) -> bool:
        if self.steps >= MOST_STEPS or self._stopped():
            return False
        now = time.monotonic()
        follows = self._emulated is not None and 0 <= now - self._ended < SAME_MOMENT
        self._begun = self._ended if follows else now
        return True

    def _end_step(self) -> None:
        """The step that runs is over; with an emulated device, once that would be done."""
        if not self._begun:
            return
        time.sleep(0)  # lets the thread that moves the pieces of an average go first
        if self._emulated is not None:
            due = self._begun + self._next_seconds()
            while (left := due - time.monotonic()) > 0 and not self._stopped():
                time.sleep(min(left, LONGEST_WAIT))
            self._ended = due
        else:
            self._ended = time.monotonic()
        self.seconds += self._ended - self._begun
        self.steps += 1
        self._begun = self.carried = 0.0

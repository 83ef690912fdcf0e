"""How many calls one peer may have open and make, and how often its refusals are logged.

Peers are told apart by the name in their certificate. A call beyond the limits is held for a
while before it is refused: who calls again at once, as a flood does, slows down itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fedhp.cluster.protocol.guard import Refused

CALLS_AT_ONCE = 8  # of one peer; an honest one has at most four
CALLS_PER_SECOND, CALLS_IN_A_BURST = 150.0, 300.0
HOLD_SECONDS, LONGEST_HOLD_SECONDS = 0.02, 10.0  # per call that is held already, and at most
HELD_AT_ONCE = 2_048  # of one peer; beyond that calls are refused at once
LOG_LINES, LOG_SECONDS = 10, 60.0  # of one kind in this time; more are only counted


class CallLimits:
    """The open calls of each peer, and how many it may make at the moment."""

    def __init__(
        self, *, at_once: int = CALLS_AT_ONCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once = at_once
        self._clock = clock
        self._open: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._budgets: dict[str, tuple[float, float]] = {}  # calls left, and as of when
        self.refused = 0  # calls so far

    @asynccontextmanager
    async def one_call(self, peer: str, *, cost: float = 1.0) -> AsyncIterator[None]:
        """Count one call of this peer for as long as it is open; Refused("streams") after a while
        if there are too many."""
        if self._open[peer] >= self._at_once or not self._spend(peer, cost):
            await self._hold(peer)
            self.refused += 1
            raise Refused(
                "streams",
                f"this peer has {self._at_once} open calls already, or made too many in a second",
            )
        self._open[peer] += 1
        try:
            yield
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]

    def _spend(self, peer: str, cost: float) -> bool:
        now = self._clock()
        cost = min(cost, CALLS_IN_A_BURST)  # otherwise it could never be made
        left, then = self._budgets.get(peer, (CALLS_IN_A_BURST, now))
        left = min(CALLS_IN_A_BURST, left + (now - then) * CALLS_PER_SECOND)
        enough = left >= cost
        self._budgets[peer] = (left - cost if enough else left, now)
        return enough

    async def _hold(self, peer: str) -> None:
        if self._held[peer] >= HELD_AT_ONCE:
            return
        self._held[peer] += 1
        try:
            await asyncio.sleep(min(HOLD_SECONDS * self._held[peer], LONGEST_HOLD_SECONDS))
        finally:
            self._held[peer] -= 1
            if not self._held[peer]:
                del self._held[peer]


class LogThrottle:
    """Lets the first lines of a kind pass, then counts: nobody may fill a disk with refusals."""

    def __init__(
        self,
        *,
        lines: int = LOG_LINES,
        seconds: float = LOG_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lines, self._seconds, self._clock = lines, seconds, clock
        self._kinds: dict[tuple[str, ...], tuple[float, int]] = {}  # since when, and how many

    def admit(self, *kind: str) -> tuple[bool, int]:
        """Whether to write a line of this kind now, and how many were left out before it."""
        now = self._clock()
        since, count = self._kinds.get(kind, (now, 0))
        left_out = 0
        if now - since >= self._seconds:
            left_out, since, count = max(0, count - self._lines), now, 0
        self._kinds[kind] = since, count + 1
        return count < self._lines, left_out

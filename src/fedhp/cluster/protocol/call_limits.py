"""How many calls one peer may have open and make, and how often its refusals are logged.

Peers are told apart by the name in their certificate. A call beyond the limits is held for a
while before it is refused: who calls again at once, as a flood does, slows down itself. Nothing of
a held call has been read; what arrived of it fills at most the window of its stream.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.guard import Refused

CALLS_AT_ONCE = 8  # of one peer; an honest one has at most four
CALLS_PER_SECOND, CALLS_IN_A_BURST = 150.0, 300.0
REFUSAL_COST = 10.0  # calls; of a refusal that an honest peer does not cause again and again
HOLD_SECONDS, LONGEST_HOLD_SECONDS = 0.02, 10.0  # per call that is held already, and at most
CONNECTIONS = 4  # of one peer with open calls; an honest one has one or two
# In the windows of held calls; beyond that calls are refused at once.
HELD_BYTES_PER_PEER, HELD_BYTES = 32 << 20, 128 << 20
LOG_LINES, LOG_SECONDS = 10, 60.0  # of one kind in this time; more are only counted


class CallLimits:
    """The open calls of each peer, and how many it may make at the moment."""

    def __init__(
        self,
        *,
        at_once: int = CALLS_AT_ONCE,
        window: int = limits.REQUEST_WINDOW_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """window: bytes that may have arrived of a call that is held."""
        self._at_once, self._window = at_once, window
        self._clock = clock
        self._open: dict[str, Counter[str]] = {}  # calls by peer and connection
        self._held: Counter[str] = Counter()
        self._budgets: dict[str, tuple[float, float]] = {}  # calls left, and as of when
        self.refused = 0  # calls so far

    @asynccontextmanager
    async def one_call(
        self, peer: str, *, connection: str = "", cost: float = 1.0
    ) -> AsyncIterator[None]:
        """Count one call of this peer for as long as it is open; Refused("streams") after a while
        if there are too many."""
        if not self._has_room(peer, connection) or not self._spend(peer, cost):
            await self._hold(peer)
            self.refused += 1
            raise Refused(
                "streams",
                f"this peer has {self._at_once} open calls or {CONNECTIONS} connections already, "
                "or made too many calls in a second",
            )
        calls = self._open.setdefault(peer, Counter())
        calls[connection] += 1
        try:
            yield
        finally:
            calls[connection] -= 1
            if not calls[connection]:
                del calls[connection]
            if not calls:
                self._open.pop(peer, None)

    def charge(self, peer: str, cost: float) -> None:
        """Count what a call turned out to cost beyond its admission; later calls pay for it."""
        left, now = self._left(peer)
        self._budgets[peer] = (max(left - cost, -CALLS_IN_A_BURST), now)

    def _has_room(self, peer: str, connection: str) -> bool:
        calls = self._open.get(peer)
        if calls is None:
            return True
        connected = connection in calls or len(calls) < CONNECTIONS
        return connected and calls.total() < self._at_once

    def _spend(self, peer: str, cost: float) -> bool:
        cost = min(cost, CALLS_IN_A_BURST)  # otherwise it could never be made
        left, now = self._left(peer)
        enough = left >= cost
        self._budgets[peer] = (left - cost if enough else left, now)
        return enough

    def _left(self, peer: str) -> tuple[float, float]:
        """The calls that are left to this peer now, and the time."""
        now = self._clock()
        left, then = self._budgets.get(peer, (CALLS_IN_A_BURST, now))
        return min(CALLS_IN_A_BURST, left + (now - then) * CALLS_PER_SECOND), now

    async def _hold(self, peer: str) -> None:
        if (self._held[peer] + 1) * self._window > HELD_BYTES_PER_PEER or (
            self._held.total() + 1
        ) * self._window > HELD_BYTES:
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

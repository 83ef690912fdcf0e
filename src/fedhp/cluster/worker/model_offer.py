"""What a worker has for its peers: the trained model of one attempt, as soon as it is there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from fedhp.cluster.protocol import limits
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.compression import Outgoing
from fedhp.cluster.protocol.guard import Refused

STREAMS_OF_ONE = 4  # calls of one peer at once; more are refused
SENDING = 64  # streams that send at once; more wait for their turn
PROBE_BURST = 2 * limits.PROBE_BYTES  # bytes one peer may ask for at once
PROBE_RATE = limits.PROBE_BYTES / 10.0  # bytes per s beyond that


class NotNow(Exception):
    """An honest peer asked for what is not there, not yet or no more: nobody's fault."""

    def __init__(self, reason: str, text: str) -> None:
        self.reason = reason
        self.text = text
        super().__init__(f"{reason}: {text}")


class ModelOffer:
    """The trained model of the current attempt and who may have it."""

    def __init__(self) -> None:
        self.attempt = INITIAL
        self._readers: frozenset[str] = frozenset()
        self._model: Outgoing | None = None
        self.swapping = False  # in a swap that this worker has begun
        self._changed = asyncio.Condition()

    async def open(self, attempt: Attempt, readers: Collection[str]) -> None:
        """A new attempt begins; the model of the one before is no longer wanted."""
        async with self._changed:
            self.attempt, self._readers, self._model = attempt, frozenset(readers), None
            self._changed.notify_all()

    async def put(self, attempt: Attempt, model: Outgoing) -> None:
        """The trained model is there."""
        async with self._changed:
            if attempt == self.attempt:
                self._model = model
                self._changed.notify_all()

    async def take(self, attempt: Attempt, *, reader: str, patience: float) -> Outgoing:
        """The model of this attempt, waited for: a peer may have heard of it before us."""
        try:
            async with asyncio.timeout(patience), self._changed:
                while True:
                    if attempt < self.attempt:
                        raise NotNow("attempt", "this worker is at a later attempt")
                    if attempt == self.attempt:
                        if reader not in self._readers:
                            raise Refused("role", "it is no reader of this worker's model")
                        if self._model is not None:
                            return self._model
                    await self._changed.wait()
        except TimeoutError:
            raise NotNow("patience", "the model was not ready in time") from None


class Streams:
    """How many calls of each peer run, and how many of all of them send."""

    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self.sending = asyncio.Semaphore(SENDING)

    @contextmanager
    def one(self, peer: str) -> Iterator[None]:
        """Room for one more, or NotNow."""
        if self._running[peer] >= STREAMS_OF_ONE:
            raise NotNow("streams", f"{STREAMS_OF_ONE} calls of this peer are open already")
        self._running[peer] += 1
        try:
            yield
        finally:
            self._running[peer] -= 1
            if not self._running[peer]:
                del self._running[peer]


class ProbeBudget:
    """How many bytes of probes each peer may have, so that nobody can fill the link."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # bytes, and as of when

    def spend(self, peer: str, size: int) -> None:
        """Take so many bytes, or NotNow."""
        now = self._clock()
        left, then = self._left.get(peer, (PROBE_BURST, now))
        left = min(PROBE_BURST, left + (now - then) * PROBE_RATE)
        if size > left:
            raise NotNow("probes", "this peer asked for too many bytes of probes lately")
        self._left[peer] = (left - size, now)

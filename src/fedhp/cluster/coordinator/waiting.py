"""Who waits for a change: the members for an order, one call each, and the round loop.

A member is woken only when its order may have changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from fedhp.cluster.protocol.guard import Refused


class WaitingCall:
    """One call that waits."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.replaced = False  # by a later call of the same member

    async def until_changed(self, seconds: float) -> None:
        """Wait until the order may have changed, at most so long; Refused if replaced."""
        with contextlib.suppress(TimeoutError):
            # wait_for would lose a cancellation that comes together with the event.
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        self.changed.clear()
        if self.replaced:
            raise Refused("replaced", "a later call of this worker took the place of this one")


class WaitingMembers:
    """The waiting calls, by worker."""

    def __init__(self) -> None:
        self._calls: dict[int, WaitingCall] = {}
        self._without_model: set[int] = set()  # those that wait for a model to continue from

    @contextlib.contextmanager
    def begin(self, worker: int) -> Iterator[WaitingCall]:
        """Wait for this worker inside the block; an earlier call of it ends."""
        earlier = self._calls.get(worker)
        if earlier is not None:
            earlier.replaced = True
            earlier.changed.set()
        call = self._calls[worker] = WaitingCall()
        try:
            yield call
        finally:
            if self._calls.get(worker) is call:
                del self._calls[worker]
                self._without_model.discard(worker)

    def workers(self) -> list[int]:
        """Who waits."""
        return list(self._calls)

    def wake(self, workers: Iterable[int]) -> None:
        """The orders of these workers may have changed."""
        for worker in workers:
            call = self._calls.get(worker)
            if call is not None:
                call.changed.set()

    def waits_for_model(self, worker: int) -> None:
        """Nobody has the model that this worker needs: it is woken when somebody may have it."""
        self._without_model.add(worker)

    def wake_without_model(self) -> None:
        """Somebody may have the model that some workers need."""
        workers, self._without_model = self._without_model, set()
        self.wake(workers)

    def wake_all(self) -> None:
        """Everybody's order may have changed."""
        self.wake(self.workers())


class RoundLoopWaker:
    """Wakes the round loop: it may have to go on."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Something changed."""
        self._changed.set()

    async def wait(self, seconds: float) -> None:
        """In the round loop: wait until something changes, at most so long."""
        with contextlib.suppress(TimeoutError):
            # wait_for would lose a cancellation that comes together with the event.
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()

"""Waiting for an event, with a deadline: the only place where tests poll or sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 120.0  # s, for what should take a moment: a deadline, not a measurement
LOOK = 0.02  # s between two looks


def wait_until(
    holds: Callable[[], bool],
    what: str | Callable[[], str],
    *,
    seconds: float = PATIENCE,
    meanwhile: Callable[[], object] | None = None,
) -> None:
    """Look until something holds; TimeoutError with what it was if it never does."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise _overdue(what, seconds)
        if meanwhile is not None:
            meanwhile()
        time.sleep(LOOK)


async def wait_until_async(
    holds: Callable[[], bool], what: str | Callable[[], str], *, seconds: float = PATIENCE
) -> None:
    """The same inside an event loop, which goes on in the meantime."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise _overdue(what, seconds)
        await asyncio.sleep(LOOK)


def let_fault_last(seconds: float) -> None:
    """Let a fault last so long: its length is part of the test, nothing is waited for."""
    time.sleep(seconds)


async def emulate_work(seconds: float) -> None:
    """Take as long as work that a scripted process only pretends to do."""
    await asyncio.sleep(seconds)


def _overdue(what: str | Callable[[], str], seconds: float) -> TimeoutError:
    return TimeoutError(f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}")

"""Where the committed state of a run is stored: what every ledger promises.

A ledger leads at most once: a process that lost the lead starts again with a new one. Commits of
one ledger are made one after the other.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from fedhp.errors import FedhpError, RunError


class NotLeader(FedhpError):
    """This process does not lead any more; only the next leader can say what was committed."""


class Unreachable(FedhpError):
    """It is not known whether the commit was made; the same commit must be tried again."""


class RunStopped(OSError):
    """Nobody leads, because an operator stopped the run."""

    def __init__(self, run: str, why: str) -> None:
        super().__init__(f"nobody coordinates: the run was {why}")
        self.run, self.why = run, why


class LedgerDamaged(RunError):
    """What is stored is not what was committed."""


class Ledger(Protocol):
    """Stores the committed state of one run, and decides who may commit."""

    lost: asyncio.Event  # set when leadership is lost

    async def lead(self, *, name: str, address: str) -> int:
        """Wait until this process leads; its epoch, larger than any before."""
        ...

    def place(self) -> str:
        """Which copy of the ledger this is, for a leader; empty where there can be only one."""
        ...

    def leads(self) -> bool:
        """Whether this process still leads right now: to be asked before orders are given."""
        ...

    async def committed(self) -> bytes | None:
        """The last committed state, for a leader."""
        ...

    async def commit(self, state: bytes) -> None:
        """Make this the committed state; it is durable when this returns."""
        ...

    async def close(self) -> None:
        """Let another process lead."""
        ...

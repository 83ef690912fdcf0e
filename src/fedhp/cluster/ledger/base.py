"""Where the committed state of a run lives: what any such place promises, and a journal as one.

A ledger leads at most once: whoever lost the lead starts again with a new one. Commits of one
ledger are made one after the other.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from fedhp.cluster.ledger.journal import Journal, JournalBusy, JournalDamaged, Record
from fedhp.errors import FedhpError, StorageFull
from fedhp.files import make_folder

EPOCH = 1  # a record: who leads from here on
STATE = 2  # a record: the committed state, compressed
FILE = "journal"
POLL = 0.2  # s between two looks whether the lock is free
ROOM = 1 << 20  # bytes below which a journal is never rewritten
GROWTH = 4  # times its two last records until it is

Result = TypeVar("Result")


class NotLeader(FedhpError):
    """This process does not lead any more; only the next leader can say what was committed."""


class Unreachable(FedhpError):
    """It cannot be known now whether the commit was made; the same one must be tried again."""


class Ledger(Protocol):
    """A place for one run's committed state, and for who may commit."""

    lost: asyncio.Event  # set when leadership is lost
    told: tuple[str, ...]  # what a user should hear of after lead()

    async def lead(self, *, name: str, address: str) -> int:
        """Wait until this process leads; its epoch, larger than any before."""
        ...

    def leads(self) -> bool:
        """Whether this process still leads, at this very moment: ask before giving orders."""
        ...

    async def committed(self) -> bytes | None:
        """The last committed state, for a leader."""
        ...

    async def commit(self, state: bytes) -> None:
        """Make this the committed state; it is durable when this returns."""
        ...

    async def close(self) -> None:
        """Let the next one lead."""
        ...


class JournalLedger:
    """A ledger in a folder of this machine; whoever holds its lock leads."""

    def __init__(self, folder: Path) -> None:
        self.lost = asyncio.Event()
        self.told: tuple[str, ...] = ()
        self._folder = folder
        self._journal: Journal | None = None
        self._leader = b""  # the record that says so
        self._closed = False
        self._state: bytes | None = None
        # One thread: a commit whose caller was cancelled ends before the next one begins.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    async def lead(self, *, name: str, address: str) -> int:
        """Wait for the folder's lock; the epoch is in the journal when this returns."""
        if self._leader or self._closed:
            raise RuntimeError("a ledger leads only once")
        while True:
            try:
                return await self._run(lambda: self._start(name, address))
            except JournalBusy:
                await asyncio.sleep(POLL)

    def _start(self, name: str, address: str) -> int:
        make_folder(self._folder, option="--out")
        journal = Journal(self._folder / FILE)
        try:
            epoch, self._state = _last(journal)
            leader = {"epoch": epoch + 1, "name": name, "address": address}
            body = json.dumps(leader).encode()
            journal.append(EPOCH, body)
        except BaseException:
            journal.close()
            raise
        self.told = () if journal.torn is None else (f"{journal.path}: {journal.torn}",)
        self._journal, self._leader = journal, body
        return epoch + 1

    def leads(self) -> bool:
        """Whether the lock is held and nobody put other files in the place of ours."""
        holds = self._journal is not None and self._journal.in_place()
        if not holds and self._journal is not None:
            self.lost.set()
        return holds

    async def committed(self) -> bytes | None:
        """The last committed state."""
        self._must_lead()
        return self._state

    async def commit(self, state: bytes) -> None:
        """Append the state."""
        journal = self._must_lead()
        await self._run(lambda: self._append(journal, state))

    def _append(self, journal: Journal, state: bytes) -> None:
        packed = zlib.compress(state, 1)
        journal.append(STATE, packed)
        self._state = state
        kept = (Record(EPOCH, self._leader), Record(STATE, packed))
        if journal.size > max(ROOM, GROWTH * sum(len(record.body) for record in kept)):
            try:
                journal.rewrite(kept)
            except StorageFull:
                return  # the commit is made; the next one tries again

    def _must_lead(self) -> Journal:
        if self._journal is None or not self.leads():
            raise NotLeader(
                f"{self._folder}: this process does not hold the journal",
                allowed="commits of the process that leads",
                fix="wait for the other coordinator to end, and leave the folder's files alone",
            )
        return self._journal

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Let go of the lock, after the commit that is being made."""
        if not self._closed:
            self._closed = True
            await self._run(self._end)
            self._thread.shutdown(wait=False)

    def _end(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None


def _last(journal: Journal) -> tuple[int, bytes | None]:
    """The last epoch (0: none) and the last state of a journal."""
    epoch, packed = 0, None
    for record in journal.read():
        if record.kind == EPOCH:
            epoch = int(json.loads(record.body)["epoch"])
        elif record.kind == STATE:
            packed = record.body
        else:
            raise JournalDamaged(
                f"{journal.path}: there is a record of the unknown kind {record.kind}",
                allowed=f"kinds {EPOCH} and {STATE}",
                fix="use the version of fedhp that wrote it",
            )
    return epoch, None if packed is None else zlib.decompress(packed)

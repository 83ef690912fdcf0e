"""A ledger in a folder of this machine: one checksummed row of a SQLite database.

The process that holds the database's lock leads; the lock ends with its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from fedhp.cluster.ledger.base import LedgerDamaged, NotLeader
from fedhp.errors import FedhpError, RunError, StorageFull, TryAgain
from fedhp.files import (
    PRIVATE_FILE,
    has_space,
    make_folder,
    restrict,
    storage_error,
    storage_errors,
    write_file,
)

LEDGER_FILE = "ledger.sqlite"
LOCK_POLL = 0.2  # s between two attempts to take the lock
LEDGER_VERSION = 1
QUOTA_TRIAL_BYTES = 1 << 14
LEDGER_SCHEMA = "CREATE TABLE ledger (epoch INTEGER NOT NULL, content BLOB, sha256 BLOB NOT NULL)"
# A rollback journal, not a WAL: between two commits the database file alone is the ledger, while
# a bit that flips in a WAL would undo the last commit unnoticed. TRUNCATE: unlike a journal that
# was deleted, one that was truncated and synced cannot come back after a power cut.
SETTINGS = ("locking_mode=EXCLUSIVE", "journal_mode=TRUNCATE", "synchronous=FULL")

Result = TypeVar("Result")


class _Busy(NotLeader):
    """Another process holds the lock."""


class LocalLedger:
    """The ledger of one run; it is created if it does not exist."""

    def __init__(self, folder: Path) -> None:
        self.lost = asyncio.Event()
        self._folder = folder
        self._path = folder / LEDGER_FILE
        self._connection: sqlite3.Connection | None = None  # used in the one thread only
        self._inode = (0, 0)  # device and number of the database that is open
        self._epoch = 0  # 0: it never led
        self._state: bytes | None = None
        self._broken = ""  # why there can be no more commits
        self._closed = False
        # One thread: a commit whose caller was cancelled ends before the next one begins.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")

    async def lead(self, *, name: str, address: str) -> int:
        if self._epoch or self._closed:
            raise RuntimeError("a ledger leads only once")
        while True:
            try:
                return await self._run(self._start)
            except _Busy:
                await asyncio.sleep(LOCK_POLL)

    def _start(self) -> int:
        make_folder(self._folder, option="--out", private=True)
        _create(self._path)
        restrict(self._path)  # SQLite gives its journal the same mode
        with self._clear_errors(), contextlib.ExitStack() as stack:
            connection = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=rw",
                uri=True,
                isolation_level=None,
                timeout=LOCK_POLL,
            )
            stack.callback(connection.close)
            for setting in SETTINGS:
                connection.execute(f"PRAGMA {setting}")
            with _transaction(connection):
                epoch, content = _read(connection, self._path)
                _write(connection, epoch + 1, content)
            file = os.stat(self._path)
            stack.pop_all()
        self._state = None if content is None else zlib.decompress(content)
        self._inode = file.st_dev, file.st_ino
        self._connection, self._epoch = connection, epoch + 1
        return self._epoch

    def place(self) -> str:
        """The number of the file in its file system: a copy has another one."""
        return str(self._inode[1])

    def leads(self) -> bool:
        if self._connection is None:
            return False
        with contextlib.suppress(OSError):
            file = os.stat(self._path)
            if (file.st_dev, file.st_ino) == self._inode:
                return True
        self.lost.set()
        return False

    async def committed(self) -> bytes | None:
        if not self.leads():
            raise self._not_leader()
        return self._state

    async def commit(self, state: bytes) -> None:
        if not self.leads():
            raise self._not_leader()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, state)

    def _commit(self, state: bytes) -> None:
        connection = self._connection
        if connection is None:
            raise self._not_leader()  # it was closed meanwhile
        if self._broken:
            raise TryAgain(
                f"{self._path}: the ledger cannot be used any more: {self._broken}",
                allowed="a disk that keeps what is written to it",
                fix="check the disk and start the coordinator again: it reads what was committed",
            )
        try:
            with self._clear_errors(), _transaction(connection):
                _write(connection, self._epoch, zlib.compress(state, 1))
        except FedhpError as error:
            # A full disk changes nothing. After other errors, such as a failed sync, only
            # opening the database again shows what is on the disk.
            if not isinstance(error, StorageFull) or connection.in_transaction:
                self._broken = error.problem
            raise
        self._state = state

    def _not_leader(self) -> NotLeader:
        return NotLeader(
            f"{self._folder}: this process does not hold the ledger",
            allowed="commits of the process that leads",
            fix="wait until the other coordinator ends, and do not change the folder's files",
        )

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._run(self._end)
            self._thread.shutdown(wait=False)

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: of damaged text
            # The last byte is the kind; errors of the Python module itself have no code.
            whole = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            code = whole & 0xFF
            if code == sqlite3.SQLITE_BUSY:
                raise _Busy(f"{self._path}: another process leads") from None
            # SQLite knows only a full disk; beyond a quota a write just fails.
            failed = whole == sqlite3.SQLITE_IOERR_WRITE
            over_quota = failed and not has_space(self._folder, QUOTA_TRIAL_BYTES)
            if code == sqlite3.SQLITE_FULL or over_quota:
                raise storage_error(
                    OSError(errno.ENOSPC, str(error)),
                    self._path,
                    what="the ledger",
                    recovery="start the coordinator again: what was committed is kept",
                ) from None
            if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise _damaged(self._path, str(error)) from None
            # What an I/O error left is read again by the next process.
            kind = TryAgain if code == sqlite3.SQLITE_IOERR else RunError
            raise kind(
                f"{self._path}: the ledger cannot be used: {error}",
                allowed="a disk and a folder that this user can write to",
                fix="check the disk, its quota and the permissions of the folder",
            ) from None


def _create(path: Path) -> None:
    """Create the database if it does not exist: whole, and unless another process was faster."""
    if path.exists():
        return
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(LEDGER_SCHEMA)
        connection.execute(f"PRAGMA user_version={LEDGER_VERSION}")
        connection.execute("INSERT INTO ledger VALUES (0, NULL, ?)", (_digest(0, None),))
        content = connection.serialize()
    with (
        storage_errors(path, what="the ledger", option="--out"),
        contextlib.suppress(FileExistsError),
    ):
        write_file(path, content, mode=PRIVATE_FILE, replace=False, shared=True)


def _read(connection: sqlite3.Connection, path: Path) -> tuple[int, bytes | None]:
    """The epoch and the content, after everything was checked."""
    ((version,),) = connection.execute("PRAGMA user_version")
    tables = connection.execute("SELECT sql FROM sqlite_schema").fetchall()
    if version != LEDGER_VERSION or tables != [(LEDGER_SCHEMA,)]:
        raise _damaged(path, f"it is not a ledger of version {LEDGER_VERSION}")
    for (problem,) in connection.execute("PRAGMA integrity_check(1)"):
        if problem != "ok":
            raise _damaged(path, problem)
    rows = connection.execute(
        "SELECT epoch, content, sha256 FROM ledger"
        " WHERE typeof(epoch) = 'integer' AND typeof(content) IN ('blob', 'null')"
    ).fetchall()
    if len(rows) != 1:
        raise _damaged(path, f"it has {len(rows)} valid rows, not 1")
    epoch, content, digest = rows[0]
    if digest != _digest(epoch, content):
        raise _damaged(path, "its checksum does not match")
    return epoch, content


def _write(connection: sqlite3.Connection, epoch: int, content: bytes | None) -> None:
    connection.execute(
        "UPDATE ledger SET epoch = ?, content = ?, sha256 = ?",
        (epoch, content, _digest(epoch, content)),
    )


def _digest(epoch: int, content: bytes | None) -> bytes:
    kind = "nothing" if content is None else "content"
    digest = hashlib.sha256(f"{epoch} {kind} ".encode())
    digest.update(content or b"")
    return digest.digest()


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # The first error is the one to report; a failed rollback adds nothing.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _damaged(path: Path, reason: str) -> LedgerDamaged:
    return LedgerDamaged(
        f"{path}: the ledger is damaged: {reason}",
        allowed="a file that only fedhp wrote to",
        fix="restore a copy of the file, or start the run again with another --out",
    )

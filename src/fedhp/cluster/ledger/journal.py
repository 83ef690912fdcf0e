"""An append-only file of records that survives kills, torn writes, bit rot and a full disk.

At opening, what a torn write can leave behind the last whole record is cut off, and told. Any
other damage is JournalDamaged: no record is given up silently, no wrong body is handed out.
A file cut exactly behind a record cannot be told from one that never grew.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedhp.cluster.ledger.journal_format import JournalDamaged, Place, Record, begin, encode, scan
from fedhp.errors import RunError, StorageFull
from fedhp.files import sync_folder

__all__ = ["Journal", "JournalBusy", "JournalDamaged", "Record", "Torn"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class JournalBusy(RunError):
    """Another process has the journal open."""


@dataclass(frozen=True, slots=True)
class Torn:
    """What was cut off at opening."""

    offset: int
    bytes: int
    records: int  # whole ones before it

    def __str__(self) -> str:
        return (
            f"an unfinished write was cut off: {self.bytes} bytes at offset {self.offset}, "
            f"after {self.records} whole records"
        )


class Journal:
    """An open journal, held by this process alone; a missing file is made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn: Torn | None = None
        self._file = -1
        self._broken = ""
        self._lock_path = path.with_name(f"{path.name}.lock")
        self._lock = _take(self._lock_path, path)
        try:
            with _clear_errors(path):
                self._place = self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> Place:
        self._draft.unlink(missing_ok=True)
        if not self.path.exists():
            return self._replace(())
        self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        found = scan(_read(self._file), self.path)
        if found.rest:
            self.torn = Torn(found.place.offset, found.rest, found.place.count)
            os.ftruncate(self._file, found.place.offset)
        # Whoever wrote the last record may have died before it was on the disk.
        os.fsync(self._file)
        sync_folder(self.path.parent)
        return found.place

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._place.offset

    def read(self) -> tuple[Record, ...]:
        """All records, checked, from the disk."""
        self._must_work()
        with _clear_errors(self.path):
            found = scan(_read(self._file), self.path)
        if found.rest or found.place != self._place:
            raise JournalDamaged(
                f"{self.path}: somebody else wrote to it: its last record should end at offset "
                f"{self._place.offset} and ends at {found.place.offset}",
                allowed="a file that only fedhp wrote to",
                fix="start the coordinator again: the journal is checked anew",
            )
        return found.records

    def append(self, kind: int, body: bytes) -> None:
        """Add a record: on the disk when this returns; after StorageFull it is not there."""
        self._must_work()
        data, behind = encode(Record(kind, body), self._place)
        try:
            _write(self._file, data, self._place.offset)
            os.fsync(self._file)
        except OSError as error:
            self._cut_back(error)
            raise _told(error, self.path) from None
        self._place = behind

    def _cut_back(self, error: OSError) -> None:
        # After a failed fsync nobody knows what the disk has, and only a new opening can tell.
        # A full disk is different: the rest is cut off and the file can be used again.
        if error.errno not in _FULL:
            self._broken = str(error.strerror)
            return
        try:
            os.ftruncate(self._file, self._place.offset)
            os.fsync(self._file)
        except OSError as second:
            self._broken = str(second.strerror)

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace all records by these, at once or not at all."""
        self._must_work()
        with _clear_errors(self.path):
            self._place = self._replace(records)

    def _replace(self, records: Iterable[Record]) -> Place:
        handle = os.open(self._draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            first, place = begin()
            _write(handle, first, 0)
            for record in records:
                data, behind = encode(record, place)
                _write(handle, data, place.offset)
                place = behind
            os.fsync(handle)
            os.rename(self._draft, self.path)
        except BaseException:
            os.close(handle)
            self._draft.unlink(missing_ok=True)
            raise
        # From here on the new file is the journal; after a power cut it may be the old one still.
        if self._file >= 0:
            os.close(self._file)
        self._file = handle
        try:
            sync_folder(self.path.parent)
        except OSError as error:
            self._broken = str(error.strerror)
            raise
        return place

    @property
    def _draft(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")

    def in_place(self) -> bool:
        """Whether the journal and its lock are still the files at their paths."""
        return _same(self._file, self.path) and _same(self._lock, self._lock_path)

    def _must_work(self) -> None:
        if self._broken:
            raise RunError(
                f"{self.path}: the journal cannot be used any more: {self._broken}",
                allowed="a disk that keeps what is written to it",
                fix="check the disk and start again: what was committed is read anew",
            )

    def close(self) -> None:
        """Let go of the file and the lock."""
        self._broken = self._broken or "it was closed"
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._lock = -1


def _take(lock: Path, path: Path) -> int:
    # The lock is a file of its own, since rewriting puts another file in the journal's place.
    with _clear_errors(path):
        while True:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise JournalBusy(
                    f"{path}: another process is using this journal",
                    allowed="one coordinator per journal",
                    fix="end the other coordinator, or choose another folder",
                ) from None
            except BaseException:
                os.close(handle)
                raise
            if _same(handle, lock):
                return handle
            os.close(handle)  # removed between the two calls: it guards nothing


def _same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def _read(handle: int) -> bytes:
    parts: list[bytes] = []
    at = 0
    while part := os.pread(handle, 16 << 20, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _write(handle: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _told(error, path) from None


def _told(error: OSError, path: Path) -> StorageFull | RunError:
    if error.errno in _FULL:
        return StorageFull(
            f"{path}: the disk is full: {error.strerror}",
            allowed="room for the journal, twice over while it is rewritten",
            fix="free some space: the journal is whole and goes on from its last record",
        )
    return RunError(
        f"{path}: the journal cannot be used: {error.strerror}",
        allowed="a folder that is there and that this user can write to",
        fix="mend the folder or the disk",
    )

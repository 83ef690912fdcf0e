"""One process at a time per run folder; the lock dies with its process."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from fedhp.errors import RunError, StorageFull

FILE = "lock"
PATIENCE = 3.0  # s


class FolderLock:
    """Hold a run folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._handle = -1

    def __enter__(self) -> FolderLock:
        try:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            self._take()
        except BlockingIOError:
            os.close(self._handle)
            raise RunError(
                f"{self._path.parent}: another process is working on this run",
                allowed="one process per run folder",
                fix="wait for it to end, or choose another --out",
            ) from None
        except OSError as error:
            if self._handle >= 0:
                os.close(self._handle)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(
                    f"{self._path.parent}: the disk is full: {error.strerror}",
                    allowed="enough space for the records and two checkpoints",
                    fix="free some space and go on with --resume",
                ) from None
            raise RunError(
                f"{self._path.parent}: cannot be locked: {error.strerror}",
                allowed="a folder this user can write to",
                fix="mend the folder's permissions",
            ) from None
        return self

    def _take(self) -> None:
        # A job whose parent was just killed needs a moment to notice and let go.
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def __exit__(self, *details: object) -> None:
        os.close(self._handle)

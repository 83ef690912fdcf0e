"""One process at a time per run folder; the lock dies with its process."""

from __future__ import annotations

import fcntl
from pathlib import Path

from filelock import FileLock, Timeout

from fedhp.errors import FolderInUse
from fedhp.files import open_plain, restrict, storage_errors

LOCK_FILE = "lock"
LOCK_PATIENCE = 3.0  # s: a job whose parent was just killed needs a moment to notice and let go


class FolderLock:
    """Hold a run folder."""

    def __init__(self, folder: Path, *, private: bool = False) -> None:
        self._folder = folder
        self._private = private
        # Any thread may release it. A soft lock would outlive a process that is killed.
        self._lock = FileLock(
            folder / LOCK_FILE, timeout=LOCK_PATIENCE, thread_local=False, fallback_to_soft=False
        )

    def __enter__(self) -> FolderLock:
        with storage_errors(self._folder, what="the lock", recovery="resume the run with --resume"):
            self._folder.stat()  # the library would make a folder that is missing
            try:
                self._lock.acquire()
                if self._private:
                    restrict(self._folder / LOCK_FILE)
            except Timeout:
                raise FolderInUse(
                    f"{self._folder}: another process is working on this run",
                    allowed="one process per run folder",
                    fix="wait for it to end, or choose another --out",
                ) from None
        return self

    def __exit__(self, *details: object) -> None:
        self._lock.release()


def is_held(folder: Path) -> bool | None:
    """Whether a process works on the run now; None if that cannot be found out."""
    try:
        with open(open_plain(folder / LOCK_FILE), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # closing the file gives it back
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False

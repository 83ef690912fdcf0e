"""Files and folders that are whole or absent, and one clear error where the disk refuses.

What is written gets a temporary name, is synced, and then renamed: a kill or a power cut at any
instant leaves the old content or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedhp.errors import FedhpError, RunError, StorageFull

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600  # modes: for the user who runs fedhp alone
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
RUN_RECORD = "record.sqlite"  # the file that makes a folder the folder of a run
UNFINISHED = ".tmp"  # the name of a folder that is not complete yet: nobody takes it for a run


def is_run_folder(folder: Path) -> bool:
    """Whether a folder holds a run: what lies there may come from somebody else."""
    return os.path.lexists(folder / RUN_RECORD)


def open_plain(path: Path) -> int:
    """A descriptor of a plain file for reading; OSError for a link, a pipe or a device, which a
    folder from somebody else may hold in its place. It never waits."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return handle


def read_plain(path: Path) -> bytes:
    """The content of a plain file, see open_plain."""
    with open(open_plain(path), "rb") as file:
        return file.read()


@contextlib.contextmanager
def new_file(
    path: Path, *, mode: int = 0o666, replace: bool = True, shared: bool = False
) -> Iterator[Path]:
    """An empty file to write: it appears as `path`, whole and durable, when the block ends.

    Not `replace`: FileExistsError if `path` exists. `shared`: other processes may write it, too.
    """
    # One fixed name: processes that were killed leave at most one unfinished file behind.
    temporary = path.with_name(path.name + ".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    if shared:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        flags |= os.O_EXCL
    try:
        handle = os.open(temporary, flags, mode)
        try:
            if mode == PRIVATE_FILE:
                os.fchmod(handle, mode)  # a killed process may have left one with another mode
            yield temporary
            os.fsync(handle)
        finally:
            os.close(handle)
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # unlike a rename, it fails if the file exists
            temporary.unlink()
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_parts(path: Path, parts: Iterable[bytes | memoryview], *, mode: int = 0o666) -> None:
    """Write a `new_file` whose content comes piece by piece and is never whole in memory."""
    with new_file(path, mode=mode) as temporary, temporary.open("wb") as stream:
        for part in parts:
            stream.write(part)


def write_file(
    path: Path, content: bytes, *, mode: int = 0o666, replace: bool = True, shared: bool = False
) -> None:
    with new_file(path, mode=mode, replace=replace, shared=shared) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill: it appears as `target`, whole, when the block ends without an error.

    `target` must not exist, or be empty. Files are synced by those who write them.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    around = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        folder = around / UNFINISHED  # with the permissions that a new folder has
        folder.mkdir()
        yield folder
        sync_folder(folder)
        os.replace(folder, target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(around, ignore_errors=True)


def make_folder(
    folder: Path, *, option: str, kind: type[FedhpError] = RunError, private: bool = False
) -> None:
    """Make the folder that an option of the command names, durably; it may exist already.

    private: other users cannot enter it. One that exists and has files keeps its mode: it may be
    the user's own, for more than this.
    """
    with storage_errors(f"{option} {folder}", option=option, kind=kind):
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(PRIVATE_FOLDER if private else 0o777, parents=True, exist_ok=True)
        if private and not any(folder.iterdir()):
            restrict(folder)
        for path in missing:
            sync_folder(path.parent)


def restrict(path: Path) -> None:
    """Let no other user read a file or enter a folder; one of another owner is left as it is."""
    with contextlib.suppress(PermissionError, FileNotFoundError):
        path.chmod(PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def storage_errors(
    where: str | Path,
    *,
    what: str = "",
    option: str = "folder",
    recovery: str = "run the command again",
    kind: type[FedhpError] = RunError,
) -> Iterator[None]:
    """Turn any OSError of the block into a `storage_error`."""
    try:
        yield
    except OSError as error:
        raise storage_error(
            error, where, what=what, option=option, recovery=recovery, kind=kind
        ) from None


def storage_error(
    error: OSError,
    where: str | Path,
    *,
    what: str = "",
    option: str = "folder",
    recovery: str = "run the command again",
    kind: type[FedhpError] = RunError,
) -> FedhpError:
    """StorageFull, or `kind` for what cannot be written: the path, the cause and the fix.

    `what` was being written; `option` chooses the path; `recovery` is what to do after space
    was freed.
    """
    subject = f"{where}: {what} cannot be written" if what else f"{where}: cannot be written"
    reason = error.strerror or str(error)
    if error.errno in DISK_FULL:
        return StorageFull(
            f"{subject}: the disk is full ({reason})",
            allowed=f"enough space for {what or 'what is written'}",
            fix=f"free some space and {recovery}",
        )
    alternative = "mount it writable" if error.errno == errno.EROFS else "change its permissions"
    return kind(
        f"{subject}: {reason}",
        allowed="a path that this user can write to",
        fix=f"choose another {option}, or {alternative}",
    )


def has_space(folder: Path, size: int) -> bool:
    """Whether so many bytes can be written there now. It is tried: free space knows no quota."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        return error.errno not in DISK_FULL
    return True


def full_disk(folder: Path, needed: int) -> str:
    """A full disk in words, as it is now; needed in bytes."""
    try:
        free = f"{shutil.disk_usage(folder).free / 1e6:.1f} MB free"
    except OSError as error:
        free = f"free space unknown ({error.strerror})"
    return f"disk full at {folder}, {free}, needs about {needed / 1e6:.1f} MB"


def check_free_space(
    where: str | Path, needed: int, *, free: int, what: str, option: str, spare: int = 0
) -> None:
    """Refuse to begin what clearly does not fit on the disk; all sizes in bytes."""
    if needed + spare > free:
        raise StorageFull(
            f"{where}: {what} needs about {needed / 1e6:.0f} MB, {free / 1e6:.0f} MB are free",
            allowed="enough space for all of it"
            + (f" and {spare / 1e6:.0f} MB to spare" if spare else ""),
            fix=f"free some space, or choose another disk with {option}",
        )

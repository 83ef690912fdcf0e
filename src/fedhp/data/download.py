"""One file over HTTP: streamed, resumable, checked, renamed into place only when right.

A broken transfer leaves NAME.part (and NAME.part.tag, the server's version mark), from
which the next attempt goes on with a Range request.
"""

from __future__ import annotations

import errno
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from fedhp.data.files import file_md5
from fedhp.errors import DataError, StorageFull

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all

_BLOCK = 1 << 16
_STEADY = 1 << 20  # after so many new bytes the failures before them are forgiven
_SPARE = 16 << 20  # bytes to leave free on the disk
_PASSING = {408, 425, 429, 500, 502, 503, 504}


def free_bytes(folder: Path) -> int:
    """Free space on the disk of a folder."""
    return shutil.disk_usage(folder).free


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Patience with a server, and the world's hooks that tests replace."""

    timeout: float = 30.0  # s, for connecting and for every single read
    attempts: int = 5  # in a row without progress
    backoff: float = 1.0  # s before the second attempt, doubling
    longest_backoff: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    free: Callable[[Path], int] = free_bytes


class _Broken(Exception):
    """A transfer that failed in a way that may pass."""


def download(
    url: str,
    target: Path,
    *,
    md5: str,
    manners: RetryPolicy | None = None,
    progress: Progress | None = None,
) -> None:
    """Bring a file here, or raise; an existing .part is continued."""
    job = _Job(url, target, manners or RetryPolicy(), progress or (lambda *_: None))
    with _alone(job.part):
        continued = job.part.stat().st_size > 0
        job.run()
        found = file_md5(job.part)
        if found != md5 and continued:
            # the beginning may be that of an older file: once more from the start
            job.start_over()
            job.run()
            found = file_md5(job.part)
        if found != md5:
            size = job.part.stat().st_size
            job.forget()
            raise DataError(
                f"{url}: wrong checksum: expected MD5 {md5}, found {found} ({size} bytes);"
                " nothing was kept",
                allowed="the file as published",
                fix="try again later or another mirror (--from URL)",
            )
        os.replace(job.part, target)
        job.tag.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Job:
    url: str
    target: Path
    manners: RetryPolicy
    progress: Progress

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    @property
    def tag(self) -> Path:
        return self.target.with_name(self.target.name + ".part.tag")

    def run(self) -> None:
        """Requests until the file is complete or patience ends."""
        failures = 0
        while True:
            before = self.part.stat().st_size
            try:
                self.request()
                return
            except _Broken as error:
                problem = str(error)
            have = self.part.stat().st_size
            failures = 1 if have >= before + _STEADY else failures + 1
            if failures >= self.manners.attempts:
                raise DataError(
                    f"{self.url}: gave up after {failures} attempts: {problem}"
                    + (f"; {have} bytes are kept in {self.part}" if have else ""),
                    allowed="a server that answers",
                    fix="check the network and run the command again (it goes on where it"
                    " stopped), or use a mirror (--from URL)",
                )
            pause = self.manners.backoff * 2 ** (failures - 1)
            self.manners.sleep(min(pause, self.manners.longest_backoff))

    def request(self) -> None:
        """One request; returns when the file is complete."""
        have = self.part.stat().st_size
        request = urllib.request.Request(self.url, headers={"User-Agent": "fedhp"})
        if have:
            request.add_header("Range", f"bytes={have}-")
            if mark := self.read_tag():
                request.add_header("If-Range", mark)
        try:
            with urllib.request.urlopen(request, timeout=self.manners.timeout) as answer:
                self.receive(answer, have)
        except urllib.error.HTTPError as error:
            with error:
                self.refused(error, have)
        except TimeoutError as error:
            raise _Broken(f"no answer within {self.manners.timeout:g} s") from error
        except (urllib.error.URLError, ConnectionError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, TimeoutError):
                reason = f"no answer within {self.manners.timeout:g} s"
            raise _Broken(str(reason) or type(error).__name__) from error

    def receive(self, answer: Any, have: int) -> None:
        total: int | None = None
        if answer.status == 206:
            match = re.fullmatch(
                r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", "")
            )
            if match is None or int(match[1]) != have:
                self.start_over()
                raise _Broken("the server sent another part than was asked for")
            total = None if match[2] == "*" else int(match[2])
        else:
            # no Range support, or the file has changed since: from the start
            self.start_over()
            have = 0
            if (length := answer.headers.get("Content-Length", "")).isdigit():
                total = int(length)
        self.write_tag(answer)
        self.check_space(0 if total is None else total - have)
        with self.part.open("ab") as sink:
            self.progress(self.target.name, have, total)
            # read1 hands out what has come, so that a stall loses none of it
            while block := answer.read1(_BLOCK):
                _write(sink, block)
                have += len(block)
                self.progress(self.target.name, have, total)
        if total is not None and have < total:
            raise _Broken(f"the connection was cut after {have} of {total} bytes")

    def refused(self, error: urllib.error.HTTPError, have: int) -> None:
        if error.code == 416:
            # nothing follows what is here: it is complete, or from another file
            if error.headers.get("Content-Range") == f"bytes */{have}":
                return
            self.start_over()
            raise _Broken("the server has a shorter file than the part that was kept")
        if error.code in _PASSING:
            raise _Broken(f"the server answered {error.code} {error.reason}")
        raise DataError(
            f"{self.url}: the server answered {error.code} {error.reason}",
            allowed="an address that holds the file",
            fix="use a mirror (--from URL), or get the file by hand and set data.path",
        )

    def check_space(self, missing: int) -> None:
        free = self.manners.free(self.target.parent)
        if missing + _SPARE > free:
            no_room(self.target.parent, missing, free=free)

    def start_over(self) -> None:
        os.truncate(self.part, 0)
        self.tag.unlink(missing_ok=True)

    def forget(self) -> None:
        self.part.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)

    def read_tag(self) -> str:
        """The server's mark of the version kept, if it came from this address."""
        try:
            url, _, mark = self.tag.read_text(encoding="utf-8").partition("\n")
        except (OSError, UnicodeDecodeError):
            return ""
        return mark.strip() if url == self.url else ""

    def write_tag(self, answer: Any) -> None:
        mark = answer.headers.get("ETag") or ""
        if not mark or mark.startswith("W/"):  # If-Range takes no weak marks
            mark = answer.headers.get("Last-Modified") or ""
        with suppress(OSError):  # without it a resumed file is only checked at its end
            self.tag.write_text(f"{self.url}\n{mark}\n", encoding="utf-8")


def no_room(folder: Path, missing: int, *, free: int) -> NoReturn:
    """Complain about the disk."""
    raise StorageFull(
        f"{folder}: {missing / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free",
        allowed=f"the size of the files and {_SPARE / 1e6:.0f} MB to spare",
        fix="make room, or choose another disk with --to DIR",
    )


def _write(sink: IO[bytes], block: bytes) -> None:
    try:
        sink.write(block)
        sink.flush()
    except OSError as error:
        raise unwritable(sink.name, error) from error


def unwritable(path: str | Path, error: OSError) -> DataError | StorageFull:
    """A failed write in words: a full disk, or something else."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(
            f"{path}: the disk is full; what was downloaded so far is kept",
            fix="make room and run the command again: it goes on where it stopped",
        )
    return DataError(
        f"{path}: cannot be written: {error.strerror or error}",
        fix="check the folder and its permissions, or choose another with --to DIR",
    )


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Hold the .part file (made if absent), so that two fetches do not mix their bytes."""
    try:
        holder = part.open("ab")
    except OSError as error:
        raise unwritable(part, error) from error
    with holder:
        try:
            import fcntl
        except ImportError:  # no such locks on this system: the checksum still guards
            holder.close()
            yield
            return
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(
                f"{part}: another fetch is at work on this file",
                fix="wait for it to end",
            ) from error
        try:
            yield
        finally:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()

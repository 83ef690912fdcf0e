"""One file over HTTP: streamed, resumable, checked, and renamed into place when complete.

A broken transfer leaves NAME.part and NAME.part.tag (the server's ETag or date), from which
the next attempt continues with a Range request.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fedhp.data.source_files import file_md5
from fedhp.errors import DataError, FedhpError
from fedhp.files import check_free_space, storage_error

if TYPE_CHECKING:
    import httpx

Progress = Callable[[str, int, int | None], None]  # file name, bytes so far, bytes in all

_ENOUGH = 1 << 20  # new bytes after which earlier failures no longer count
_SPARE = 16 << 20  # bytes to leave free on the disk
_LARGEST = 8 << 30  # bytes of one file; the published ones have at most 0.6 GB
_TEMPORARY = {408, 425, 429, 500, 502, 503, 504}  # status codes worth another attempt


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to wait for a server and how often to try again."""

    timeout: float = 30.0  # s, for connecting and for every single read
    attempts: int = 5  # in a row without progress
    backoff: float = 1.0  # s before the second attempt, doubling
    longest_backoff: float = 30.0
    sleep: Callable[[float], None] = time.sleep  # tests replace these two
    free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free


class _TransferError(Exception):
    """A transfer failed in a way that another attempt may get past."""


def download(
    url: str,
    target: Path,
    *,
    md5: str,
    policy: RetryPolicy | None = None,
    progress: Progress | None = None,
) -> None:
    """Download a file or raise; an existing .part is continued."""
    policy = policy or RetryPolicy()
    with _client(url, policy) as client:
        job = _Download(client, url, target, policy, progress or (lambda *_: None))
        with _locked(job.part):
            continued = job.part.stat().st_size > 0
            job.run()
            if continued and file_md5(job.part) != md5:
                # the kept beginning may belong to an older file
                job.start_over()
                job.run()
            digest = file_md5(job.part)
            if digest != md5:
                size = job.part.stat().st_size
                job.discard()
                raise DataError(
                    f"{url}: wrong checksum: expected MD5 {md5}, got {digest} ({size} bytes);"
                    " nothing was kept",
                    allowed="the file as published",
                    fix="try again later, or use a mirror (--from URL)",
                )
            os.replace(job.part, target)
            job.tag.unlink(missing_ok=True)


def _client(url: str, policy: RetryPolicy) -> httpx.Client:
    """A client that follows the proxy variables and trusts the system's certificates."""
    import httpx

    try:
        return httpx.Client(
            # no compression on the way: a Range counts the bytes of the file itself
            headers={"User-Agent": "fedhp", "Accept-Encoding": "identity"},
            timeout=policy.timeout,
            follow_redirects=True,
            verify=ssl.create_default_context(),
        )
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # from HTTPS_PROXY and the like
        raise DataError(
            f"{url}: the proxy settings cannot be used: {error}",
            allowed="HTTP_PROXY, HTTPS_PROXY and ALL_PROXY as http://HOST:PORT",
            fix="correct these environment variables, or list the host in NO_PROXY",
        ) from error


@dataclass(frozen=True, slots=True)
class _Download:
    client: httpx.Client
    url: str
    target: Path
    policy: RetryPolicy
    progress: Progress

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    @property
    def tag(self) -> Path:
        return self.target.with_name(self.target.name + ".part.tag")

    def run(self) -> None:
        failures = 0
        while True:
            size_before = self.part.stat().st_size
            try:
                self.request()
                return
            except _TransferError as error:
                problem = str(error)
            size = self.part.stat().st_size
            failures = 1 if size >= size_before + _ENOUGH else failures + 1
            if failures >= self.policy.attempts:
                raise DataError(
                    f"{self.url}: gave up after {failures} attempts: {problem}"
                    + (f"; {size} bytes are kept in {self.part}" if size else ""),
                    allowed="a server that answers",
                    fix="check the network and run the command again (it continues where it"
                    " stopped), or use a mirror (--from URL)",
                )
            pause = self.policy.backoff * 2 ** (failures - 1)
            self.policy.sleep(min(pause, self.policy.longest_backoff))

    def request(self) -> None:
        import httpx

        size = self.part.stat().st_size
        headers = {}
        if size:
            headers["Range"] = f"bytes={size}-"
            if validator := self.read_tag():
                headers["If-Range"] = validator
        try:
            with self.client.stream("GET", self.url, headers=headers) as response:
                if response.is_success:
                    self.receive(response, size)
                else:
                    self.handle_refusal(response, size)
        except httpx.TimeoutException as error:
            raise _TransferError(f"no answer within {self.policy.timeout:g} s") from error
        except httpx.RequestError as error:
            raise _TransferError(str(error) or type(error).__name__) from error
        except httpx.InvalidURL as error:
            raise DataError(
                f"{self.url}: is not a valid address: {error}",
                allowed="http://... or https://...",
                fix="correct the address (--from URL)",
            ) from error

    def receive(self, response: httpx.Response, size: int) -> None:
        import httpx

        total: int | None = None
        if response.status_code == 206:
            sent = response.headers.get("Content-Range", "")
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", sent)
            if span is None or int(span[1]) != size:
                self.start_over()
                raise _TransferError("the server sent a different part than was requested")
            total = None if span[2] == "*" else int(span[2])
        else:
            # the server does not support Range, or the file has changed since
            self.start_over()
            size = 0
            if (length := response.headers.get("Content-Length", "")).isdigit():
                total = int(length)
        self.write_tag(response)
        self.check_size(size, total)
        with self.part.open("ab") as sink:
            self.progress(self.target.name, size, total)
            try:
                # chunks as they arrive, so that a stall loses none of them
                for block in response.iter_raw():
                    _write(sink, block)
                    size += len(block)
                    self.progress(self.target.name, size, total)
                    self.check_size(size, total)
            except httpx.RemoteProtocolError as error:
                expected = "" if total is None else f" of {total}"
                raise _TransferError(
                    f"the connection was cut after {size}{expected} bytes"
                ) from error
        if total is not None and size < total:
            raise _TransferError(f"the connection was cut after {size} of {total} bytes")

    def handle_refusal(self, response: httpx.Response, size: int) -> None:
        if response.status_code == 416:
            # nothing follows the bytes kept here: the file is complete, or it is another file
            if response.headers.get("Content-Range") == f"bytes */{size}":
                return
            self.start_over()
            raise _TransferError("the server's file is shorter than the part that was kept")
        answer = f"the server answered {response.status_code} {response.reason_phrase}"
        if response.status_code in _TEMPORARY:
            raise _TransferError(answer)
        raise DataError(
            f"{self.url}: {answer}",
            allowed="an address that holds the file",
            fix="use a mirror (--from URL), or download the file by hand and set data.path",
        )

    def check_size(self, size: int, total: int | None) -> None:
        if max(size, total or 0) > _LARGEST:
            self.discard()
            raise DataError(
                f"{self.url}: the file has more than {_LARGEST / 1e9:.1f} GB; nothing was kept",
                allowed="the file as published",
                fix="this is another file: use another mirror (--from URL)",
            )
        folder = self.target.parent
        check_free_space(
            folder,
            0 if total is None else total - size,
            free=self.policy.free(folder),
            what="the download",
            option="--to DIR",
            spare=_SPARE,
        )

    def start_over(self) -> None:
        os.truncate(self.part, 0)
        self.tag.unlink(missing_ok=True)

    def discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.tag.unlink(missing_ok=True)

    def read_tag(self) -> str:
        """The validator of the kept part, if it came from this address."""
        try:
            url, _, validator = self.tag.read_text(encoding="utf-8").partition("\n")
        except (OSError, UnicodeDecodeError):
            return ""
        return validator.strip() if url == self.url else ""

    def write_tag(self, response: httpx.Response) -> None:
        validator = response.headers.get("ETag", "")
        if not validator or validator.startswith("W/"):  # If-Range takes no weak ones
            validator = response.headers.get("Last-Modified", "")
        with suppress(OSError):  # without it a resumed file is only checked at its end
            self.tag.write_text(f"{self.url}\n{validator}\n", encoding="utf-8")


def _write(sink: IO[bytes], block: bytes) -> None:
    try:
        sink.write(block)
        sink.flush()
    except OSError as error:
        raise unwritable(sink.name, error) from error


def unwritable(path: str | Path, error: OSError) -> FedhpError:
    return storage_error(
        error,
        path,
        what="the data",
        option="folder with --to DIR",
        recovery="run the command again: it continues where it stopped",
        kind=DataError,
    )


@contextmanager
def _locked(part: Path) -> Iterator[None]:
    """Hold the .part file (created if absent), so that two downloads do not mix their bytes.

    The file itself is locked, not a lock file next to it that would stay behind.
    """
    try:
        holder = part.open("ab")
    except OSError as error:
        raise unwritable(part, error) from error
    with holder:
        try:
            import fcntl
        except ImportError:  # no such locks on this system: the checksum still protects
            holder.close()
            yield
            return
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataError(
                f"{part}: another process is downloading this file",
                fix="wait until it has finished",
            ) from error
        try:
            yield
        finally:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()

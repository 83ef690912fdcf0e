"""Reading bytes from plain, .gz and .xz files with every failure as a DataError.

Nothing is read beyond what a header promises, so a lying header or a decompression
bomb costs no memory.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from fedhp.errors import DataError

SUFFIXES = ("", ".gz", ".xz")
_CHUNK = 1 << 24


@contextmanager
def reading(path: Path) -> Iterator[IO[bytes]]:
    """The uncompressed bytes of a file, as a stream."""
    try:
        with _open(path) as stream:
            yield stream
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: the compressed data is cut short or corrupt ({error}){_guess(path)}",
            allowed="a complete file as published, plain, .gz or .xz",
            fix="get the file again, or run `fedhp data check` on its folder",
        ) from error
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror or error}",
            allowed="a readable file",
            fix="check the path and its permissions",
        ) from error


def read_at_most(stream: IO[bytes], limit: int) -> bytes:
    """Up to `limit` bytes; fewer only at the end of the stream."""
    parts: list[bytes] = []
    while limit > 0:
        part = stream.read(min(limit, _CHUNK))
        if not part:
            break
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def variant(folder: Path, *names: str) -> Path | None:
    """The first of these files that is there, plain or compressed."""
    for name in names:
        for suffix in SUFFIXES:
            path = folder / (name + suffix)
            if path.is_file():
                return path
    return None


def content_md5(path: Path) -> str:
    """MD5 of a file's uncompressed content."""
    with reading(path) as stream:
        return _digest(stream)


def file_md5(path: Path) -> str:
    """MD5 of a file as it lies on the disk."""
    with path.open("rb") as stream:
        return _digest(stream)


def _digest(stream: IO[bytes]) -> str:
    # MD5 because that is what the data sets publish: it guards against damage, not malice.
    digest = hashlib.md5(usedforsecurity=False)
    while part := stream.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return cast(IO[bytes], lzma.open(path, "rb"))
    return path.open("rb")


def _guess(path: Path) -> str:
    """What people find instead of a data file, by its first bytes."""
    try:
        with path.open("rb") as stream:
            return impostor(stream.read(64))
    except OSError:
        return ""


def impostor(head: bytes) -> str:
    """A remark if these first bytes belong to something often saved in place of data."""
    if head.startswith(b"version https://git-lfs"):
        return "; it is a Git LFS pointer, not the data"
    if head.lstrip()[:1] == b"<":
        return "; it looks like a web page, not the data"
    if head.startswith(b"\x1f\x8b"):
        return "; it is gzip data without the .gz ending"
    return ""

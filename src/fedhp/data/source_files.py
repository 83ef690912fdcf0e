"""Data files: where they are looked up, and reading their bytes.

Looked up in data.path, then $FEDHP_DATA, then the cache folder. Files are plain, .gz or .xz;
every failure is a DataError. Nothing is read beyond what a header promises, so a wrong header
or a decompression bomb costs no memory.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedhp.config import DataConfig
from fedhp.errors import ConfigError, DataError, DataMissing
from fedhp.machine import available

SUFFIXES = ("", ".gz", ".xz")
GZIP_RATIO = 1032  # no gzip file holds more bytes than this for each of its own
COPIES = 2  # samples are read, and once more in memory while they are checked or put in order
_CHUNK = 1 << 24


def cache_folder() -> Path:
    """The user's cache: $FEDHP_CACHE, else $XDG_CACHE_HOME/fedhp, else ~/.cache/fedhp."""
    if own := os.environ.get("FEDHP_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "fedhp"
    return Path("~/.cache/fedhp").expanduser()


def locate(
    request: DataConfig,
    *,
    usual_names: Sequence[str],
    holds: Callable[[Path], bool],
    needs: str,
    remark: Callable[[Sequence[Path]], str] = lambda _: "",
) -> Path:
    """The first file or folder that holds the data, or an error that lists what was searched.

    `usual_names` are tried below each folder; `holds` tells whether a path has the data.
    """
    name, shared = request.name, os.environ.get("FEDHP_DATA")
    roots = [("$FEDHP_DATA", Path(shared).expanduser())] if shared else []
    roots.append(("the cache folder", cache_folder()))
    if request.path is not None:
        roots = [("data.path", require_existing(Path(request.path)))]
    candidates = [root / sub if sub else root for _, root in roots for sub in ("", *usual_names)]
    for candidate in candidates:
        if candidate.exists() and holds(candidate):
            return candidate
    tried = "; ".join(
        f"{title} {root}{'' if root.exists() else ' (does not exist)'}" for title, root in roots
    )
    unset = "" if request.path or len(roots) > 1 else "; $FEDHP_DATA is not set"
    raise DataMissing(
        f"data.name = {name!r}: no data found, data.path = {request.path or 'not set'};"
        f" looked in {tried}{unset}, and there also under {', '.join(usual_names)}"
        f"{remark(candidates)}",
        allowed=needs,
        fix=f"run `fedhp data fetch {name}`, or set data.path to the folder that holds the files",
        keys=("data.name", "data.path") if request.path else ("data.name",),
    )


def require_path(request: DataConfig, *, wants: str) -> Path:
    """data.path, for readers that need one."""
    if request.path is None:
        raise ConfigError(
            f"is required for data.name = {request.name!r} but missing",
            key="data.path",
            allowed=wants,
            fix="add data.path = '...'",
            others=("data.name",),
        )
    return require_existing(Path(request.path))


def require_existing(path: Path) -> Path:
    if not path.exists():
        raise DataError(
            f"data.path = {path}: no such file or folder",
            allowed="an existing file or folder; a relative path starts at the folder of the"
            " experiment file, or on the command line at the current folder",
            fix="correct data.path",
            keys=("data.path",),
        )
    return path


@contextmanager
def reading(path: Path) -> Iterator[IO[bytes]]:
    """The uncompressed bytes of a file, as a stream."""
    try:
        opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
        with opened(path, "rb") as stream:
            yield stream
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        guess = guess_content(_head(path))
        raise DataError(
            f"{path}: the compressed data is cut short or corrupt ({error}){guess}",
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
    while part := stream.read(min(limit, _CHUNK)):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def check_fits(where: str | Path, size: int) -> None:
    """Refuse samples that take more memory than is free, before they are unpacked: a small file
    can hold gigabytes."""
    free = available()
    if COPIES * size > free:
        raise DataError(
            f"{where}: unpacked, its samples take {size / 1e9:.1f} GB, and reading them "
            f"{COPIES * size / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB are free",
            allowed="data that fit into the memory of this machine",
            fix="if the file is what you expect, store fewer samples in it, or use a machine with "
            "more memory; otherwise delete it",
        )


def unpacked_at_most(path: Path, promised: int) -> int:
    """The bytes that a header promises, or fewer if the file cannot hold as many."""
    packed = {"": 1, ".gz": GZIP_RATIO}.get(path.suffix if path.suffix in SUFFIXES else "")
    return promised if packed is None else min(promised, packed * path.stat().st_size)


def first_existing(folder: Path, *names: str) -> Path | None:
    """The first of these files that exists, plain or compressed."""
    paths = (folder / (name + suffix) for name in names for suffix in SUFFIXES)
    return next(filter(Path.is_file, paths), None)


def content_md5(path: Path) -> str:
    """MD5 of a file's uncompressed content."""
    with reading(path) as stream:
        return _digest(stream)


def file_md5(path: Path) -> str:
    """MD5 of a file as it is on disk."""
    with path.open("rb") as stream:
        return _digest(stream)


def _digest(stream: IO[bytes]) -> str:
    # MD5 because the data sets publish it: it protects against damage, not against malice.
    digest = hashlib.md5(usedforsecurity=False)
    while part := stream.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(64)
    except OSError:
        return b""


def guess_content(head: bytes) -> str:
    """A remark if these first bytes belong to something often saved in place of data."""
    if head.startswith(b"version https://git-lfs"):
        return "; it is a Git LFS pointer, not the data"
    if head.lstrip()[:1] == b"<":
        return "; it looks like a web page, not the data"
    if head.startswith(b"\x1f\x8b"):
        return "; it is gzip data without the .gz ending"
    return ""

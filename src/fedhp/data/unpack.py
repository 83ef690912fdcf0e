"""Unpacking an archive that is not trusted: only plain files, only inside the target folder."""

from __future__ import annotations

import functools
import gzip
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from fedhp.data.download import RetryPolicy, unwritable
from fedhp.errors import DataError
from fedhp.files import check_free_space

_SYMLINK = 0o120000


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """One file of an archive; its path is checked and without the common top folder."""

    path: PurePosixPath
    size: int
    open: Callable[[], Any]  # a stream


def unpack(archive: Path, target: Path, *, policy: RetryPolicy | None = None) -> list[Path]:
    """Write an archive's files below target; all of them, or none."""
    policy = policy or RetryPolicy()
    target.mkdir(parents=True, exist_ok=True)
    written = []
    try:
        with _members(archive) as members:
            check_free_space(
                target,
                sum(member.size for member in members),
                free=policy.free(target),
                what="the unpacked data",
                option="--to DIR",
            )
            with tempfile.TemporaryDirectory(dir=target, prefix=".unpacking-") as name:
                staging = Path(name)
                for member in members:
                    path = staging / member.path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with member.open() as stream, path.open("xb") as sink:
                        shutil.copyfileobj(stream, sink, 1 << 20)
                    if path.stat().st_size != member.size:
                        raise DataError(
                            f"{archive}: {member.path} is cut short",
                            fix="delete the archive and fetch it again",
                        )
                for member in members:
                    final = target / member.path
                    final.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(staging / member.path, final)
                    written.append(final)
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        gzip.BadGzipFile,
        EOFError,
        zlib.error,
        RuntimeError,  # a password, or a compression that zipfile does not support
    ) as error:
        raise DataError(
            f"{archive}: cannot be unpacked: {error}",
            allowed="a complete .zip or .tar.gz",
            fix="delete it and fetch it again",
        ) from error
    except OSError as error:
        raise unwritable(target, error) from error
    return written


@contextmanager
def _members(archive: Path) -> Iterator[list[ArchiveEntry]]:
    """The files of an archive; links, devices and paths outside are refused."""
    entries: list[ArchiveEntry] = []
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                if (entry.external_attr >> 16) & 0o170000 == _SYMLINK:
                    raise _unsafe(archive, entry.filename, "is a link")
                if not entry.is_dir():
                    path = _inside(archive, entry.filename)
                    opened = functools.partial(zipped.open, entry)
                    entries.append(ArchiveEntry(path, entry.file_size, opened))
            yield _without_top(entries, archive)
        return
    with tarfile.open(archive, "r:*") as tarred:
        for info in tarred:
            if info.isdir():
                continue
            if not info.isreg():
                raise _unsafe(archive, info.name, "is a link or a device")
            path = _inside(archive, info.name)
            content = functools.partial(tarred.extractfile, info)
            entries.append(ArchiveEntry(path, info.size, content))
        yield _without_top(entries, archive)


def _inside(archive: Path, name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise _unsafe(archive, name, "points outside the target folder")
    if not path.parts:
        raise _unsafe(archive, name, "has no name")
    return path


def _without_top(members: list[ArchiveEntry], archive: Path) -> list[ArchiveEntry]:
    """Members without the top folder they share; official archives have one."""
    tops = {member.path.parts[0] for member in members}
    if len(tops) == 1 and all(len(member.path.parts) > 1 for member in members):
        shorter = (PurePosixPath(*member.path.parts[1:]) for member in members)
        members = [
            replace(member, path=path) for member, path in zip(members, shorter, strict=True)
        ]
    if len({member.path for member in members}) != len(members):
        raise _unsafe(archive, archive.name, "holds two files with the same name")
    return members


def _unsafe(archive: Path, name: str, why: str) -> DataError:
    return DataError(
        f"{archive}: {name!r} {why}; nothing was unpacked",
        allowed="plain files inside the archive's own folder",
        fix="this is not the official archive: delete it and fetch it again",
    )

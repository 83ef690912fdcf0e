"""fetch: download the official files of a data set to the folder where load_data looks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from fedhp.data.download import Progress, RetryPolicy, download, unwritable
from fedhp.data.source_files import cache_folder, file_md5
from fedhp.data.unpack import unpack
from fedhp.errors import ConfigError, DataError
from fedhp.files import make_folder, write_file

_RECEIPT = ".fetched.json"  # what an archive held: a complete set is not fetched again


@dataclass(frozen=True, slots=True)
class DataSource:
    """Where a data set is published: files with their MD5, and the folder for them."""

    base: str
    files: tuple[tuple[str, str], ...]
    folder: str  # below the target; "" for the target itself
    archive: bool = False  # the one file is unpacked into the folder


SOURCES = {
    "mnist": DataSource(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
            ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
            ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
        ),
        "mnist",
    ),
    "emnist": DataSource(
        "https://biometrics.nist.gov/cs_links/EMNIST",
        (("gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"),),
        "emnist",
        archive=True,
    ),
    "cifar10": DataSource(
        "https://www.cs.toronto.edu/~kriz",
        (("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        "cifar-10-batches-bin",
        archive=True,
    ),
    # its 110000 small images are read from the zip
    "tiny_imagenet": DataSource(
        "http://cs231n.stanford.edu",
        (("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
        "",
    ),
}


@dataclass(frozen=True, slots=True)
class Fetched:
    name: str
    path: Path  # for data.path
    downloaded: tuple[str, ...]
    present: tuple[str, ...]  # existed already, with the right checksum


def fetch(
    name: str,
    *,
    to: Path | None = None,
    mirror: str | None = None,
    policy: RetryPolicy | None = None,
    progress: Progress | None = None,
    source: DataSource | None = None,
) -> Fetched:
    """Download the missing files, check and unpack them; safe to repeat."""
    source = source or SOURCES.get(name)
    if source is None:
        raise ConfigError(
            f"unknown data set {name!r}",
            key="NAME",
            source="command line",
            allowed=", ".join(SOURCES),
            fix="digits needs no download; for your own files set data.path",
        )
    if mirror is not None:
        source = replace(source, base=_checked_mirror(mirror))
    folder = (cache_folder() if to is None else to) / source.folder
    make_folder(folder, option="--to", kind=DataError)
    get = partial(download, policy=policy, progress=progress)
    if source.archive:
        return _fetch_archive(name, source, folder, get, policy)
    downloaded, present = [], []
    for file, md5 in source.files:
        target = folder / file
        if target.is_file() and file_md5(target) == md5:
            present.append(file)
        else:
            get(f"{source.base}/{file}", target, md5=md5)
            downloaded.append(file)
    path = folder if source.folder else folder / source.files[0][0]
    return Fetched(name, path, tuple(downloaded), tuple(present))


def _fetch_archive(
    name: str,
    source: DataSource,
    folder: Path,
    get: Callable[..., None],
    policy: RetryPolicy | None,
) -> Fetched:
    (file, md5), archive = source.files[0], folder / source.files[0][0]
    if _complete(folder, md5):
        return Fetched(name, folder, (), (file,))
    present = archive.is_file() and file_md5(archive) == md5
    if not present:
        get(f"{source.base}/{file}", archive, md5=md5)
    written = unpack(archive, folder, policy=policy)
    content = {
        path.relative_to(folder).as_posix(): [path.stat().st_size, file_md5(path)]
        for path in written
    }
    # the receipt is written last: without it the archive is unpacked again
    text = json.dumps({"archive": md5, "files": content}, indent=1)
    try:
        write_file(folder / _RECEIPT, text.encode())
        archive.unlink()
    except OSError as error:
        raise unwritable(folder, error) from error
    return Fetched(name, folder, () if present else (file,), (file,) if present else ())


def _complete(folder: Path, md5: str) -> bool:
    try:
        receipt = json.loads((folder / _RECEIPT).read_text(encoding="utf-8"))
        if receipt["archive"] != md5:
            return False
        return all(
            (folder / file).stat().st_size == size and file_md5(folder / file) == digest
            for file, (size, digest) in receipt["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _checked_mirror(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.netloc)
    except ValueError:  # a [ that is not closed, for example
        valid = False
    if not valid:
        raise ConfigError(
            f"invalid address {url!r}",
            key="--from",
            source="command line",
            allowed="http://... or https://..., the folder that holds the files",
            fix="give the address without the file name",
        )
    return url.rstrip("/")

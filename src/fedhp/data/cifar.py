"""CIFAR-10: binary batches (plain, .gz, .xz), python batches, or the official archives."""

from __future__ import annotations

import re
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from fedhp.config import DataConfig
from fedhp.data.cifar_pickle import read_python_batch
from fedhp.data.raw import AnyArray, RawData, check_labels
from fedhp.data.source_files import first_existing, locate, reading
from fedhp.errors import DataError
from fedhp.types import IntArray

USUAL_NAMES = (
    "cifar-10-batches-bin",
    "cifar-10-batches-py",
    "cifar-10-binary.tar.gz",
    "cifar-10-python.tar.gz",
)
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"

_RECORD = 1 + 3 * 32 * 32
_MEMBER = re.compile(r"(?:^|/)((?:data_batch_[1-5]|test_batch)(?:\.bin)?)$")
_LARGEST = 64 << 20  # a batch has 31 MB; more than this is something else
Batch = tuple[AnyArray, IntArray]


def read_cifar10(request: DataConfig) -> RawData:
    """CIFAR-10 in its official order."""
    path = locate(
        request,
        usual_names=USUAL_NAMES,
        holds=holds_cifar10,
        needs="data_batch_1.bin to data_batch_5.bin and test_batch.bin (plain, .gz or .xz), the"
        " same without .bin (python batches), or the official cifar-10-*.tar.gz",
    )
    batches = _from_archive(path) if path.is_file() else _from_folder(path, request)
    train, (test_inputs, test_targets) = batches[:-1], batches[-1]
    inputs = np.concatenate([images for images, _ in train])
    targets = np.concatenate([labels for _, labels in train])
    return RawData(inputs, targets, test_inputs, test_targets, len(NAMES), NAMES)


def holds_cifar10(path: Path) -> bool:
    if path.is_file():
        return is_archive(path)
    return any(batch_file(path, name) is not None for name in (*TRAIN, TEST))


def is_archive(path: Path) -> bool:
    return path.name.endswith((".tar", ".tar.gz", ".tgz", ".tar.xz"))


def batch_file(folder: Path, name: str) -> Path | None:
    """The file of one batch; the binary one if both exist."""
    return first_existing(folder, f"{name}.bin", name)


def read_batch_file(path: Path) -> Batch:
    """Images [n, 3, 32, 32] and labels of one batch file."""
    with reading(path) as stream:
        content = stream.read(_LARGEST + 1)
    return _parse(content, path.name.removesuffix(".gz").removesuffix(".xz"), file=str(path))


def _from_folder(folder: Path, request: DataConfig) -> list[Batch]:
    files = {name: batch_file(folder, name) for name in (*TRAIN, TEST)}
    if missing := [name for name, path in files.items() if path is None]:
        raise _incomplete(str(folder), missing)
    paths = [path for path in files.values() if path is not None]
    # decompression releases the interpreter lock, so threads help; batches that
    # data.train_images leaves out are not read
    with ThreadPoolExecutor() as pool:
        if request.train_images is None:
            return _checked(list(pool.map(read_batch_file, paths)), str(folder))
        first = read_batch_file(paths[0])
        wanted = min(len(TRAIN), -(-request.train_images // len(first[0])))
        rest = list(pool.map(read_batch_file, [*paths[1:wanted], paths[-1]]))
    return _checked([first, *rest], str(folder))


def _from_archive(path: Path) -> list[Batch]:
    batches: dict[str, Batch] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                match = _MEMBER.search(member.name)
                stream = archive.extractfile(member) if match and member.isfile() else None
                if match and stream:
                    read = partial(_parse, name=match[1], file=f"{path}:{member.name}")
                    batches[match[1].removesuffix(".bin")] = read(stream.read(_LARGEST + 1))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(
            f"{path}: is not a readable archive: {error}",
            allowed="cifar-10-binary.tar.gz or cifar-10-python.tar.gz as published",
            fix="the file is truncated or corrupt: `fedhp data fetch cifar10` gets it again",
        ) from error
    if missing := [name for name in (*TRAIN, TEST) if name not in batches]:
        raise _incomplete(str(path), missing)
    return _checked([batches[name] for name in (*TRAIN, TEST)], str(path))


def _parse(content: bytes, name: str, *, file: str) -> Batch:
    if len(content) > _LARGEST:
        raise DataError(
            f"{file}: is larger than any CIFAR-10 batch",
            allowed="batches of 10000 images",
            fix="get the official files",
        )
    if name.endswith(".bin"):
        if len(content) == 0 or len(content) % _RECORD:
            raise DataError(
                f"{file}: {len(content)} bytes are not a whole number of records",
                allowed=f"records of {_RECORD} bytes: label, then 1024 red, green and blue values"
                f" (10000 records = {10000 * _RECORD} bytes)",
                fix="the file is truncated or corrupt: get it again",
            )
        records = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
        images, labels = records[:, 1:], records[:, 0].astype(np.int64)
    else:
        images, labels = read_python_batch(content, file=file)
        if images.shape[1] != _RECORD - 1 or len(images) != len(labels) or len(images) == 0:
            raise DataError(
                f"{file}: {images.shape[0]} rows of {images.shape[1]} bytes with {len(labels)}"
                " labels",
                allowed=f"one label for each row of {_RECORD - 1} bytes",
                fix="get the official files",
            )
    other = "the file is corrupt or not CIFAR-10 (CIFAR-100 has another layout): get it again"
    check_labels(labels, file, classes=len(NAMES), fix=other)
    return images.reshape(-1, 3, 32, 32), labels


def _checked(batches: list[Batch], where: str) -> list[Batch]:
    sizes = [len(images) for images, _ in batches[:-1]]
    if len(set(sizes)) > 1:
        raise DataError(
            f"{where}: the training batches hold {', '.join(map(str, sizes))} images",
            allowed="batches of equal length (10000 each in the official files)",
            fix="the short ones are truncated: get them again",
        )
    return batches


def _incomplete(where: str, missing: list[str]) -> DataError:
    return DataError(
        f"{where}: {', '.join(missing)} missing",
        allowed="data_batch_1 to data_batch_5 and test_batch, all binary (.bin) or all python",
        fix="add the files, or run `fedhp data fetch cifar10`",
    )

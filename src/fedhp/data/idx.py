"""IDX files: MNIST and the EMNIST splits, official names and byte layout.

EMNIST images are stored transposed and are put upright here; labels keep their official
numbers, except in the letters split: it counts from 1 and is shifted to 0.
"""

from __future__ import annotations

import string
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedhp.config import DataConfig
from fedhp.data.raw import (
    AnyArray,
    RawData,
    check_labels,
    check_same_shape,
    split_samples,
)
from fedhp.data.source_files import (
    check_fits,
    first_existing,
    guess_content,
    locate,
    read_at_most,
    reading,
    unpacked_at_most,
)
from fedhp.errors import DataError
from fedhp.types import IntArray

MNIST_FOLDERS = ("mnist", "MNIST/raw", "MNIST", "raw")
EMNIST_FOLDERS = ("emnist", "emnist/gzip", "gzip", "EMNIST/raw", "EMNIST", "raw")

_DIGITS = tuple(string.digits)
_MERGED = (*string.digits, *string.ascii_uppercase, *"abdefghnqrt")
FAMILIES: dict[str, tuple[str, ...]] = {
    "byclass": (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase),
    "bymerge": _MERGED,
    "balanced": _MERGED,
    "letters": tuple(string.ascii_lowercase),
    "digits": _DIGITS,
    "mnist": _DIGITS,
}
_UBYTE = 0x08
_KINDS = {1: "labels", 3: "images"}


def read_mnist(request: DataConfig) -> RawData:
    folder = locate(
        request,
        usual_names=MNIST_FOLDERS,
        holds=holds_mnist,
        needs="train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and"
        " t10k-labels-idx1-ubyte, plain, .gz or .xz",
    )
    train = read_pair(folder, "train", classes=10)
    test = read_pair(folder, "t10k", classes=10)
    return _raw_data(train, test, classes=10, names=_DIGITS, folder=folder)


def read_emnist(request: DataConfig) -> RawData:
    """One EMNIST split; data.split names it (default byclass, the 62 classes of the paper)."""
    split = request.split or "byclass"

    def remark(folders: Sequence[Path]) -> str:
        splits = sorted({other for folder in folders for other in emnist_splits(folder)})
        there = f"; data.split = {split!r} is not there, but {', '.join(map(repr, splits))} is"
        return there if splits else ""

    folder = locate(
        request,
        usual_names=EMNIST_FOLDERS,
        holds=lambda path: split in emnist_splits(path),
        needs=f"emnist-{split}-{{train,test}}-images-idx3-ubyte and -labels-idx1-ubyte (or one"
        f" undivided pair emnist-{split}-images-idx3-ubyte), plain, .gz or .xz",
        remark=remark,
    )
    family = split if split in FAMILIES else split.partition("-")[0]
    names = FAMILIES.get(family, ())
    first = 1 if family == "letters" else 0
    limit = len(names) or 256
    stem = f"emnist-{split}"
    if images_file(folder, f"{stem}-train") is None and images_file(folder, stem) is not None:
        images, labels = read_pair(folder, stem, classes=limit, first=first)
        classes = int(labels.max()) + 1
        upright = _upright(images)[:, None]
        return split_samples(upright, labels, classes=classes, class_names=names[:classes])
    train = read_pair(folder, f"{stem}-train", classes=limit, first=first)
    test = read_pair(folder, f"{stem}-test", classes=limit, first=first)
    # an official split has its official number of classes; a part of one, those that occur
    classes = limit if split in FAMILIES else 1 + int(max(train[1].max(), test[1].max()))
    pairs = [(_upright(images), labels) for images, labels in (train, test)]
    return _raw_data(*pairs, classes=classes, names=names[:classes], folder=folder)


def holds_mnist(folder: Path) -> bool:
    return any(images_file(folder, stem) is not None for stem in ("train", "t10k"))


def emnist_splits(folder: Path) -> list[str]:
    """The EMNIST splits whose image files are in this folder, undivided ones too."""
    if not folder.is_dir():
        return []
    splits = set()
    for path in folder.iterdir():
        stem, mark, _ = path.name.partition("-images")
        if stem.startswith("emnist-") and mark and path.is_file():
            splits.add(stem.removeprefix("emnist-").removesuffix("-train").removesuffix("-test"))
    return sorted(splits)


def images_file(folder: Path, stem: str) -> Path | None:
    """The image file with this prefix, in any of the usual spellings."""
    return first_existing(folder, f"{stem}-images-idx3-ubyte", f"{stem}-images.idx3-ubyte")


def labels_file(folder: Path, stem: str) -> Path | None:
    return first_existing(folder, f"{stem}-labels-idx1-ubyte", f"{stem}-labels.idx1-ubyte")


def read_pair(
    folder: Path, stem: str, *, classes: int, first: int = 0
) -> tuple[AnyArray, IntArray]:
    """Images [n, height, width] uint8 and their labels [n], shifted to count from 0."""
    files = images_file(folder, stem), labels_file(folder, stem)
    if files[0] is None or files[1] is None:
        kind, digit = ("images", 3) if files[0] is None else ("labels", 1)
        raise DataError(
            f"{folder}: {stem}-{kind}-idx{digit}-ubyte is missing",
            allowed="images and labels in one folder, plain, .gz or .xz",
            fix="add the file, or get the whole set with `fedhp data fetch`",
        )
    images, labels = read_idx(files[0], dimensions=3), read_idx(files[1], dimensions=1)
    if len(images) != len(labels):
        raise DataError(
            f"{files[1]}: {len(labels)} labels for the {len(images)} images in {files[0].name}",
            allowed="one label per image",
            fix="the two files do not belong together: get both again",
        )
    if len(images) == 0:
        raise DataError(f"{files[0]}: holds no images", fix="get the file again")
    corrupt = "the file belongs to another split or is corrupt: get it again"
    check_labels(labels, str(files[1]), first=first, classes=classes, fix=corrupt)
    return images, labels.astype(np.int64) - first


def read_idx(path: Path, *, dimensions: int) -> AnyArray:
    wanted = f"00 00 {_UBYTE:02x} {dimensions:02x} (unsigned bytes, {dimensions} dimension(s))"
    with reading(path) as stream:
        magic = read_at_most(stream, 4)
        if magic != bytes((0, 0, _UBYTE, dimensions)):
            raise DataError(
                f"{path}: starts with {magic.hex(' ') or 'nothing'}, which is not an IDX file of"
                f" {_KINDS[dimensions]}{guess_content(magic + read_at_most(stream, 60))}",
                allowed=f"the magic number {wanted}",
                fix="get the file again; images are idx3, labels idx1",
            )
        header = read_at_most(stream, 4 * dimensions)
        if len(header) < 4 * dimensions:
            raise DataError(f"{path}: the header is cut short", fix="get the file again")
        shape = struct.unpack(f">{dimensions}I", header)
        size = int(np.prod(np.array(shape, dtype=object)))
        check_fits(path, unpacked_at_most(path, size))
        content = read_at_most(stream, size)
        extra = stream.read(1)
    if len(content) != size or extra:
        raise DataError(
            f"{path}: the header promises {'x'.join(map(str, shape))} = {size} bytes, but"
            f" {'more' if extra else f'only {len(content)}'} follow",
            allowed="a complete file as published",
            fix="the file is truncated or corrupt: get it again",
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _upright(images: AnyArray) -> AnyArray:
    return np.ascontiguousarray(images.transpose(0, 2, 1))


def _raw_data(
    train: tuple[AnyArray, IntArray],
    test: tuple[AnyArray, IntArray],
    *,
    classes: int,
    names: tuple[str, ...],
    folder: Path,
) -> RawData:
    check_same_shape(train[0], test[0], str(folder))
    return RawData(train[0][:, None], train[1], test[0][:, None], test[1], classes, names)

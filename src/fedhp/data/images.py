"""Image files: one folder per class, or the Tiny-ImageNet tree; in a folder or in a zip.

Training images are ordered class by class in turn (the first of each class, the second of
each, ...), so that the first n of them have about as many of every class.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedhp.config import DataConfig
from fedhp.data.raw import RawData, holdout
from fedhp.data.source_files import check_fits, locate, require_path
from fedhp.errors import DataError
from fedhp.types import IntArray

TINY_IMAGENET_NAMES = tuple(
    f"tiny-imagenet-{classes}{suffix}" for classes in (200, 100) for suffix in ("", ".zip")
)
_TEST_FOLDERS = ("test", "val")
_CLASS_FOLDERS = "<path>/train/<class>/* and <path>/test/<class>/* (or val), or <path>/<class>/*"
_TINY_FILES = "wnids.txt, train/<wnid>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt"
_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_MOST_BYTES = 64 << 20  # of one image file
_MOST_PIXELS = 1 << 26  # a small file can expand to gigabytes
_FETCH_AGAIN = "get the data set again: `fedhp data fetch tiny_imagenet`"
Side = Annotated[int, Field(ge=1, le=4096)]


def read_image_folder(
    request: DataConfig, *, size: Side | None = None, grayscale: bool = False
) -> RawData:
    """One folder per class; without a train folder, split 80 / 20."""
    path = require_path(request, wants=_CLASS_FOLDERS)
    tree = open_tree(path)
    images = [name for name in tree.names() if is_image(name)]
    parts = {top: _by_class(images, f"{top}/") for top in ("train", *_TEST_FOLDERS)}
    if not parts["train"]:
        return _read_unsplit(tree, images, request=request, size=size, grayscale=grayscale)
    test_part = next((parts[top] for top in _TEST_FOLDERS if parts[top]), None)
    if test_part is None:
        raise DataError(
            f"{path}: there is a train folder, but no images in test/<class> or val/<class>",
            allowed=_CLASS_FOLDERS,
            fix="add a test folder, or set data.path to the train folder to split that",
        )
    names = tuple(sorted(parts["train"], key=natural))
    if unknown := sorted(set(test_part) - set(names)):
        raise DataError(
            f"{path}: the test folder has the class {unknown[0]!r}, the train folder has not",
            allowed="test classes that occur in train",
            fix="rename or remove the class",
        )
    train, train_labels = _in_turn(parts["train"], names, limit=request.train_images)
    test, test_labels = _in_turn(test_part, names, limit=request.test_images)
    x_train, x_test = (
        decode(tree, files, size=size, grayscale=grayscale) for files in (train, test)
    )
    return RawData(x_train, train_labels, x_test, test_labels, len(names), names)


def read_tiny_imagenet(request: DataConfig) -> RawData:
    """Tiny-ImageNet (200 classes, or fewer); its labelled val part is the test set."""
    path = locate(
        request,
        usual_names=TINY_IMAGENET_NAMES,
        holds=holds_tiny_imagenet,
        needs=_TINY_FILES,
    )
    tree = open_tree(path)
    files = set(tree.names())
    if missing := [name for name in ("wnids.txt", "val/val_annotations.txt") if name not in files]:
        raise DataError(
            f"{tree.where(missing[0])}: is missing",
            allowed=_TINY_FILES,
            fix=f"this is not a complete Tiny-ImageNet: {_FETCH_AGAIN}",
        )
    wnids = _text(tree, "wnids.txt").split()
    train = _by_class([name for name in files if is_image(name)], "train/")
    if absent := [wnid for wnid in wnids if wnid not in train]:
        raise DataError(
            f"{tree.where('train')}: no images of the class {absent[0]}, which wnids.txt lists",
            allowed=_TINY_FILES,
            fix="add its folder, or remove the class from wnids.txt",
        )
    names, labels = _in_turn(train, wnids, limit=request.train_images)
    test, test_labels = _annotations(tree, files, wnids=wnids)
    test, test_labels = test[: request.test_images], test_labels[: request.test_images]
    lines = _text(tree, "words.txt").splitlines() if "words.txt" in files else []
    words = {
        wnid: title.partition(",")[0].strip()
        for wnid, _, title in (line.partition("\t") for line in lines)
    }
    titles = tuple(words.get(wnid) or wnid for wnid in wnids)
    return RawData(decode(tree, names), labels, decode(tree, test), test_labels, len(wnids), titles)


def holds_tiny_imagenet(path: Path) -> bool:
    return path.suffix == ".zip" if path.is_file() else (path / "wnids.txt").is_file()


def holds_image_folder(path: Path) -> bool:
    """Whether a folder has images one or two levels down."""
    patterns = ("*/*", "train/*/*")
    return path.is_dir() and any(
        is_image(file.name) for pattern in patterns for file in path.glob(pattern)
    )


def _read_unsplit(
    tree: FileTree,
    images: Sequence[str],
    *,
    request: DataConfig,
    size: int | None,
    grayscale: bool,
) -> RawData:
    classes = _by_class(images, "")
    names = tuple(sorted(classes, key=natural))
    if len(images) < 2 or not names:
        raise DataError(
            f"{tree.where('')}: {len(images)} image(s) in class folders",
            allowed=_CLASS_FOLDERS,
            fix="set data.path to the folder that holds the class folders",
        )
    files, labels = _in_turn(classes, names, limit=None)
    train, test = holdout(labels, classes=len(names))
    parts = train[: request.train_images], test[: request.test_images]
    x_train, x_test = (
        decode(tree, [files[i] for i in part], size=size, grayscale=grayscale) for part in parts
    )
    return RawData(x_train, labels[parts[0]], x_test, labels[parts[1]], len(names), names)


def _by_class(images: Sequence[str], prefix: str) -> dict[str, list[str]]:
    classes: dict[str, list[str]] = {}
    for name in images:
        top, slash, _ = name.removeprefix(prefix).partition("/")
        if name.startswith(prefix) and slash:
            classes.setdefault(top, []).append(name)
    return {name: sorted(files, key=natural) for name, files in classes.items()}


def _in_turn(
    classes: dict[str, list[str]], order: Sequence[str], *, limit: int | None
) -> tuple[list[str], IntArray]:
    """The first image of every class, then the second of every class, and so on."""
    columns = [
        [(name, label) for name in classes.get(title, ())] for label, title in enumerate(order)
    ]
    pairs = [pair for row in zip_longest(*columns) for pair in row if pair is not None][:limit]
    return [name for name, _ in pairs], np.array([label for _, label in pairs], dtype=np.int64)


def _annotations(
    tree: FileTree, files: set[str], *, wnids: Sequence[str]
) -> tuple[list[str], IntArray]:
    numbers = {wnid: label for label, wnid in enumerate(wnids)}
    names, labels = [], []
    lines = _text(tree, "val/val_annotations.txt").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        image, _, rest = line.partition("\t")
        wnid, name = rest.partition("\t")[0], f"val/images/{image}"
        if wnid not in numbers or name not in files:
            what = f"class {wnid!r} is not in wnids.txt" if wnid not in numbers else "no such file"
            raise DataError(
                f"{tree.where('val/val_annotations.txt')}, line {number}: {image}: {what}",
                allowed="image, tab, wnid, ... for the images in val/images",
                fix=f"correct the line, or {_FETCH_AGAIN}",
            )
        names.append(name)
        labels.append(numbers[wnid])
    if not names:
        raise DataError(
            f"{tree.where('val/val_annotations.txt')}: lists no images", fix=_FETCH_AGAIN
        )
    return names, np.array(labels, dtype=np.int64)


def _text(tree: FileTree, name: str) -> str:
    try:
        return tree.read(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{tree.where(name)}: is not text: {error}", fix="get the file again"
        ) from error


class FileTree(Protocol):
    """Files by their names with forward slashes, relative to the root."""

    def names(self) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def where(self, name: str) -> str: ...


class FolderTree:
    """The files of a folder; hidden ones are left out."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        names = []
        for folder, folders, files in os.walk(self.root, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            base = Path(folder).relative_to(self.root)
            names += [(base / name).as_posix() for name in sorted(files) if name[0] != "."]
        return names

    def read(self, name: str) -> bytes:
        try:
            with (self.root / name).open("rb") as stream:
                return stream.read(_MOST_BYTES)
        except OSError as error:
            raise DataError(
                f"{self.where(name)}: cannot be read: {error.strerror or error}",
                fix="check that the file exists and its permissions",
            ) from error

    def where(self, name: str) -> str:
        return str(self.root / name)


class ZipTree:
    """The files of a zip file, read in place; nothing is unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{path}: is not a readable zip file: {error}",
                allowed="a complete .zip",
                fix="the file is truncated or corrupt: get it again",
            ) from error
        files = [
            entry.filename
            for entry in self.archive.infolist()
            if not entry.is_dir() and not entry.filename.startswith("__MACOSX/")
        ]
        self.prefix = _common_folder(files)
        self.files = [name[len(self.prefix) :] for name in files]

    def names(self) -> list[str]:
        return [name for name in self.files if not name.rsplit("/", 1)[-1].startswith(".")]

    def read(self, name: str) -> bytes:
        try:
            with self.archive.open(self.prefix + name) as stream:
                return stream.read(_MOST_BYTES)
        except (KeyError, OSError, EOFError, zipfile.BadZipFile, RuntimeError) as error:
            raise DataError(
                f"{self.where(name)}: cannot be read from the zip: {error}",
                allowed="a complete .zip without a password",
                fix="the file is truncated or corrupt: get it again",
            ) from error

    def where(self, name: str) -> str:
        return f"{self.path}:{self.prefix}{name}"


def open_tree(path: Path) -> FileTree:
    return FolderTree(path) if path.is_dir() else ZipTree(path)


def is_image(name: str) -> bool:
    return name.lower().endswith(_SUFFIXES)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sorting key by which image_2 comes before image_10."""
    return [
        (0, int(part), part) if part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", name)
        if part
    ]


def decode(
    tree: FileTree, names: Sequence[str], *, size: int | None = None, grayscale: bool = False
) -> NDArray[np.uint8]:
    """Images as [n, channels, height, width]; all of one size, or resized to size x size."""
    mode = "L" if grayscale else "RGB"
    first = _decode_one(tree, names[0], size=size, mode=mode)
    check_fits(tree.where(""), len(names) * first.nbytes)
    stack = np.empty((len(names), *first.shape), dtype=np.uint8)

    def fill(chunk: range) -> None:
        for index in chunk:
            image = _decode_one(tree, names[index], size=size, mode=mode)
            if image.shape != first.shape:
                raise DataError(
                    f"{tree.where(names[index])}: is {_size(image)}, but {names[0]} is"
                    f" {_size(first)}",
                    allowed="images of one size",
                    fix="for image_folder set data.options.size to resize all to one square size",
                )
            stack[index] = image

    chunks = [range(start, min(start + 256, len(names))) for start in range(0, len(names), 256)]
    with ThreadPoolExecutor() as pool:  # JPEG decoding releases the interpreter lock
        list(pool.map(fill, chunks))
    return stack


def _decode_one(tree: FileTree, name: str, *, size: int | None, mode: str) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    content = tree.read(name)
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels are too many")
            converted = image.convert(mode)
    except Exception as error:  # Pillow's plugins fail in many ways on damaged files
        raise DataError(
            f"{tree.where(name)}: is not a readable image: {error}",
            allowed="a complete " + ", ".join(suffix[1:] for suffix in _SUFFIXES) + " file",
            fix="replace or remove the file",
        ) from error
    if size is not None and converted.size != (size, size):
        # the shorter side is scaled to size and the middle kept: no distortion
        converted = ImageOps.fit(converted, (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(converted, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _size(image: NDArray[np.uint8]) -> str:
    return f"{image.shape[1]}x{image.shape[2]}"


def _common_folder(files: Sequence[str]) -> str:
    """The folder that holds all files of a zip, unless its name has a meaning of its own."""
    tops = {name.partition("/")[0] for name in files if "/" in name}
    whole = len(tops) == 1 and all("/" in name for name in files)
    return f"{tops.pop()}/" if whole and not tops & {"train", "test", "val"} else ""

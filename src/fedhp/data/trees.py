"""A tree of files, in a folder or in a zip: names and bytes, and pictures decoded."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedhp.errors import DataError

_LARGEST = 64 << 20  # bytes of one picture file
_MOST_PIXELS = 1 << 26  # a small file can unfold to gigabytes
_PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class Tree(Protocol):
    """Files by their names with forward slashes, relative to the root."""

    def names(self) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def where(self, name: str) -> str: ...


class FolderTree:
    """A tree on the disk; hidden files are left out."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        found = []
        for folder, folders, files in os.walk(self.root, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            base = Path(folder).relative_to(self.root)
            found += [(base / name).as_posix() for name in sorted(files) if name[0] != "."]
        return found

    def read(self, name: str) -> bytes:
        try:
            with (self.root / name).open("rb") as stream:
                return stream.read(_LARGEST)
        except OSError as error:
            raise DataError(
                f"{self.where(name)}: cannot be read: {error.strerror or error}",
                fix="check that the file is there and its permissions",
            ) from error

    def where(self, name: str) -> str:
        return str(self.root / name)


class ZipTree:
    """A tree in a zip file, read in place; nothing is unpacked."""

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
                return stream.read(_LARGEST)
        except (KeyError, OSError, EOFError, zipfile.BadZipFile, RuntimeError) as error:
            raise DataError(
                f"{self.where(name)}: cannot be read from the zip: {error}",
                allowed="a complete .zip without a password",
                fix="the file is truncated or corrupt: get it again",
            ) from error

    def where(self, name: str) -> str:
        return f"{self.path}:{self.prefix}{name}"


def open_tree(path: Path) -> Tree:
    """The tree behind a folder or a zip file."""
    return FolderTree(path) if path.is_dir() else ZipTree(path)


def is_picture(name: str) -> bool:
    """Whether a file is called like a picture."""
    return name.lower().endswith(_PICTURES)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sorting key by which image_2 comes before image_10."""
    return [
        (0, int(part), part) if part.isdigit() else (1, 0, part)
        for part in re.split(r"([0-9]+)", name)
        if part
    ]


def decode(
    tree: Tree, names: Sequence[str], *, size: int | None = None, grayscale: bool = False
) -> NDArray[np.uint8]:
    """Pictures as [n, channels, height, width]; all alike, or brought to size x size."""
    mode = "L" if grayscale else "RGB"
    first = _picture(tree, names[0], size=size, mode=mode)
    stack = np.empty((len(names), *first.shape), dtype=np.uint8)

    def fill(chunk: range) -> None:
        for index in chunk:
            picture = _picture(tree, names[index], size=size, mode=mode)
            if picture.shape != first.shape:
                raise DataError(
                    f"{tree.where(names[index])}: is {_size(picture)}, but {names[0]} is"
                    f" {_size(first)}",
                    allowed="pictures of one size",
                    fix="for image_folder set data.options.size to bring all to one square size",
                )
            stack[index] = picture

    chunks = [range(start, min(start + 256, len(names))) for start in range(0, len(names), 256)]
    with ThreadPoolExecutor() as pool:  # JPEG decoding lets go of the interpreter lock
        list(pool.map(fill, chunks))
    return stack


def _picture(tree: Tree, name: str, *, size: int | None, mode: str) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    content = tree.read(name)
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels are too many")
            converted = image.convert(mode)
    except Exception as error:  # Pillow's plugins fail in many ways on damaged files
        raise DataError(
            f"{tree.where(name)}: is not a readable picture: {error}",
            allowed="a complete " + ", ".join(ending[1:] for ending in _PICTURES) + " file",
            fix="replace or remove the file",
        ) from error
    if size is not None and converted.size != (size, size):
        # shorter side to size, middle part kept: no distortion
        converted = ImageOps.fit(converted, (size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(converted, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _size(picture: NDArray[np.uint8]) -> str:
    return f"{picture.shape[1]}x{picture.shape[2]}"


def _common_folder(files: Sequence[str]) -> str:
    """The folder in which all files of a zip lie, unless its name has a meaning of its own."""
    tops = {name.partition("/")[0] for name in files}
    if len(tops) != 1 or not all("/" in name for name in files):
        return ""
    top = tops.pop()
    return "" if top in ("train", "test", "val") else top + "/"

"""Pictures in folders: one folder per class, or the Tiny-ImageNet tree; zipped or not.

Training pictures are ordered class by class in turn (first of each class, second of each,
...), so that the first n of them hold every class alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from fedhp.data.places import locate, require_path
from fedhp.data.raw import Raw, Request, holdout, refuse_split
from fedhp.data.trees import Tree, decode, is_picture, natural, open_tree
from fedhp.errors import DataError
from fedhp.types import IntArray

TINY_PLACES = (
    "tiny-imagenet-200",
    "tiny-imagenet-200.zip",
    "tiny-imagenet-100",
    "tiny-imagenet-100.zip",
)
_TESTS = ("test", "val")
_FOLDERS = "<path>/train/<class>/* and <path>/test/<class>/* (or val), or <path>/<class>/*"
_TINY = "wnids.txt, train/<wnid>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt"
Side = Annotated[int, Field(ge=1, le=4096)]


def read_image_folder(
    request: Request, *, size: Side | None = None, grayscale: bool = False
) -> Raw:
    """One folder per class; without a train folder, split 80 / 20."""
    refuse_split(request, "image_folder")
    path = require_path(request, "image_folder", wants=_FOLDERS)
    tree = open_tree(path)
    pictures = [name for name in tree.names() if is_picture(name)]
    parts = {top: _classes(pictures, f"{top}/") for top in ("train", *_TESTS)}
    if not parts["train"]:
        return _divided(tree, pictures, request=request, size=size, grayscale=grayscale)
    test_part = next((parts[top] for top in _TESTS if parts[top]), None)
    if test_part is None:
        raise DataError(
            f"{path}: there is a train folder, but no pictures in test/<class> or val/<class>",
            allowed=_FOLDERS,
            fix="add a test folder, or point data.path at the train folder to split that",
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
    return Raw(
        decode(tree, train, size=size, grayscale=grayscale),
        train_labels,
        decode(tree, test, size=size, grayscale=grayscale),
        test_labels,
        len(names),
        names,
    )


def read_tiny_imagenet(request: Request) -> Raw:
    """Tiny-ImageNet (200 classes, or fewer); test is its labelled val part."""
    refuse_split(request, "tiny_imagenet")
    place = locate(
        request, "tiny_imagenet", known=TINY_PLACES, holds=holds_tiny_imagenet, needs=_TINY
    )
    tree = open_tree(place)
    files = set(tree.names())
    if missing := [name for name in ("wnids.txt", "val/val_annotations.txt") if name not in files]:
        raise DataError(
            f"{tree.where(missing[0])}: is missing",
            allowed=_TINY,
            fix="this is not a complete Tiny-ImageNet: `fedhp data fetch tiny_imagenet`",
        )
    wnids = _text(tree, "wnids.txt").split()
    train = _classes([name for name in files if is_picture(name)], "train/")
    if absent := [wnid for wnid in wnids if wnid not in train]:
        raise DataError(
            f"{tree.where('train')}: no pictures of the class {absent[0]}, which wnids.txt lists",
            allowed=_TINY,
            fix="add its folder, or remove the class from wnids.txt",
        )
    names, labels = _in_turn(train, wnids, limit=request.train_images)
    test, test_labels = _annotations(tree, files, wnids=wnids)
    test, test_labels = test[: request.test_images], test_labels[: request.test_images]
    titles = _titles(tree, wnids) if "words.txt" in files else tuple(wnids)
    return Raw(decode(tree, names), labels, decode(tree, test), test_labels, len(wnids), titles)


def holds_tiny_imagenet(place: Path) -> bool:
    """Whether a place looks like Tiny-ImageNet: its folder, or a zip."""
    return place.suffix == ".zip" if place.is_file() else (place / "wnids.txt").is_file()


def holds_image_folder(place: Path) -> bool:
    """Whether a folder has pictures one or two levels down."""
    patterns = ("*/*", "train/*/*")
    return place.is_dir() and any(
        is_picture(path.name) for pattern in patterns for path in place.glob(pattern)
    )


def _divided(
    tree: Tree, pictures: Sequence[str], *, request: Request, size: int | None, grayscale: bool
) -> Raw:
    classes = _classes(pictures, "")
    names = tuple(sorted(classes, key=natural))
    if len(pictures) < 2 or not names:
        raise DataError(
            f"{tree.where('')}: {len(pictures)} picture(s) in class folders",
            allowed=_FOLDERS,
            fix="check data.path: it should point at the folder that holds the class folders",
        )
    files, labels = _in_turn(classes, names, limit=None)
    train, test = holdout(labels, classes=len(names))
    train, test = train[: request.train_images], test[: request.test_images]
    return Raw(
        decode(tree, [files[i] for i in train], size=size, grayscale=grayscale),
        labels[train],
        decode(tree, [files[i] for i in test], size=size, grayscale=grayscale),
        labels[test],
        len(names),
        names,
    )


def _classes(pictures: Sequence[str], prefix: str) -> dict[str, list[str]]:
    """Pictures below <prefix><class>/, by class, in natural order."""
    found: dict[str, list[str]] = {}
    for name in pictures:
        top, slash, _ = name.removeprefix(prefix).partition("/")
        if name.startswith(prefix) and slash:
            found.setdefault(top, []).append(name)
    return {name: sorted(files, key=natural) for name, files in found.items()}


def _in_turn(
    classes: dict[str, list[str]], order: Sequence[str], *, limit: int | None
) -> tuple[list[str], IntArray]:
    """The first picture of every class, then the second of every class, and so on."""
    columns = [
        [(name, label) for name in classes.get(title, ())] for label, title in enumerate(order)
    ]
    pairs = [pair for row in zip_longest(*columns) for pair in row if pair is not None][:limit]
    return [name for name, _ in pairs], np.array([label for _, label in pairs], dtype=np.int64)


def _annotations(
    tree: Tree, files: set[str], *, wnids: Sequence[str]
) -> tuple[list[str], IntArray]:
    numbers = {wnid: label for label, wnid in enumerate(wnids)}
    names, labels = [], []
    lines = _text(tree, "val/val_annotations.txt").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        picture, _, rest = line.partition("\t")
        wnid, name = rest.partition("\t")[0], f"val/images/{picture}"
        if wnid not in numbers or name not in files:
            what = f"class {wnid!r} is not in wnids.txt" if wnid not in numbers else "no such file"
            raise DataError(
                f"{tree.where('val/val_annotations.txt')}, line {number}: {picture}: {what}",
                allowed="picture, tab, wnid, ... for the pictures in val/images",
                fix="mend the line, or get the set again: `fedhp data fetch tiny_imagenet`",
            )
        names.append(name)
        labels.append(numbers[wnid])
    if not names:
        raise DataError(
            f"{tree.where('val/val_annotations.txt')}: lists no pictures",
            fix="get the set again: `fedhp data fetch tiny_imagenet`",
        )
    return names, np.array(labels, dtype=np.int64)


def _titles(tree: Tree, wnids: Sequence[str]) -> tuple[str, ...]:
    lines = (line.partition("\t") for line in _text(tree, "words.txt").splitlines())
    words = {wnid: title.partition(",")[0].strip() for wnid, _, title in lines}
    return tuple(words.get(wnid) or wnid for wnid in wnids)


def _text(tree: Tree, name: str) -> str:
    try:
        return tree.read(name).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{tree.where(name)}: is not text: {error}", fix="get the file again"
        ) from error

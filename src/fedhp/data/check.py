"""check: what a file or folder holds, whether it is complete, and how to use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedhp.config import DataConfig
from fedhp.data.cifar import TEST, TRAIN, batch_file, holds_cifar10, is_archive, read_batch_file
from fedhp.data.fetch import SOURCES
from fedhp.data.huggingface import holds_huggingface
from fedhp.data.idx import emnist_splits, holds_mnist, images_file, labels_file, read_idx
from fedhp.data.images import ZipTree, holds_image_folder, holds_tiny_imagenet, is_image
from fedhp.data.load import read
from fedhp.data.raw import AnyArray
from fedhp.data.source_files import content_md5, file_md5
from fedhp.errors import DataError, FedhpError
from fedhp.types import IntArray

# MD5 of the uncompressed official files, so that any compression can be checked.
CONTENT_MD5 = {
    "train-images": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels": "a25bea736e30d166cdddb491f175f624",
    "t10k-images": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels": "27ae3e4e09519cfbb04c329615203637",
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
# Archives as published; the python one of CIFAR-10 is read, but not fetched.
_ARCHIVE_MD5 = {
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    **{file: md5 for source in SOURCES.values() for file, md5 in source.files},
}
_KNOWN = (
    "MNIST or EMNIST IDX files, CIFAR-10 batches or archive, Tiny-ImageNet (folder or .zip),"
    " one folder of images per class, an .npz file, or a data set of Hugging Face"
)
_LEVELS = 2  # of folders searched below the path


@dataclass(frozen=True, slots=True)
class DataFinding:
    """One data set, or a single file of one, found at a path."""

    path: Path
    title: str  # what it is
    lines: tuple[str, ...] = ()  # settings of an experiment that uses it
    train_images: int | None = None
    test_images: int | None = None
    classes: int | None = None
    shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    train_counts: IntArray | None = None  # [classes]
    test_counts: IntArray | None = None
    official: str = ""  # how it compares with the published checksums
    problem: FedhpError | None = None


def check(path: Path) -> list[DataFinding]:
    """Every data set that can be recognised at a path; each is read as load_data would."""
    if not path.exists():
        raise DataError(
            f"{path}: no such file or folder",
            allowed="an existing file or folder",
            fix="check the spelling",
        )
    path = path.resolve()
    findings = [_examine(config, _official(config)) for config in _recognise(path, depth=0)]
    if not findings and path.is_file():
        findings = list(_single_file(path))
    if not findings:
        raise DataError(
            f"{path}: nothing recognised",
            allowed=_KNOWN,
            fix="give the folder that holds the files; docs/data.md shows every layout",
        )
    return findings


def _recognise(path: Path, *, depth: int) -> Iterator[DataConfig]:
    where = str(path)
    if path.is_file():
        if name := {".npz": "npz", ".parquet": "huggingface"}.get(path.suffix):
            yield DataConfig(name=name, path=where)
        elif is_archive(path) and (depth == 0 or "cifar" in path.name):
            yield DataConfig(name="cifar10", path=where)
        elif path.suffix == ".zip":
            try:
                names = ZipTree(path).names()
            except DataError:
                names = ["wnids.txt"]  # reading it says what is wrong
            if "wnids.txt" in names:
                yield DataConfig(name="tiny_imagenet", path=where)
            elif any(is_image(name) for name in names):
                yield DataConfig(name="image_folder", path=where)
        return
    configs = list(_recognise_folder(path))
    yield from configs
    if not configs and depth < _LEVELS:
        for child in sorted(path.iterdir()):
            if not child.name.startswith("."):
                yield from _recognise(child, depth=depth + 1)


def _recognise_folder(path: Path) -> Iterator[DataConfig]:
    where = str(path)
    if holds_mnist(path):
        yield DataConfig(name="mnist", path=where)
    for split in emnist_splits(path):
        yield DataConfig(name="emnist", split=split, path=where)
    if holds_cifar10(path):
        yield DataConfig(name="cifar10", path=where)
    if holds_huggingface(path):
        yield DataConfig(name="huggingface", path=where)
    if holds_tiny_imagenet(path):
        yield DataConfig(name="tiny_imagenet", path=where)
    elif holds_image_folder(path):
        yield DataConfig(name="image_folder", path=where)


def _examine(config: DataConfig, official: str) -> DataFinding:
    path = Path(config.path or "")
    title = config.name + (f", split {config.split}" if config.split else "")
    # a JSON string is a TOML string, whatever the path contains
    lines = [f"data.name = {json.dumps(config.name)}", f"data.path = {json.dumps(config.path)}"]
    if config.split:
        lines.append(f"data.split = {json.dumps(config.split)}")
    try:
        raw = read(config)
    except FedhpError as error:
        return DataFinding(path, title, tuple(lines), problem=error)
    if raw.groups is not None:
        lines.append(f'data.partition = "natural"  # {len(np.unique(raw.groups))} users')
    return DataFinding(
        path,
        title,
        tuple(lines),
        train_images=len(raw.train_inputs),
        test_images=len(raw.test_inputs),
        classes=raw.classes,
        shape=tuple(raw.train_inputs.shape[1:]),
        class_names=raw.class_names,
        train_counts=_counts(raw.train_targets, raw.classes),
        test_counts=_counts(raw.test_targets, raw.classes),
        official=official,
    )


def _counts(targets: AnyArray, classes: int | None) -> IntArray | None:
    return None if classes is None else np.bincount(targets, minlength=classes).astype(np.int64)


def _official(config: DataConfig) -> str:
    path = Path(config.path or "")
    if path.is_file():
        expected = _ARCHIVE_MD5.get(path.name)
        if expected is None:
            return "no checksum is published for this file"
        return _verdict([path.name] if file_md5(path) != expected else [], 1)
    files: dict[str, Path | None] = {}
    if config.name == "mnist":
        for stem in ("train", "t10k"):
            files[f"{stem}-images"] = images_file(path, stem)
            files[f"{stem}-labels"] = labels_file(path, stem)
    elif config.name == "cifar10":
        for name in (*TRAIN, TEST):
            file = batch_file(path, name)
            files[f"{name}.bin" if file is not None and ".bin" in file.name else name] = file
    if not files:
        return "no checksums are published for these files"

    def matches(name: str) -> bool:
        file = files[name]
        try:
            return file is not None and content_md5(file) == CONTENT_MD5[name]
        except DataError:
            return False  # the error of reading it says why

    with ThreadPoolExecutor() as pool:
        matching = zip(files, pool.map(matches, files), strict=True)
        return _verdict([name for name, same in matching if not same], len(files))


def _verdict(wrong: list[str], files: int) -> str:
    if not wrong:
        return f"official: the MD5 of {'the file' if files == 1 else f'all {files} files'} matches"
    return f"NOT the official content: the MD5 differs for {', '.join(wrong)}"


def _single_file(path: Path) -> Iterator[DataFinding]:
    plain = path.name.removesuffix(".gz").removesuffix(".xz")
    hint = ("this is one file of a data set: set data.path to its folder",)
    if plain.endswith("idx3-ubyte"):
        images = read_idx(path, dimensions=3)
        title = "IDX file of images"
        yield DataFinding(path, title, hint, train_images=len(images), shape=images.shape[1:])
    elif plain.endswith("idx1-ubyte"):
        labels = read_idx(path, dimensions=1)
        counts = np.bincount(labels).astype(np.int64)
        found = DataFinding(path, "IDX file of labels", hint, train_images=len(labels))
        yield replace(found, classes=len(counts), train_counts=counts)
    elif plain.removesuffix(".bin") in (*TRAIN, TEST):
        images, labels = read_batch_file(path)
        matches = content_md5(path) == CONTENT_MD5.get(plain)
        found = DataFinding(path, "one CIFAR-10 batch", hint, len(images), shape=images.shape[1:])
        official = _verdict([] if matches else [plain], 1)
        yield replace(found, classes=10, train_counts=_counts(labels, 10), official=official)

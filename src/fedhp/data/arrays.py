"""Arrays in memory or in an .npz file: scikit-learn's digits, the user's own.

The axes are inferred: [n, features]; [n, height, width]; of [n, a, b, c] the channels are
the axis (first or last) that has 1, 3 or 4 entries, the first if both or neither has.
data.options.layout overrides this.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Literal

import numpy as np

from fedhp.config import DataConfig
from fedhp.data.raw import AnyArray, RawData, check_same_shape, split_samples
from fedhp.data.source_files import check_fits, require_path
from fedhp.errors import ConfigError, DataError

Layout = Literal["auto", "channels_first", "channels_last"]

_DIVIDED = ("x_train", "y_train", "x_test", "y_test")
_UNDIVIDED = ("x", "y")
_GROUPS = ("groups", "users")  # whose sample it is, under either name
_NPZ = "keys x_train, y_train, x_test, y_test (or x and y, then split 80 / 20)"


def read_digits(request: DataConfig) -> RawData:
    """scikit-learn's 1797 digits of 8x8, the small set that is always available."""
    if request.path is not None:
        raise ConfigError(
            f"the value {request.path!r} has no effect for digits",
            key="data.path",
            allowed="no path: the digits are part of scikit-learn",
            fix="remove data.path, or set data.name to the data set in that path",
        )
    images, labels = _digits()
    scaled = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)  # pixels go from 0 to 16
    names = tuple(str(digit) for digit in range(10))
    return split_samples(scaled, labels.astype(np.int64), classes=10, class_names=names)


def _digits() -> tuple[AnyArray, AnyArray]:
    """Pixels [n, 64] and labels [n], from scikit-learn's file: its import takes two seconds."""
    package = importlib.util.find_spec("sklearn")
    folders = (package and package.submodule_search_locations) or []
    for file in (Path(folder, "datasets", "data", "digits.csv.gz") for folder in folders):
        if file.is_file():
            with gzip.open(file, "rt", encoding="ascii") as lines:
                rows = np.loadtxt(lines, delimiter=",")
            return rows[:, :-1], rows[:, -1]
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images, labels


def read_npz(request: DataConfig, *, layout: Layout = "auto") -> RawData:
    """The user's own arrays from an .npz file."""
    path = require_path(request, wants=f"an .npz file with the {_NPZ}")
    try:
        # opened here, since numpy leaves the file open when it is broken
        with path.open("rb") as stream:
            present, content = _arrays(stream, path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # numpy's own message suggests allow_pickle, which would run code: never pass it on
        reason = "it does not hold plain number arrays" if "pickle" in str(error) else error
        raise DataError(
            f"{path}: cannot be read as .npz: {reason}",
            allowed="a file written by numpy.savez, without object arrays",
            fix="save it again with plain number arrays",
        ) from error
    names = tuple(map(str, content["class_names"])) if "class_names" in content else ()
    if all(key in content for key in _DIVIDED):
        train, test = ((content[f"x_{part}"], content[f"y_{part}"]) for part in ("train", "test"))
        raw = from_arrays(train, test, layout=layout, class_names=names, where=str(path))
        return replace(raw, groups=_groups(content, samples=len(train[1]), where=str(path)))
    if all(key in content for key in _UNDIVIDED):
        return from_unsplit_arrays(content, layout=layout, class_names=names, where=str(path))
    raise DataError(
        f"{path}: has the keys {', '.join(present) or '(none)'}",
        allowed=_NPZ,
        fix="save the arrays under these names",
    )


def _arrays(stream: IO[bytes], path: Path) -> tuple[list[str], dict[str, AnyArray]]:
    # object arrays would be pickles, which can run any code
    archive = np.load(stream, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise DataError(
            f"{path}: is a single array",
            allowed=f"an .npz file with the {_NPZ}",
            fix="save with numpy.savez(path, x_train=..., y_train=..., ...)",
        )
    keys = (*_DIVIDED, *_UNDIVIDED, *_GROUPS, "class_names")
    present = [key for key in keys if key in archive.files]
    check_fits(path, sum(_promised(archive, key) for key in present))
    return archive.files, {key: archive[key] for key in present}


def _promised(archive: np.lib.npyio.NpzFile, key: str) -> int:
    """The bytes of an array, by its header and by the list of the archive."""
    zipped: zipfile.ZipFile = archive.zip  # type: ignore[assignment]
    name = key if key in zipped.namelist() else f"{key}.npy"
    with zipped.open(name) as member:
        first = np.lib.format.read_magic(member) == (1, 0)
        form = np.lib.format
        read_header = form.read_array_header_1_0 if first else form.read_array_header_2_0
        shape, _, dtype = read_header(member)
    return max(zipped.getinfo(name).file_size, math.prod(shape) * dtype.itemsize)


def from_unsplit_arrays(
    content: Mapping[str, AnyArray], *, layout: Layout, class_names: tuple[str, ...], where: str
) -> RawData:
    """Arrays x and y, split into training and test."""
    [targets], classes = _targets({"y": content["y"]}, named=bool(class_names), where=where)
    inputs = _inputs("x", content["x"], samples=len(targets), layout=layout, where=where)
    classes = _count_classes(class_names, classes, where=where)
    groups = _groups(content, samples=len(inputs), where=where)
    return split_samples(inputs, targets, classes=classes, class_names=class_names, groups=groups)


def _groups(content: Mapping[str, AnyArray], *, samples: int, where: str) -> AnyArray | None:
    names = [name for name in _GROUPS if name in content]
    if len(names) > 1:
        raise DataError(
            f"{where}: has both of the keys {' and '.join(names)}",
            allowed="one array of user ids",
            fix=f"remove {names[1]}",
        )
    numbers = (group_numbers(content[n], samples=samples, name=n, where=where) for n in names)
    return next(numbers, None)


def group_numbers(ids: AnyArray, *, samples: int, name: str, where: str) -> AnyArray:
    """Ids of users (whole numbers or texts) as numbers from 0, in the order of the ids, [n]."""
    ids = np.asarray(ids)
    if ids.dtype.kind not in "iuUS" or ids.shape != (samples,):
        raise DataError(
            f"{where}: {name} is {ids.dtype} of shape {ids.shape}, for {samples} samples",
            allowed=f"[{samples}] whole numbers or texts: the id of the user of each sample"
            " (of x_train, or of x)",
            fix=f"save one id per sample in {name}",
        )
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


def from_arrays(
    training: tuple[AnyArray, AnyArray],
    testing: tuple[AnyArray, AnyArray],
    *,
    layout: Layout = "auto",
    class_names: tuple[str, ...] = (),
    where: str,
) -> RawData:
    """Inputs and targets, checked and put into the order [n, channels, height, width]."""
    both = {"y_train": training[1], "y_test": testing[1]}
    (train, test), classes = _targets(both, named=bool(class_names), where=where)
    train_inputs = _inputs("x_train", training[0], samples=len(train), layout=layout, where=where)
    test_inputs = _inputs("x_test", testing[0], samples=len(test), layout=layout, where=where)
    check_same_shape(train_inputs, test_inputs, where)
    classes = _count_classes(class_names, classes, where=where)
    return RawData(train_inputs, train, test_inputs, test, classes, class_names)


def check_numbers(name: str, array: AnyArray, *, where: str) -> None:
    """Refuse arrays that cannot be trained on: not numbers, empty, NaN or infinity."""
    if array.dtype.kind not in "buif":
        raise DataError(
            f"{where}: {name} has the type {array.dtype}",
            allowed="numbers: uint8, other whole numbers, or floats",
            fix=f"convert {name}",
        )
    if array.ndim == 0 or len(array) == 0:
        raise DataError(f"{where}: {name} holds no samples", fix=f"put samples into {name}")
    # a comparison with NaN is false, so this refuses NaN, infinity and too large alike
    largest = np.finfo(np.float32).max
    if array.dtype.kind == "f" and not (np.abs(array) <= largest).all():
        raise DataError(
            f"{where}: {name} holds NaN, infinite or too large values",
            allowed=f"numbers from {-largest:.3g} to {largest:.3g}",
            fix="clean the array first",
        )


def _targets(
    given: Mapping[str, AnyArray], *, named: bool, where: str
) -> tuple[list[AnyArray], int | None]:
    """Whole numbers are classes; floats are values to predict, [n, k]."""
    arrays = [np.asarray(values) for values in given.values()]
    for place, (name, array) in enumerate(zip(given, arrays, strict=True)):
        check_numbers(name, array, where=where)
        if array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind != "f":
            arrays[place] = array[:, 0]
    kinds = {array.dtype.kind == "f" for array in arrays}
    if len(kinds) > 1:
        raise DataError(
            f"{where}: y_train is {arrays[0].dtype}, y_test {arrays[1].dtype}",
            allowed="both whole numbers (classes) or both floats (values to predict)",
            fix="convert one of them",
        )
    if kinds == {True}:
        return _values(list(given), arrays, where=where), None
    for name, array in zip(given, arrays, strict=True):
        if array.ndim != 1:
            raise DataError(
                f"{where}: {name} has the shape {array.shape}",
                allowed="[n] whole numbers (classes), or [n] or [n, k] floats",
                fix="for one-hot labels use y.argmax(axis=1)",
            )
        if array.min() < 0 or array.max() >= 2**31:
            raise DataError(
                f"{where}: {name} has labels from {array.min()} to {array.max()}",
                allowed="0 to classes - 1",
                fix="number the classes from 0",
            )
    classes = 1 + max(int(array.max()) for array in arrays)
    # counted from 1, class 0 would be an output that is never right
    if not named and min(int(array.min()) for array in arrays) == 1:
        raise DataError(
            f"{where}: {' and '.join(given)} have labels from 1 to {classes - 1}, and class 0 has"
            " no sample",
            allowed="classes counted from 0",
            fix="save the labels minus 1 (y - 1), or add class_names with a name for class 0 too",
        )
    return [array.astype(np.int64) for array in arrays], classes


def _values(names: list[str], arrays: list[AnyArray], *, where: str) -> list[AnyArray]:
    shaped = [array.reshape(len(array), -1).astype(np.float32) for array in arrays]
    for name, array in zip(names, shaped, strict=True):
        if array.shape[1] != shaped[0].shape[1] or array.shape[1] == 0:
            raise DataError(
                f"{where}: {name} has {array.shape[1]} value(s) per sample",
                allowed="the same number, at least one, in training and test",
                fix="give both the same number of values",
            )
    return shaped


def _inputs(name: str, values: AnyArray, *, samples: int, layout: Layout, where: str) -> AnyArray:
    array = np.asarray(values)
    check_numbers(name, array, where=where)
    if len(array) != samples:
        raise DataError(
            f"{where}: {len(array)} samples in {name}, but {samples} targets",
            allowed="one target per sample",
            fix="save arrays that belong together",
        )
    if array.ndim not in (2, 3, 4) or 0 in array.shape:
        raise DataError(
            f"{where}: {name} has the shape {array.shape}",
            allowed="[n, features], [n, height, width], [n, height, width, channels] or"
            " [n, channels, height, width]",
            fix="reshape the array",
        )
    if array.ndim == 3:
        return array[:, None]
    channels = (1, 3, 4)
    last = layout == "channels_last"
    if layout == "auto" and array.ndim == 4:
        last = array.shape[3] in channels and array.shape[1] not in channels
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if array.ndim == 4 and last else array


def _count_classes(names: tuple[str, ...], classes: int | None, *, where: str) -> int | None:
    """Class names may include classes that do not occur, but not leave one out."""
    if not names:
        return classes
    if classes is None or len(names) < classes:
        raise DataError(
            f"{where}: {len(names)} class_names for {classes or 'no'} classes",
            allowed="one name per class",
            fix="correct class_names or leave them out",
        )
    return len(names)

"""What a reader returns, and the fixed hold-out split.

The hold-out split depends on the labels alone, never on the run's seed: every run of
every experiment is tested on the same samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedhp.errors import DataError
from fedhp.seeds import Purpose, generator
from fedhp.types import IntArray

AnyArray: TypeAlias = NDArray[Any]

HOLDOUT = 0.2  # share of the samples that becomes the test set


@dataclass(frozen=True, slots=True)
class RawData:
    """Arrays as read: uint8 (0..255), or numbers on a scale of their own."""

    train_inputs: AnyArray  # [n, channels, height, width], or [n, ...]
    train_targets: AnyArray  # [n] int64 classes, or [n, k] float32 numbers
    test_inputs: AnyArray
    test_targets: AnyArray
    classes: int | None
    class_names: tuple[str, ...] = ()
    groups: AnyArray | None = None  # [n] number of the user or writer of each training sample
    tokens: bool = False  # the inputs are whole numbers that stay so


def is_whole(inputs: AnyArray) -> bool:
    """Whether these are whole numbers; bytes are pixels."""
    return inputs.dtype.kind in "iu" and inputs.dtype != np.uint8


def check_labels(labels: AnyArray, where: str, *, first: int = 0, classes: int, fix: str) -> None:
    """Refuse class numbers outside of first .. first + classes - 1."""
    for sample in np.flatnonzero((labels < first) | (labels >= first + classes)):
        raise DataError(
            f"{where}: label {labels[sample]} of sample {sample} is out of range",
            allowed=f"{first} to {first + classes - 1}",
            fix=fix,
        )


def check_same_shape(train: AnyArray, test: AnyArray, where: str) -> None:
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"{where}: training samples have the shape {train.shape[1:]}, test samples"
            f" {test.shape[1:]}",
            allowed="one shape for both, for example one size for all images",
            fix="reshape one of them, or get both again; if the axes were inferred wrongly, set"
            " data.options.layout",
        )


def holdout(targets: AnyArray, *, classes: int | None) -> tuple[IntArray, IntArray]:
    """Indices of the training and the test part, 80 / 20, stratified by class, shuffled."""
    samples = len(targets)
    if samples < 2:
        raise DataError(
            f"{samples} sample(s) cannot be split into training and test",
            allowed="at least 2 samples, or separate training and test files",
            fix="add samples",
        )
    rng = generator(0, Purpose.HOLDOUT)
    order = rng.permutation(samples)
    if classes is None:
        cut = max(1, round(samples * HOLDOUT))
        return order[cut:].astype(np.int64), order[:cut].astype(np.int64)
    held = np.zeros(samples, dtype=np.bool_)
    by_class = order[np.argsort(targets[order], kind="stable")]
    counts = np.bincount(targets, minlength=classes)
    start = 0
    for count in counts.tolist():
        # a class of one sample is for training; any other is tested on at least one
        take = 0 if count < 2 else max(1, round(count * HOLDOUT))
        held[by_class[start : start + take]] = True
        start += count
    if not held.any():
        held[by_class[-1]] = True
    # shuffled once more: in `order` the test samples of each class come before all others
    train, test = rng.permutation(np.flatnonzero(~held)), rng.permutation(np.flatnonzero(held))
    return train.astype(np.int64), test.astype(np.int64)


def split_samples(
    inputs: AnyArray,
    targets: AnyArray,
    *,
    classes: int | None,
    class_names: tuple[str, ...] = (),
    groups: AnyArray | None = None,
) -> RawData:
    """One set of samples as training and test, by the fixed hold-out split."""
    train, test = holdout(targets, classes=classes)
    kept = None if groups is None else groups[train]
    arrays = (inputs[train], targets[train], inputs[test], targets[test])
    return RawData(*arrays, classes, class_names, kept)

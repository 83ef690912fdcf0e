"""Preparation, in this order: the first n samples, pooling, scaling to [0, 1], standardising.

Mean and deviation are those of the training set, one pair per channel (per column for
[n, features]); the test set is scaled by the same numbers. Tokens stay whole numbers, and are
never scaled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedhp.config import DataConfig
from fedhp.data.fingerprint import fingerprint_of
from fedhp.data.raw import AnyArray, RawData, is_whole
from fedhp.errors import ConfigError
from fedhp.types import Dataset, FloatArray, Scaling

LOG = logging.getLogger("fedhp")
_CHUNK = 1 << 18  # numbers at a time: they fit the cache of the processor, and no copy is large


def prepare(raw: RawData, config: DataConfig) -> Dataset:
    """Turn arrays as read into what models train on; read-only."""
    train_rows = _first(raw.train_inputs, config.train_images, key="train_images")
    test_rows = _first(raw.test_inputs, config.test_images, key="test_images")
    if config.pool > 1:
        _check_pool(raw.train_inputs.shape[1:], config.pool)
    read = RawData(
        raw.train_inputs[:train_rows],
        raw.train_targets[:train_rows],
        raw.test_inputs[:test_rows],
        raw.test_targets[:test_rows],
        raw.classes,
        raw.class_names,
        None if raw.groups is None else raw.groups[:train_rows],
        raw.tokens,
    )
    train: NDArray[np.float32] | NDArray[np.int64]
    test: NDArray[np.float32] | NDArray[np.int64]
    scaling = None
    if read.tokens:
        train, test = read.train_inputs.astype(np.int64), read.test_inputs.astype(np.int64)
    else:
        _note_whole_numbers(read.train_inputs, config)
        train = numbers = _numbers(read.train_inputs, config.pool)
        test = test_numbers = _numbers(read.test_inputs, config.pool)
        if config.standardize:
            scaling = _moments(numbers)
            scale(numbers, scaling)
            scale(test_numbers, scaling)
    train_targets = _targets(read.train_targets, raw.classes)
    test_targets = _targets(read.test_targets, raw.classes)
    for finished in (train, test, train_targets, test_targets):
        finished.setflags(write=False)
    groups = None
    if read.groups is not None:
        groups = read.groups.astype(np.int64)
        groups.setflags(write=False)
    return Dataset(
        config.name,
        train,
        train_targets,
        test,
        test_targets,
        raw.classes,
        raw.class_names,
        groups,
        scaling,
        fingerprint_of(read, pool=config.pool, scaled=scaling is not None),
    )


def _note_whole_numbers(inputs: AnyArray, config: DataConfig) -> None:
    """Say what becomes of columns of whole numbers: they could be tokens."""
    if inputs.ndim == 2 and is_whole(inputs):
        scaled = ", which data.standardize scales" if config.standardize else ""
        LOG.warning(
            "note: data.name = %r: the inputs are whole numbers (%s); they become floats%s. "
            "Tokens of a text need your own loader (docs/data.md)",
            config.name,
            inputs.dtype,
            scaled,
        )


def scale(array: NDArray[np.float32], scaling: Scaling) -> None:
    """Apply a scaling, in place."""
    for rows in _chunks(array):
        array[rows] -= scaling.mean
        array[rows] /= scaling.deviation


def _targets(targets: AnyArray, classes: int | None) -> NDArray[np.int64] | NDArray[np.float32]:
    return targets.astype(np.float32) if classes is None else targets.astype(np.int64)


def _first(inputs: AnyArray, limit: int | None, *, key: str) -> int:
    if limit is not None and limit > len(inputs):
        raise ConfigError(
            f"the value {limit} is more than the data set has",
            key=f"data.{key}",
            allowed=f"1 to {len(inputs)}",
            fix=f"lower data.{key}, or leave it out to use all",
        )
    return len(inputs) if limit is None else limit


def _check_pool(shape: tuple[int, ...], pool: int) -> None:
    if len(shape) != 3:
        raise ConfigError(
            f"the value {pool} needs images, but samples have the shape {shape}",
            key="data.pool",
            allowed="1 for data that are not images",
            fix="remove data.pool",
        )
    height, width = shape[1:]
    if height % pool or width % pool:
        divisors = [n for n in range(1, 17) if height % n == 0 and width % n == 0]
        raise ConfigError(
            f"the value {pool} does not divide the images of {height}x{width}",
            key="data.pool",
            allowed=", ".join(map(str, divisors)),
            fix="choose a number that divides height and width",
        )


def _numbers(inputs: AnyArray, pool: int) -> NDArray[np.float32]:
    """float32, pooled, bytes scaled to [0, 1]; always a new array."""
    shape = inputs.shape
    if pool > 1:
        shape = (*shape[:2], shape[2] // pool, shape[3] // pool)
    result = np.empty(shape, dtype=np.float32)
    # integer sums up to 16 * 16 * 255 are exact in float32
    scale = np.float32(pool * pool * (255 if inputs.dtype == np.uint8 else 1))
    for rows in _chunks(inputs):
        part = inputs[rows].astype(np.float32)
        if pool > 1:
            # strided sums: several times faster than a reduction over short axes
            offsets = [(row, column) for row in range(pool) for column in range(pool)]
            part = np.add.reduce([part[:, :, row::pool, column::pool] for row, column in offsets])
        np.divide(part, scale, out=result[rows])
    return result


def _chunks(array: AnyArray) -> Iterator[slice]:
    rows = max(1, _CHUNK // max(1, array[0].size))
    return (slice(start, start + rows) for start in range(0, len(array), rows))


def _moments(inputs: NDArray[np.float32]) -> Scaling:
    """Mean and deviation of each channel, shaped to broadcast over a sample."""
    axes = (0, *range(2, inputs.ndim))
    count = inputs.size // inputs.shape[1]
    total: FloatArray = np.zeros(inputs.shape[1])
    for rows in _chunks(inputs):
        total += inputs[rows].sum(axis=axes, dtype=np.float64)
    mean = total / count
    shape = (-1, *(1 for _ in range(inputs.ndim - 2)))
    total = np.zeros(inputs.shape[1])
    for rows in _chunks(inputs):
        part = inputs[rows].astype(np.float64) - mean.reshape(shape)
        total += np.square(part, out=part).sum(axis=axes)
    deviation = np.sqrt(total / count)
    # a constant channel becomes zero instead of noise or NaN
    deviation[deviation <= 1e-6 * np.abs(mean)] = 1.0
    return Scaling(
        mean.astype(np.float32).reshape(shape), deviation.astype(np.float32).reshape(shape)
    )

"""Preparation, in this order: the first n samples, pooling, scaling to [0, 1], standardising.

Mean and deviation are those of the training set, one pair per channel (per column for
[n, features]); the test set is scaled by the same numbers. Tokens stay whole numbers, and are
never scaled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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
    read = replace(
        raw,
        train_inputs=raw.train_inputs[:train_rows],
        train_targets=raw.train_targets[:train_rows],
        test_inputs=raw.test_inputs[:test_rows],
        test_targets=raw.test_targets[:test_rows],
        groups=None if raw.groups is None else raw.groups[:train_rows].astype(np.int64),
    )
    train: NDArray[np.float32] | NDArray[np.int64]
    test: NDArray[np.float32] | NDArray[np.int64]
    scaling = None
    if read.tokens:
        train, test = read.train_inputs.astype(np.int64), read.test_inputs.astype(np.int64)
    else:
        if read.train_inputs.ndim == 2 and is_whole(read.train_inputs):  # they could be tokens
            LOG.warning(
                "note: data.name = %r: the inputs are whole numbers (%s); they become floats%s. "
                "Tokens of a text need your own loader (docs/data.md)",
                config.name,
                read.train_inputs.dtype,
                ", which data.standardize scales" if config.standardize else "",
            )
        train = numbers = _numbers(read.train_inputs, config.pool)
        test = test_numbers = _numbers(read.test_inputs, config.pool)
        if config.standardize:
            scaling = _moments(numbers)
            scale(numbers, scaling)
            scale(test_numbers, scaling)
    kind: Any = np.float32 if raw.classes is None else np.int64
    train_targets, test_targets = read.train_targets.astype(kind), read.test_targets.astype(kind)
    for finished in (train, test, train_targets, test_targets, read.groups):
        if finished is not None:
            finished.setflags(write=False)
    return Dataset(
        config.name,
        train,
        train_targets,
        test,
        test_targets,
        raw.classes,
        raw.class_names,
        read.groups,
        scaling,
        fingerprint_of(read, pool=config.pool, scaled=scaling is not None),
    )


def scale(array: NDArray[np.float32], scaling: Scaling) -> None:
    for rows in _chunks(array):
        array[rows] -= scaling.mean
        array[rows] /= scaling.deviation


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

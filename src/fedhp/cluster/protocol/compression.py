"""Models in fewer bytes: half precision, 8-bit integers, and only the largest changes (topk).

Pure functions on rows; codec.py makes bytes of the results, and model_exchange.py remembers what
topk has sent to each reader.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]

INT8_LEVELS = 127  # on either side of zero
LARGEST_FLOAT = float(np.finfo(np.float32).max)
LARGEST_HALF = float(np.finfo(np.float16).max)
_BLOCK_VALUES = 1 << 18  # worked on at a time: temporary arrays stay small and in the cache


@dataclass(frozen=True, slots=True)
class Delta:
    """What is added to a reader's copy of a model: values [k] at strictly rising indices [k]."""

    indices: NDArray[np.uint32]
    values: Row


def row_digest(row: Row) -> bytes:
    """SHA-256 of the values: names a copy of a model."""
    return hashlib.sha256(np.ascontiguousarray(row, dtype="<f4").data).digest()


def all_finite(values: NDArray[Any]) -> bool:
    """Whether no value is NaN or infinite."""
    return all(bool(np.isfinite(values[block]).all()) for block in _blocks(len(values)))


def to_half(row: Row) -> NDArray[np.float16]:
    """Half precision; values beyond its range become its largest number, never infinite."""
    half = np.empty(len(row), dtype="<f2")
    for block in _blocks(len(row)):
        half[block] = np.clip(row[block], -LARGEST_HALF, LARGEST_HALF)
    return half


def to_int8(row: Row, ends: Sequence[int]) -> tuple[NDArray[np.int8], Row]:
    """Codes [D] and one scale per tensor; `ends` says where the tensors end in the row."""
    codes = np.zeros(len(row), dtype=np.int8)
    scales = np.zeros(len(ends), dtype="<f4")
    start = 0
    for index, end in enumerate(ends):
        tensor, target = row[start:end], codes[start:end]
        scale = scales[index] = _scale(tensor)
        start = end
        if not scale:  # the tensor is zero, or so small that its scale is
            continue
        for block in _blocks(len(tensor)):
            np.clip(
                np.rint(tensor[block] / np.float64(scale)),
                -INT8_LEVELS,
                INT8_LEVELS,
                out=target[block],
                casting="unsafe",
            )
    return codes, scales


def from_int8(codes: NDArray[np.int8], scales: Row, ends: Sequence[int]) -> Row:
    """The row that was encoded; a scale that is too large gives infinite values."""
    row = np.empty(len(codes), dtype=np.float32)
    start = 0
    with np.errstate(over="ignore"):
        for scale, end in zip(scales, ends, strict=True):
            np.multiply(codes[start:end], scale, out=row[start:end])
            start = end
    return row


def topk_count(share: float, width: int) -> int:
    """How many values of a row topk sends; 0 if sending the whole row costs no more."""
    count = math.ceil(share * width)
    return count if count <= largest_delta(width) else 0


def largest_delta(width: int) -> int:
    """How many values a delta may have: an index costs as much as a value, so above half of the
    row raw is shorter."""
    return width // 2


def largest_changes(difference: Row, count: int) -> Delta:
    """The `count` largest values by magnitude, zeros left out, in ascending order of index."""
    count = min(count, len(difference))
    if not count:
        return Delta(np.empty(0, dtype="<u4"), np.empty(0, dtype="<f4"))
    magnitude = np.abs(difference)
    magnitude.partition(len(magnitude) - count)
    least = magnitude[len(magnitude) - count]
    np.abs(difference, out=magnitude)
    chosen = np.flatnonzero(magnitude > least)
    if least > 0:
        ties = np.flatnonzero(magnitude == least)[: count - len(chosen)]
        chosen = np.union1d(chosen, ties)
    # A difference of two huge values may be infinite: the rest is sent next time.
    values = np.clip(difference[chosen], -LARGEST_FLOAT, LARGEST_FLOAT)
    return Delta(chosen.astype("<u4"), values.astype("<f4", copy=False))


def add_delta(row: Row, delta: Delta) -> Row:
    """A copy of the row with the delta added; the same bits on every machine."""
    result = row.copy()
    with np.errstate(over="ignore"):
        result[delta.indices] += delta.values
    return result


def _scale(tensor: Row) -> np.float32:
    top = max((float(np.abs(tensor[block]).max()) for block in _blocks(len(tensor))), default=0.0)
    scale = np.float32(top / INT8_LEVELS)
    # Rounded up, the largest code could mean more than float32 can hold.
    if float(scale) * INT8_LEVELS > LARGEST_FLOAT:
        scale = np.nextafter(scale, np.float32(0))
    return scale


def _blocks(length: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK_VALUES) for start in range(0, length, _BLOCK_VALUES))

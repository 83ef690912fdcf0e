"""Models in fewer bytes: only the largest changes (topk), and digests that name copies.

Pure functions on rows; half precision and 8-bit integers are in learn/quantize.py. codec.py makes
bytes of the results, and model_exchange.py remembers what topk has sent to each reader.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhp.learn.quantize import LARGEST_FLOAT, Row, slices


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
    return all(bool(np.isfinite(values[part]).all()) for part in slices(len(values)))


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

"""Models in fewer bytes by their largest changes (topk), with error feedback by construction.

Pure functions on rows. The sender knows the copy that a reader has and sends the largest
differences to it; what was left out stays in the difference and is sent later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedhp.learn.quantize import LARGEST_FLOAT, Row

if TYPE_CHECKING:
    from torch import Tensor

COPY_ROUNDS = 8  # a copy that was not used for more rounds is dropped, by sender and reader alike


@dataclass(frozen=True, slots=True)
class Delta:
    """What is added to a reader's copy of a model: values [k] at strictly rising indices [k]."""

    indices: NDArray[np.uint32]
    values: Row


def is_kept(last_round: int, round_index: int) -> bool:
    """Whether a copy that was used last in one round still counts in another."""
    return round_index - last_round <= COPY_ROUNDS


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


def largest_of_rows(rows: Tensor, count: int) -> Tensor:
    """The `count` largest values by magnitude of each row [n, D], zeros elsewhere; 0: all."""
    if not count:
        return rows
    import torch  # a replay of plans needs no tensors

    kept = torch.zeros_like(rows)
    for row, values in zip(kept, rows, strict=True):
        delta = largest_changes(values.cpu().numpy(), count)
        row[torch.from_numpy(delta.indices.astype(np.int64))] = torch.from_numpy(delta.values).to(
            row
        )
    return kept


def add_delta(row: Row, delta: Delta) -> Row:
    """A copy of the row with the delta added; the same bits on every machine."""
    result = row.copy()
    with np.errstate(over="ignore"):
        result[delta.indices] += delta.values
    return result


def delta_share(values: int, width: int) -> float:
    """Bytes of a delta with so many values, as a share of those of the whole row."""
    return 8 * values / (4 * width) if width else 1.0

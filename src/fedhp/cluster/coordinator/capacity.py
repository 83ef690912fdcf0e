"""What connections can do, from transfers that shared them.

Whatever share each of them got, all that went through a connection at a time is no more than its
capacity, and is the capacity where this end held them up. Real transfers do not share evenly, and
take what others leave, so a single one tells little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedhp.types import FloatArray

LEAST_SECONDS = 1e-5


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bits that went from one worker to another, by a clock that all transfers have in common."""

    receiver: int
    sender: int
    bits: float
    started: float
    seconds: float


def least_capacities(transfers: Sequence[Transfer], *, workers: int) -> FloatArray:
    """The least capacity of each worker's connection that explains the transfers, [N]; NaN where
    it had none. Both directions have the same capacity and do not disturb each other."""
    found = np.full(workers, np.nan)
    shared: dict[tuple[int, bool], list[Transfer]] = {}  # by worker, and whether it received
    for each in transfers:
        shared.setdefault((each.receiver, True), []).append(each)
        shared.setdefault((each.sender, False), []).append(each)
    for (worker, _), mine in shared.items():
        found[worker] = np.fmax(found[worker], _throughput(mine).max())
    return found


def _throughput(transfers: Sequence[Transfer]) -> FloatArray:
    """All that went through one connection while each of the transfers took place, in bits per
    second; each is taken to go evenly."""
    seconds = np.maximum([each.seconds for each in transfers], LEAST_SECONDS)
    starts = np.array([each.started for each in transfers])
    ends = starts + seconds
    rates = np.array([each.bits for each in transfers]) / seconds
    both = np.minimum(ends[:, None], ends) - np.maximum(starts[:, None], starts)
    found: FloatArray = np.maximum(both, 0.0) @ rates / seconds
    return found

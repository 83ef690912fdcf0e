"""What connections can do, from transfers that shared them.

While n transfers share a connection of capacity C, each gets C / n at most; a transfer goes at
the lesser of what its two ends give it. So bits / integral of dt / n(t), taken at one end, never
exceeds that end's capacity, and is that capacity where this end held the transfer up.
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
        bits = np.array([each.bits for each in mine])
        found[worker] = np.fmax(found[worker], (bits / _alone_seconds(mine)).max())
    return found


def _alone_seconds(transfers: Sequence[Transfer]) -> FloatArray:
    """How long each would have taken alone: an instant shared by n counts as its n-th part."""
    starts = np.array([each.started for each in transfers])
    ends = starts + np.maximum([each.seconds for each in transfers], LEAST_SECONDS)
    edges = np.unique(np.concatenate([starts, ends]))
    inside = (starts[:, None] <= edges[:-1]) & (edges[1:] <= ends[:, None])
    parts = np.diff(edges) / np.maximum(inside.sum(axis=0), 1)
    seconds: FloatArray = np.maximum(inside @ parts, LEAST_SECONDS)
    return seconds

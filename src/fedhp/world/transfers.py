"""How long transfers take over links that change meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fedhp.timing import Network
from fedhp.types import FloatArray

Rate: TypeAlias = Callable[[Network], FloatArray]  # bits per second of every transfer, [T]


def transfer_seconds(
    bits: float | FloatArray,
    rate: Rate,
    *,
    starts: FloatArray,
    network: Callable[[float], Network],
    next_change: Callable[[float], float],
) -> FloatArray:
    """Seconds from the start of each transfer [T] until its bits (of all, or of each) have arrived.

    Links are constant from one change to the next: what arrives is added up interval by interval.
    """
    seconds, left = np.zeros(len(starts)), np.full(len(starts), bits, dtype=np.float64)
    time = float(starts.min(initial=np.inf))
    while (left > 0).any():
        until = next_change(time)
        # In the middle of the interval: its ends may round to the one before or after.
        rates = rate(network((time + until) / 2))
        active = (left > 0) & (starts < until)
        room = until - np.maximum(starts, time)
        needed = left / rates
        ending = active & (needed <= room)
        seconds[ending] += needed[ending]
        left[ending] = 0.0
        going = active & ~ending
        seconds[going] += room[going]
        left[going] -= (rates * room)[going]
        time = until
    return seconds

"""Bandwidth as a function of virtual time and seed: uniform marginals, AR(1) in between.

A Gaussian copula: z moves as an AR(1) process on a time grid, Phi(z) is uniform, and the
bandwidth is low + (high - low) * Phi(z), constant within a grid interval.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
from scipy.special import ndtr

from fedhp.config import BandwidthConfig
from fedhp.seeds import Purpose, generator
from fedhp.types import FloatArray

BITS = {"Mb/s": 1e6, "MB/s": 8e6}
_SEED_INTERVALS = 64  # grid intervals that share a generator: part of every result
_MOST_REMEMBERED = 4096  # grid intervals remembered at most: a transfer may look far ahead
_MEMORY = 16e6  # bytes of remembered intervals, where one interval is not larger


class Bandwidth:
    """Bits per second at any virtual time: [N] per worker, or [N, N] symmetric per link.

    Intervals are drawn one after the other and only the last ones are remembered; for an earlier
    time it starts again from the beginning and gets the same numbers.
    """

    def __init__(self, config: BandwidthConfig, *, workers: int, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._workers = workers
        self._per_link = config.per == "link"
        self._size = workers * (workers - 1) // 2 if self._per_link else workers
        self._unit = BITS[config.unit]
        self._memory = int(np.clip(_MEMORY // (8 * max(self._size, 1)), 1, _MOST_REMEMBERED))
        self._recent: dict[int, FloatArray] = {}  # z of the last grid intervals, [size] each
        self._asked: list[int] = []  # the last two intervals asked for: one round and its past
        self._drawn = -1  # the last interval drawn
        self._rng = generator(seed, Purpose.BANDWIDTH, 0)
        self._last: tuple[int, FloatArray] | None = None  # the last answer and its interval

    def at(self, time: float) -> FloatArray:
        """The bandwidth at this virtual time; the same read-only array within an interval."""
        interval = int(time / self._config.interval)
        if self._last is None or self._last[0] != interval:
            values = self._values(interval)
            values.setflags(write=False)
            self._last = (interval, values)
        return self._last[1]

    def next_change(self, time: float) -> float:
        """When the next interval begins."""
        following = int(time / self._config.interval) + 1
        while following * self._config.interval <= time:  # the division may round down
            following += 1
        return following * self._config.interval

    def _values(self, interval: int) -> FloatArray:
        uniform = ndtr(self._z(interval))
        low, high = self._config.low * self._unit, self._config.high * self._unit
        values: FloatArray = low + (high - low) * uniform
        if not self._per_link:
            return values
        matrix = np.full((self._workers, self._workers), high)
        upper = np.triu_indices(self._workers, 1)
        matrix[upper] = values
        matrix.T[upper] = values
        return matrix

    def _z(self, interval: int) -> FloatArray:
        if interval not in self._recent and interval <= self._drawn:
            self._recent, self._drawn = {}, -1
        while self._drawn < interval:
            self._draw_next()
        self._asked = [*self._asked[-1:], interval]
        return self._recent[interval]

    def _draw_next(self) -> None:
        """Advance the AR(1) process by one interval."""
        previous = self._recent.get(self._drawn)
        number = self._drawn + 1
        if number % _SEED_INTERVALS == 0:
            self._rng = generator(self._seed, Purpose.BANDWIDTH, number // _SEED_INTERVALS)
        z = self._rng.standard_normal(self._size)
        if previous is not None:
            correlation = self._config.correlation
            z *= np.sqrt(1 - correlation**2)
            z += correlation * previous
        self._drawn, self._recent[number] = number, z
        if len(self._recent) > self._memory:
            # The oldest first; of these few, at most three are still needed.
            for old in list(islice(self._recent, 4)):
                if old not in self._asked and old != number and len(self._recent) > self._memory:
                    del self._recent[old]

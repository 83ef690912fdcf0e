"""Bandwidth as a function of virtual time and seed: uniform marginals, AR(1) in between.

A Gaussian copula: z moves as an AR(1) process on a time grid, Phi(z) is uniform, and the
bandwidth is low + (high - low) * Phi(z), constant within a grid interval.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fedhp.config import BandwidthConfig, LineConfig
from fedhp.seeds import Purpose, generator, number
from fedhp.timing import Lines
from fedhp.types import FloatArray, IntArray

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
        following = int(time / self._config.interval) + 1
        while following * self._config.interval <= time:  # the division may round down
            following += 1
        return following * self._config.interval

    def _values(self, interval: int) -> FloatArray:
        if interval not in self._recent and interval <= self._drawn:
            self._recent, self._drawn = {}, -1
        while self._drawn < interval:
            self._draw_next()
        self._asked = [*self._asked[-1:], interval]
        uniform = ndtr(self._recent[interval])
        low, high = self._config.low * self._unit, self._config.high * self._unit
        values: FloatArray = low + (high - low) * uniform
        if not self._per_link:
            return values
        matrix = np.full((self._workers, self._workers), high)
        upper = np.triu_indices(self._workers, 1)
        matrix[upper] = values
        matrix.T[upper] = values
        return matrix

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


def build_lines(config: BandwidthConfig, *, workers: int, seed: int) -> Lines | None:
    """The workers' lines; None where both directions have the bandwidth itself, however that is
    written: with sharing, a line without directions is divided among all transfers."""

    def factors(line: float | LineConfig | list[float], direction: int) -> FloatArray:
        if isinstance(line, LineConfig):
            rng = generator(seed, Purpose.LINES, direction)
            return rng.uniform(line.low, line.high, workers)
        return np.full(workers, line, dtype=np.float64)

    up, down = factors(config.uplink, 0), factors(config.downlink, 1)
    return None if (up == 1.0).all() and (down == 1.0).all() else Lines(up, down)


class Jitter:
    """By how much single transfers take longer or shorter: a factor with mean 1 (log-normal).

    A hash of seed, transfer and event takes the place of a generator: the factor of a link does
    not depend on which other links are asked for, and a full mesh costs one pass.
    """

    def __init__(self, sd: float, *, seed: int) -> None:
        self._scale = float(np.sqrt(np.log1p(sd**2)))
        self._key = np.uint64(number(seed, Purpose.JITTER))

    def factors(self, links: IntArray, event: int) -> FloatArray:
        """The factors of the transfers over these links [E] in a round, or in a sender's turn."""
        mixed = _mixed(self._key + np.uint64(event))
        for end in (links[:, 0], links[:, 1]):
            mixed = _mixed(mixed ^ end.astype(np.uint64))
        # 53 bits, never 0 or 1, where the normal quantile would be infinite.
        uniform = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        z = self._scale * ndtri(np.minimum(uniform, 1 - 2.0**-53))
        factor: FloatArray = np.exp(z - self._scale**2 / 2)
        return factor


def _mixed(words: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the result depends on every bit of the word."""
    word = np.asarray(words, dtype=np.uint64)
    with np.errstate(over="ignore"):
        word = word + np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = word ^ (word >> np.uint64(31))
    return mixed

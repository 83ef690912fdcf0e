"""Bandwidth as a function of virtual time and seed: uniform marginals, AR(1) in between.

A Gaussian copula: z moves as an AR(1) process on a time grid, Phi(z) is uniform, and the
bandwidth is low + (high - low) * Phi(z), constant within a grid interval.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from fedhp.config import BandwidthConfig
from fedhp.seeds import Purpose, generator
from fedhp.types import FloatArray

BITS = {"Mb/s": 1e6, "MB/s": 8e6}
_BLOCK = 64  # grid intervals drawn at once


class Bandwidth:
    """Bits per second at any virtual time: [N] per worker, or [N, N] symmetric per link."""

    def __init__(self, config: BandwidthConfig, *, workers: int, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._workers = workers
        self._per_link = config.per == "link"
        self._size = workers * (workers - 1) // 2 if self._per_link else workers
        self._unit = BITS[config.unit]
        self._blocks: list[FloatArray] = []  # z of each grid interval, [_BLOCK, size]

    def at(self, time: float) -> FloatArray:
        """The bandwidth at this virtual time."""
        interval = int(time / self._config.interval)
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
        index, offset = divmod(interval, _BLOCK)
        while len(self._blocks) <= index:
            self._blocks.append(self._next_block())
        block = self._blocks[index]
        return np.asarray(block[offset], dtype=np.float64)

    def _next_block(self) -> FloatArray:
        number = len(self._blocks)
        rng = generator(self._seed, Purpose.BANDWIDTH, number)
        block = rng.standard_normal((_BLOCK, self._size))
        correlation = self._config.correlation
        innovation = np.sqrt(1 - correlation**2)
        previous = self._blocks[-1][-1] if self._blocks else None
        for row in block:
            if previous is not None:
                row *= innovation
                row += correlation * previous
            previous = row
        return block

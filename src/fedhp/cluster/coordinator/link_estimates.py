"""How fast the network is, as far as it was measured: what the planner is told of it.

Where links do not share anything, each has a bandwidth of its own. Where a worker's transfers
share its connection, the capacity of that is what counts (capacity.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedhp.cluster.coordinator.capacity import Transfer, least_capacities
from fedhp.record.packing import Arrays
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray

SMOOTHING = 0.5  # of a new measurement
LEAST_SECONDS = 1e-5
SLOWEST_GUESS = 1e6  # bits per second of a link of which nothing at all is known


@dataclass(slots=True)
class Links:
    """Measured bits per second, NaN where never measured."""

    bandwidth: FloatArray  # [N, N] symmetric, of a link by itself
    capacity: FloatArray  # [N] of a worker's connection, shared by all its transfers
    measured: IntArray  # [N, N] round of the last measurement, -1 for never

    @classmethod
    def unknown(cls, workers: int) -> Links:
        """Nothing is known."""
        shape = (workers, workers)
        return cls(
            bandwidth=np.full(shape, np.nan),
            capacity=np.full(workers, np.nan),
            measured=np.full(shape, -1, dtype=np.int64),
        )

    def known(self) -> bool:
        """Whether any link was ever timed."""
        return bool((self.measured >= 0).any())

    def pack(self) -> Arrays:
        """For the committed state; what was measured is not exact anyway."""
        return {
            "links.bandwidth": self.bandwidth.astype(np.float32),
            "links.capacity": self.capacity.astype(np.float32),
            "links.measured": self.measured.astype(np.int32),
        }

    @classmethod
    def unpack(cls, arrays: Arrays) -> Links:
        """As it was packed."""
        return cls(
            bandwidth=arrays["links.bandwidth"].astype(np.float64),
            capacity=arrays["links.capacity"].astype(np.float64),
            measured=arrays["links.measured"].astype(np.int64),
        )

    def learn(self, a: int, b: int, *, bits: float, seconds: float, round_index: int) -> None:
        """A transfer of so many bits took so long."""
        found = bits / max(seconds, LEAST_SECONDS)
        old = self.bandwidth[a, b]
        new = found if np.isnan(old) else (1 - SMOOTHING) * old + SMOOTHING * found
        self.bandwidth[a, b] = self.bandwidth[b, a] = new
        self.measured[a, b] = self.measured[b, a] = round_index

    def learn_shared(self, transfers: Sequence[Transfer], *, round_index: int) -> None:
        """All transfers of a round, which shared the connections of their ends.

        They show what a connection can do at least: more than was known counts at once, less
        only by and by, since a connection may not have been busy.
        """
        found = least_capacities(transfers, workers=len(self.capacity))
        old = np.where(np.isnan(self.capacity), found, self.capacity)
        slower = (1 - SMOOTHING) * old + SMOOTHING * found
        self.capacity = np.where(np.isnan(found), self.capacity, np.fmax(found, slower))
        for each in transfers:
            ends = [each.receiver, each.sender]
            self.measured[ends, ends[::-1]] = round_index
            self.bandwidth[ends, ends[::-1]] = self.capacity[ends].min()

    def network(self, *, model_bits: float, sharing: bool, otherwise: float) -> Network:
        """As the planner sees it. A link never timed counts as the slower end's median,
        one of a worker of whom nothing is known as the median of all, else `otherwise`."""
        if sharing and not np.isnan(self.capacity).all():
            general = float(np.nanmedian(self.capacity))
            capacity = np.where(np.isnan(self.capacity), general, self.capacity)
            return Network(capacity, model_bits=model_bits, sharing=True)
        known = self.bandwidth
        some = known[~np.isnan(known)]
        general = float(np.median(some)) if some.size else otherwise
        per_worker = np.array(
            [np.median(row[~np.isnan(row)]) if (~np.isnan(row)).any() else general for row in known]
        )
        guess = np.minimum(per_worker[:, None], per_worker[None, :])
        return Network(
            np.where(np.isnan(known), guess, known), model_bits=model_bits, sharing=sharing
        )

    def stale(self, present: BoolArray, *, round_index: int, every: int) -> list[tuple[int, int]]:
        """Pairs of present workers whose link was not timed for so many rounds, oldest first;
        each worker in one pair at most, so that probing stays cheap."""
        there = np.flatnonzero(present)
        a, b = np.triu_indices(len(there), k=1)
        left, right = there[a], there[b]
        age = round_index - self.measured[left, right]
        busy: set[int] = set()
        chosen = []
        for index in np.argsort(-age, kind="stable"):
            if age[index] < every:
                break
            pair = int(left[index]), int(right[index])
            if not busy.intersection(pair):
                busy.update(pair)
                chosen.append(pair)
        return chosen

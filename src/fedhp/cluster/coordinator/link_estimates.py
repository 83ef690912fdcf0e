"""How fast the network is, as far as it was measured: estimates for the planner, and the survey
that makes the first ones.

Where links share nothing, each has its own bandwidth. Where a worker's transfers share its
connection, the capacity of the connection counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedhp.cluster.protocol import wire_pb2 as wire
from fedhp.record.tensors import Arrays
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray

SMOOTHING = 0.5  # weight of a new measurement
LEAST_SECONDS = 1e-5
SLOWEST_GUESS = 1e6  # bits per second of a link about which nothing at all is known
RATE_FACTOR = 100.0  # the fastest transfer that is believed, in multiples of the median
SURVEY_PEERS = 8  # the most links that one worker times in the survey
SURVEY_SECONDS = 10.0  # then the first plan is made with what is known


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bits that went from one worker to another, by a clock that all transfers have in common."""

    receiver: int
    sender: int
    bits: float
    started: float
    seconds: float


@dataclass(slots=True)
class LinkEstimates:
    """Measured bits per second, NaN where never measured."""

    bandwidth: FloatArray  # [N, N] symmetric, of a link by itself
    capacity: FloatArray  # [N] of a worker's connection, shared by all its transfers
    measured: IntArray  # [N, N] round of the last measurement, -1 for never

    @classmethod
    def unknown(cls, workers: int) -> LinkEstimates:
        """Nothing was measured yet."""
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
        """For the committed state; measurements are not exact, so half the bytes are enough."""
        return {
            "links.bandwidth": self.bandwidth.astype(np.float32),
            "links.capacity": self.capacity.astype(np.float32),
            "links.measured": self.measured.astype(np.int32),
        }

    @classmethod
    def unpack(cls, arrays: Arrays) -> LinkEstimates:
        """The estimates of pack()."""
        return cls(
            bandwidth=arrays["links.bandwidth"].astype(np.float64),
            capacity=arrays["links.capacity"].astype(np.float64),
            measured=arrays["links.measured"].astype(np.int64),
        )

    def learn(self, a: int, b: int, *, bits: float, seconds: float, round_index: int) -> None:
        """Learn from one transfer over a link that shares nothing."""
        measured = bits / max(seconds, LEAST_SECONDS)
        old = self.bandwidth[a, b]
        new = measured if np.isnan(old) else (1 - SMOOTHING) * old + SMOOTHING * measured
        self.bandwidth[a, b] = self.bandwidth[b, a] = new
        self.measured[a, b] = self.measured[b, a] = round_index

    def learn_shared(self, transfers: Sequence[Transfer], *, round_index: int) -> None:
        """Learn from all transfers of a round, which shared the connections of their ends.

        They show the least that a connection can do: a larger value counts at once, a smaller
        one only gradually, since the connection may not have been busy.
        """
        measured = least_capacities(transfers, workers=len(self.capacity))
        old = np.where(np.isnan(self.capacity), measured, self.capacity)
        slower = (1 - SMOOTHING) * old + SMOOTHING * measured
        self.capacity = np.where(np.isnan(measured), self.capacity, np.fmax(measured, slower))
        for transfer in transfers:
            ends = [transfer.receiver, transfer.sender]
            self.measured[ends, ends[::-1]] = round_index
            self.bandwidth[ends, ends[::-1]] = self.capacity[ends].min()

    def network(self, *, model_bits: float, sharing: bool, otherwise: float) -> Network:
        """The network as the planner sees it. A link that was never timed counts as the median
        of its slower end; of a worker without measurements, as the median of all; if there are
        none at all, as `otherwise`."""
        if sharing and not np.isnan(self.capacity).all():
            median = float(np.nanmedian(self.capacity))
            capacity = np.where(np.isnan(self.capacity), median, self.capacity)
            return Network(capacity, model_bits=model_bits, sharing=True)
        bandwidth = self.bandwidth
        timed = bandwidth[~np.isnan(bandwidth)]
        median = float(np.median(timed)) if timed.size else otherwise
        per_worker = np.array(
            [
                np.median(row[~np.isnan(row)]) if (~np.isnan(row)).any() else median
                for row in bandwidth
            ]
        )
        guess = np.minimum(per_worker[:, None], per_worker[None, :])
        return Network(
            np.where(np.isnan(bandwidth), guess, bandwidth), model_bits=model_bits, sharing=sharing
        )

    def stale(self, present: BoolArray, *, round_index: int, every: int) -> list[tuple[int, int]]:
        """Pairs of present workers whose link was not timed for `every` rounds, oldest first;
        each worker in one pair at most, so that probing stays cheap."""
        workers = np.flatnonzero(present)
        a, b = np.triu_indices(len(workers), k=1)
        left, right = workers[a], workers[b]
        age = round_index - self.measured[left, right]
        busy: set[int] = set()
        pairs = []
        for index in np.argsort(-age, kind="stable"):
            if age[index] < every:
                break
            pair = int(left[index]), int(right[index])
            if not busy.intersection(pair):
                busy.update(pair)
                pairs.append(pair)
        return pairs


def limit_rates(transfers: Sequence[Transfer]) -> list[Transfer]:
    """The transfers of a round, none faster than RATE_FACTOR times the median: a worker that
    claims more would make its links look better than all others, and its peers' too."""
    if len(transfers) < 3:
        return list(transfers)
    rates = [transfer.bits / max(transfer.seconds, LEAST_SECONDS) for transfer in transfers]
    most = RATE_FACTOR * float(np.median(rates))
    return [
        replace(transfer, seconds=transfer.bits / most) if rate > most else transfer
        for transfer, rate in zip(transfers, rates, strict=True)
    ]


def least_capacities(transfers: Sequence[Transfer], *, workers: int) -> FloatArray:
    """The least capacity of each worker's connection that explains the transfers, [N]; NaN where
    it had none. Both directions have the same capacity and do not disturb each other.

    Transfers do not share a connection evenly, so a single one says little. But together they
    never exceed its capacity, and reach it where this end was the bottleneck.
    """
    capacities = np.full(workers, np.nan)
    by_end: dict[tuple[int, bool], list[Transfer]] = {}  # by worker, and whether it received
    for transfer in transfers:
        by_end.setdefault((transfer.receiver, True), []).append(transfer)
        by_end.setdefault((transfer.sender, False), []).append(transfer)
    for (worker, _), shared in by_end.items():
        capacities[worker] = np.fmax(capacities[worker], _throughput(shared).max())
    return capacities


def _throughput(transfers: Sequence[Transfer]) -> FloatArray:
    """Bits per second that went through one connection during each of the transfers; each of
    them is assumed to go evenly."""
    seconds = np.maximum([transfer.seconds for transfer in transfers], LEAST_SECONDS)
    starts = np.array([transfer.started for transfer in transfers])
    ends = starts + seconds
    rates = np.array([transfer.bits for transfer in transfers]) / seconds
    overlap = np.minimum(ends[:, None], ends) - np.maximum(starts[:, None], starts)
    throughput: FloatArray = np.maximum(overlap, 0.0) @ rates / seconds
    return throughput


class LinkSurvey:
    """Before the first plan, every worker times a few links.

    Otherwise the first plan would know nothing, and everybody would wait for the slowest link
    once. A survey is short, and never fails a run.
    """

    def __init__(self, participants: Sequence[int]) -> None:
        workers = sorted(participants)
        count = min(SURVEY_PEERS, len(workers) - 1)
        self._peers = {
            worker: tuple(workers[(index + step) % len(workers)] for step in range(1, count + 1))
            for index, worker in enumerate(workers)
        }
        self.timed: dict[int, list[wire.LinkReport]] = {}

    def wanted(self, worker: int) -> tuple[int, ...]:
        """The links that a worker still has to time."""
        return () if worker in self.timed else self._peers.get(worker, ())

    def add(self, worker: int, links: Iterable[wire.LinkReport]) -> None:
        """A worker's measurements; links that it was not asked to time are ignored."""
        wanted = self.wanted(worker)
        timed = [link for link in links if link.worker in wanted]
        if timed:
            self.timed[worker] = timed

    def is_over(self, alive: Collection[int]) -> bool:
        """Whether all workers that are alive have answered."""
        return not any(self.wanted(worker) for worker in alive)

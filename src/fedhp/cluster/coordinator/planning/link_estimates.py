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
from fedhp.timing import LinkBandwidth, Network
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


class LinkEstimates:
    """Measured bits per second of the links that were ever timed."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        # Of a worker's connection, shared by all its transfers; NaN where never measured, [N].
        self.capacity: FloatArray = np.full(workers, np.nan)
        # By the number of the link, see _key(): of the link by itself, and the round of its last
        # measurement. Not a matrix: it would grow with all pairs, although few are ever linked.
        self._bandwidth: dict[int, float] = {}
        self._measured: dict[int, int] = {}

    def known(self) -> bool:
        return bool(self._measured)

    def bandwidth(self, a: int, b: int) -> float:
        """Bits per second between two workers; NaN if never measured."""
        return self._bandwidth.get(self._key(a, b), float("nan"))

    def measured(self, a: int, b: int) -> int:
        """The round of the last measurement; -1 for never."""
        return self._measured.get(self._key(a, b), -1)

    def slowest(self, receivers: Iterable[int], senders: Iterable[int]) -> float:
        """The least bandwidth that was measured between the two groups; NaN for none."""
        into, out_of = frozenset(receivers), frozenset(senders)
        between = (
            bandwidth
            for key, bandwidth in self._bandwidth.items()
            for a, b in (divmod(key, self.workers),)
            if (a in into and b in out_of) or (b in into and a in out_of)
        )
        return min(between, default=float("nan"))

    def pack(self) -> Arrays:
        """For the committed state; measurements are not exact, so half the bytes are enough."""
        keys = sorted(self._measured)
        links = np.stack(np.divmod(np.array(keys, dtype=np.int64), self.workers), axis=1)
        return {
            "links.timed": links.astype(np.int32),
            "links.bandwidth": np.array([self._bandwidth[key] for key in keys], dtype=np.float32),
            "links.capacity": self.capacity.astype(np.float32),
            "links.measured": np.array([self._measured[key] for key in keys], dtype=np.int32),
        }

    @classmethod
    def unpack(cls, arrays: Arrays) -> LinkEstimates:
        """The estimates of pack(), or those of a state that held a matrix of all pairs."""
        bandwidth, measured = arrays["links.bandwidth"], arrays["links.measured"]
        if "links.timed" in arrays:
            links = arrays["links.timed"]
        else:
            links = np.argwhere(np.triu(measured >= 0, k=1))
            bandwidth, measured = bandwidth[tuple(links.T)], measured[tuple(links.T)]
        estimates = cls(len(arrays["links.capacity"]))
        estimates.capacity = arrays["links.capacity"].astype(np.float64)
        keys = [estimates._key(a, b) for a, b in links.tolist()]
        estimates._bandwidth = dict(zip(keys, bandwidth.tolist(), strict=True))
        estimates._measured = dict(zip(keys, measured.tolist(), strict=True))
        return estimates

    def learn(self, a: int, b: int, *, bits: float, seconds: float, round_index: int) -> None:
        """Learn from one transfer over a link that shares nothing."""
        key, new = self._key(a, b), bits / max(seconds, LEAST_SECONDS)
        if key in self._bandwidth:
            new = (1 - SMOOTHING) * self._bandwidth[key] + SMOOTHING * new
        self._bandwidth[key], self._measured[key] = new, round_index

    def learn_shared(self, transfers: Sequence[Transfer], *, round_index: int) -> None:
        """Learn from all transfers of a round, which shared the connections of their ends.

        They show the least that a connection can do: a larger value counts at once, a smaller
        one only gradually, since the connection may not have been busy.
        """
        measured = least_capacities(transfers, workers=len(self.capacity))
        old = np.where(np.isnan(self.capacity), measured, self.capacity)
        slower = (1 - SMOOTHING) * old + SMOOTHING * measured
        self.capacity = np.where(np.isnan(measured), self.capacity, np.fmax(measured, slower))
        capacity = self.capacity.tolist()
        for transfer in transfers:
            key = self._key(transfer.receiver, transfer.sender)
            self._bandwidth[key] = min(capacity[transfer.receiver], capacity[transfer.sender])
            self._measured[key] = round_index

    def network(self, *, model_bits: float, sharing: bool, otherwise: float) -> Network:
        """The network as the planner sees it. A link that was never timed counts as the median
        of its slower end; of a worker without measurements, as the median of all; if there are
        none at all, as `otherwise`."""
        if sharing and not np.isnan(self.capacity).all():
            median = float(np.nanmedian(self.capacity))
            capacity = np.where(np.isnan(self.capacity), median, self.capacity)
            return Network(capacity, model_bits=model_bits, sharing=True)
        keys = np.fromiter(self._bandwidth.keys(), dtype=np.int64, count=len(self._bandwidth))
        values = np.fromiter(self._bandwidth.values(), dtype=np.float64, count=len(keys))
        order = np.argsort(keys)
        links = np.stack(np.divmod(keys[order], self.workers), axis=1)
        values = values[order]
        median = float(np.median(values)) if values.size else otherwise
        return Network(
            _medians(links, values, workers=self.workers, otherwise=median),
            model_bits=model_bits,
            sharing=sharing,
            known=LinkBandwidth(links, values),
        )

    def stale(
        self, links: IntArray, present: BoolArray, *, round_index: int, every: int
    ) -> list[tuple[int, int]]:
        """Those of the links [E, 2] between present workers that were not timed for `every`
        rounds, oldest first; each worker in one of them at most, so that probing stays cheap."""
        links = links[present[links[:, 0]] & present[links[:, 1]]]
        keys = (links[:, 0] * self.workers + links[:, 1]).tolist()
        age = round_index - np.array([self._measured.get(key, -1) for key in keys], dtype=np.int64)
        due = np.flatnonzero(age >= every)
        busy: set[int] = set()
        pairs = []
        for a, b in links[due[np.argsort(-age[due], kind="stable")]].tolist():
            if a not in busy and b not in busy:
                busy.update((a, b))
                pairs.append((a, b))
        return pairs

    def _key(self, a: int, b: int) -> int:
        """One number for both directions of a link."""
        return min(a, b) * self.workers + max(a, b)


def _medians(links: IntArray, values: FloatArray, *, workers: int, otherwise: float) -> FloatArray:
    """The median over the links [L, 2] of each worker, [N]; `otherwise` where it has none."""
    ends, twice = links.T.ravel(), np.tile(values, 2)
    order = np.lexsort((twice, ends))
    twice, count = twice[order], np.bincount(ends, minlength=workers)
    some, first = count > 0, np.cumsum(count) - count
    lower, upper = first + (count - 1) // 2, first + count // 2
    medians = np.full(workers, otherwise)
    medians[some] = (twice[lower[some]] + twice[upper[some]]) / 2
    return medians


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

    def __init__(self, participants: Sequence[int], links: IntArray) -> None:
        """links [E, 2]: of the base topology, since no others are ever used."""
        workers = sorted(participants)
        place = {worker: index for index, worker in enumerate(workers)}
        neighbors: dict[int, list[int]] = {worker: [] for worker in workers}
        for a, b in links.tolist():
            if a in place and b in place:
                neighbors[a].append(b)
                neighbors[b].append(a)

        def following(worker: int) -> tuple[int, ...]:
            """The next ones in a circle, so that on a full mesh all are timed equally often."""
            ordered = sorted(
                neighbors[worker], key=lambda peer: (place[peer] - place[worker]) % len(workers)
            )
            return tuple(ordered[:SURVEY_PEERS])

        self._peers = {worker: following(worker) for worker in workers}
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

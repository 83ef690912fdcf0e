"""Time: of a link, a worker and a round, the steps that fit a deadline, the learning rate.

t_i = tau_i * mu_i + max_j beta_ij, t = max t_i, waiting = mean(t - t_i), and the step rule
that replaces the paper's linear program (one integer variable: a closed form).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedhp.types import BoolArray, FloatArray, IntArray, Timing, Topology

# (T - b) / mu is often a whole number up to rounding; without this a step would be lost.
ROUNDING = 1e-9
# Minibatches of one estimate: its cost, where the estimators' time is charged.
PROBE_BATCHES = 8
INT8_BLOCK = 256  # values that share a scale, where numbers travel in 8 bits


def int8_bytes(values: int) -> int:
    """Bytes of so many values in 8 bits: their codes, and four bytes for the scale of each block;
    the last block may be shorter."""
    return values + 4 * -(-values // INT8_BLOCK)


@dataclass(frozen=True, slots=True)
class LinkBandwidth:
    """Bits per second of some links only: what is known grows with them, not with all pairs."""

    links: IntArray  # [L, 2] smaller worker first, sorted
    bandwidth: FloatArray  # [L]

    def look_up(self, links: IntArray, otherwise: FloatArray, *, workers: int) -> FloatArray:
        """The bandwidth of these links [E], or the value in `otherwise` [E] where it is unknown."""
        if not len(self.links):
            return otherwise
        known = self.links[:, 0] * workers + self.links[:, 1]
        wanted = links.min(axis=1) * workers + links.max(axis=1)
        position = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[position] == wanted, self.bandwidth[position], otherwise)


@dataclass(frozen=True, slots=True)
class Lines:
    """What a worker's line can do in each direction, in multiples of its bandwidth, [N] each."""

    up: FloatArray
    down: FloatArray

    @property
    def both(self) -> FloatArray:
        """The factor of a transfer in both directions at once: its slower one counts, [N]."""
        slower: FloatArray = np.minimum(self.up, self.down)
        return slower

    def pull_rate(self, network: Network, links: IntArray) -> FloatArray:
        """Bits per second of pulls (receiver, sender) [E] that all go on at once."""
        receivers, senders = links[:, 0], links[:, 1]
        both, bandwidth = self.both, network.bandwidth
        up, down = self.up[senders], self.down[receivers]
        if bandwidth.ndim == 1:
            sending = bandwidth[senders] / both[senders] * up
            receiving = bandwidth[receivers] / both[receivers] * down
        else:
            slower = np.minimum(both[senders], both[receivers])
            line = bandwidth[receivers, senders] / slower
            sending, receiving = line * up, line * down
        if network.sharing:
            workers = len(both)
            sending = sending / np.bincount(senders, minlength=workers)[senders]
            receiving = receiving / np.bincount(receivers, minlength=workers)[receivers]
        rate: FloatArray = np.minimum(sending, receiving)
        return rate


@dataclass(frozen=True, slots=True)
class ServerLine:
    """What a server sends and receives at, in bits per second, all its transfers together."""

    uplink: float
    downlink: float


@dataclass(frozen=True, slots=True)
class Network:
    """The links as monitored at one moment, and whether transfers share bandwidth.

    Bandwidth in bits per second, of a transfer in both directions at once: per worker [N], or per
    link [N, N] symmetric. With one per worker, `known` has that of single links, which then counts
    instead. Where the directions differ, `lines` has what only one of them needs.
    """

    bandwidth: FloatArray
    model_bits: float
    sharing: bool = False
    latency: float = 0.0
    known: LinkBandwidth | None = None
    lines: Lines | None = None

    def link_rate(
        self, links: IntArray, degrees: IntArray | None = None, *, directed: bool = False
    ) -> FloatArray:
        """Bits per second of each link [E]; degrees [N] are the transfers that each worker has
        at the same time (used only with sharing).

        Models travel in both directions, or, if directed, to links[:, 0] from links[:, 1] only.
        Only then a faster line in one direction helps, and shares among those that use it.
        """
        if directed and self.lines is not None:
            return self.lines.pull_rate(self, links)
        a, b = links[:, 0], links[:, 1]
        if self.bandwidth.ndim == 1:
            left, right = self.bandwidth[a], self.bandwidth[b]
            if self.known is not None:
                workers = len(self.bandwidth)
                left = self.known.look_up(links, left, workers=workers)
                right = self.known.look_up(links, right, workers=workers)
        else:
            left = right = self.bandwidth[a, b]
        if self.sharing and degrees is not None:
            left, right = left / np.maximum(degrees[a], 1), right / np.maximum(degrees[b], 1)
        rate: FloatArray = np.minimum(left, right)
        return rate

    def line_rate(self, *, sending: bool) -> FloatArray:
        """Bits per second at which each worker sends, or receives, over its line alone, [N]; the
        mean of its links where they differ."""
        rate = self.bandwidth
        if rate.ndim == 2:
            others = ~np.eye(len(rate), dtype=np.bool_)
            rate = rate.mean(axis=1, where=others) if len(rate) > 1 else rate[0]
        if self.lines is not None:
            rate = rate / self.lines.both * (self.lines.up if sending else self.lines.down)
        return rate

    def link_time(
        self, links: IntArray, degrees: IntArray | None = None, *, directed: bool = False
    ) -> FloatArray:
        """Seconds to transfer a model over each link [E], at the rates of link_rate."""
        rate = self.link_rate(links, degrees, directed=directed)
        time: FloatArray = self.model_bits / rate + self.latency
        return time

    def communication_time(self, topology: Topology) -> FloatArray:
        """b_i = max over neighbors of link_time, 0 without neighbors, [N]."""
        return slowest_link(
            topology.workers, topology.links, self.link_time(topology.links, topology.degrees)
        )


def slowest_link(workers: int, links: IntArray, link_time: FloatArray) -> FloatArray:
    """The longest link time of each worker, [N]."""
    slowest = np.zeros(workers)
    np.maximum.at(slowest, links[:, 0], link_time)
    np.maximum.at(slowest, links[:, 1], link_time)
    return slowest


def slowest_pull(workers: int, links: IntArray, link_time: FloatArray) -> FloatArray:
    """The longest transfer each receiver waits for, [N]; links are (receiver, sender)."""
    slowest = np.zeros(workers)
    np.maximum.at(slowest, links[:, 0], link_time)
    return slowest


def steps_within(
    deadline: FloatArray | float,
    step_time: FloatArray,
    communication_time: FloatArray,
    *,
    max_steps: int,
) -> IntArray:
    """The most steps that fit the deadline: clip(floor((T - b_i) / mu_i), 1, max_steps)."""
    fitting = whole_steps(deadline, step_time, communication_time, max_steps=max_steps)
    return fitting.astype(np.int64)


def whole_steps(
    deadline: FloatArray | float,
    step_time: FloatArray,
    communication_time: FloatArray,
    *,
    max_steps: int,
) -> FloatArray:
    """steps_within as floats, for a planner that tries many deadlines [T, 1] at once."""
    steps: FloatArray = np.subtract(deadline, communication_time, dtype=np.float64)
    steps /= step_time
    steps += ROUNDING
    np.floor(steps, out=steps)
    return np.clip(steps, 1, max_steps, out=steps)


def epoch_steps(samples: IntArray, *, epochs: float, batch_size: int) -> IntArray:
    """The steps that so many epochs of each worker's samples [N] take, at least one."""
    batches = np.ceil(epochs * samples / batch_size - ROUNDING)
    steps: IntArray = np.maximum(1, batches).astype(np.int64)
    return steps


def median_steps(steps: IntArray) -> int:
    """The middle worker's steps, of those [N] that are known (above 0)."""
    return int(np.median(steps[steps > 0]))


def timing(compute_time: FloatArray, communication_time: FloatArray, present: BoolArray) -> Timing:
    """Worker, round and waiting time of a synchronous round; NaN for workers away."""
    compute = np.where(present, compute_time, np.nan)
    communication = np.where(present, communication_time, np.nan)
    worker_time = compute + communication
    round_time = float(np.nanmax(worker_time)) if present.any() else 0.0
    return Timing(
        compute_time=compute,
        communication_time=communication,
        worker_time=worker_time,
        waiting_time=round_time - worker_time,
        round_time=round_time,
    )

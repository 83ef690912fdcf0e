"""The world of an experiment: who is available, how fast, over which links, at which time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedhp.config import WorldConfig
from fedhp.seeds import Purpose, generator
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray
from fedhp.world.availability import Availability, build_availability
from fedhp.world.devices import Devices, build_devices
from fedhp.world.network import BITS, Bandwidth
from fedhp.world.trace import Trace, read_trace
from fedhp.world.transfers import Rate, transfer_seconds


@dataclass(frozen=True, slots=True)
class World:
    """Devices, links and availability, all functions of seed, round and virtual time."""

    workers: int
    devices: Devices
    bandwidth: Bandwidth
    availability: Availability
    trace: Trace | None
    model_bits: float
    unit_bits: float
    sharing: bool
    latency: float
    follows_trace: bool = False  # whether a link changes during a transfer
    monitor_error: float = 0.0  # of the bandwidth that a planner sees, as a share at most
    seed: int = 0

    def available(self, round_index: int) -> BoolArray:
        """Which workers are available in this round, [N]."""
        return self.availability.at(round_index)

    def network(self, time: float) -> Network:
        """The links at this virtual time."""
        if self.trace is not None and self.trace.bandwidth:
            bandwidth = self.trace.bandwidth_at(time, self.unit_bits)
        else:
            bandwidth = self.bandwidth.at(time)
        return Network(bandwidth, self.model_bits, sharing=self.sharing, latency=self.latency)

    def monitored(self, time: float, round_index: int) -> Network:
        """The links of this virtual time as the planner of a round sees them."""
        network = self.network(time)
        if not self.monitor_error:
            return network
        random = generator(self.seed, Purpose.MONITOR, round_index)
        factor = random.uniform(
            1 - self.monitor_error, 1 + self.monitor_error, network.bandwidth.shape
        )
        if factor.ndim == 2:
            factor = np.triu(factor, 1) + np.triu(factor).T
        return replace(network, bandwidth=network.bandwidth * factor)

    def next_change(self, time: float) -> float:
        """When the links change next."""
        if self.trace is not None and self.trace.bandwidth:
            return self.trace.next_change(time)
        return self.bandwidth.next_change(time)

    def transfer_time(self, bits: float, rate: Rate, *, starts: FloatArray) -> FloatArray:
        """Seconds from the start of each transfer [T] to the arrival of its bits, without latency.

        rate gives the bits per second of every transfer on the links of one moment. If links do
        not follow the trace, each transfer keeps the rate of its start.
        """
        if self.follows_trace:
            return transfer_seconds(
                bits, rate, starts=starts, network=self.network, next_change=self.next_change
            )
        seconds = np.empty(len(starts))
        for start in np.unique(starts).tolist():
            now = starts == start
            seconds[now] = bits / rate(self.network(start))[now]
        return seconds

    def link_time(
        self,
        links: IntArray,
        transfers: IntArray,
        *,
        clock: float,
        ready: FloatArray,
        size: float = 1.0,
    ) -> FloatArray:
        """Seconds to transfer a model over each link [E] in the round that started at this clock.

        size is the share of the model's bits that travel (compressed: less than 1), and transfers
        [N] are those that share a worker's bandwidth (with sharing). Fixed links are those of the
        clock; otherwise a transfer starts when both ends are ready, [N] seconds after the clock.
        """
        if not self.follows_trace:
            network = self.network(clock)
            return replace(network, model_bits=size * self.model_bits).link_time(links, transfers)
        starts = clock + np.maximum(ready[links[:, 0]], ready[links[:, 1]])
        seconds = self.transfer_time(
            size * self.model_bits,
            lambda network: network.link_rate(links, transfers),
            starts=starts,
        )
        return seconds + self.latency

    def step_times(self, worker: int, round_index: int, *, steps: int, time: float) -> FloatArray:
        """How long each of a worker's steps takes, s. Round 0 is the calibration."""
        if self.trace is not None and self.trace.step_time:
            return np.full(steps, self.trace.step_time_at(worker, time))
        return self.devices.step_times(worker, round_index, steps)

    def steps_until(self, worker: int, round_index: int, *, deadline: float, time: float) -> int:
        """How many whole steps a worker finishes before the deadline, in seconds from now."""
        steps = 16
        while True:
            ends = np.cumsum(self.step_times(worker, round_index, steps=steps, time=time))
            if ends[-1] > deadline:
                return int(np.searchsorted(ends, deadline, side="right"))
            steps *= 2

    def compute_times(self, local_steps: IntArray, round_index: int, *, time: float) -> FloatArray:
        """Sum of the step times of every worker, [N], s."""
        return np.array(
            [
                float(self.step_times(worker, round_index, steps=steps, time=time).sum())
                for worker, steps in enumerate(local_steps.tolist())
            ]
        )


def build_world(
    config: WorldConfig,
    *,
    workers: int,
    rounds: int,
    seed: int,
    model_bits: float,
    source: str = "",
) -> World:
    """The world of an experiment; model_bits is the true size, which the config may override."""
    return World(
        workers=workers,
        devices=build_devices(config, workers=workers, seed=seed, source=source),
        bandwidth=Bandwidth(config.bandwidth, workers=workers, seed=seed),
        availability=build_availability(
            config, workers=workers, rounds=rounds, seed=seed, source=source
        ),
        trace=read_trace(config.trace, workers=workers, source=source) if config.trace else None,
        model_bits=config.model_megabits * 1e6 if config.model_megabits else model_bits,
        unit_bits=BITS[config.bandwidth.unit],
        sharing=config.bandwidth.sharing,
        latency=config.bandwidth.latency,
        follows_trace=config.bandwidth.during_transfer == "trace",
        monitor_error=config.monitor_error,
        seed=seed,
    )

"""The world of an experiment: who is available, how fast, over which links, at which time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedhp.config import WorldConfig
from fedhp.errors import ConfigError, about
from fedhp.seeds import Purpose, generator
from fedhp.timing import Lines, Network, ServerLine
from fedhp.types import BoolArray, FloatArray, IntArray
from fedhp.world.availability import Availability, RecordedPresence, build_availability
from fedhp.world.devices import Devices, build_devices
from fedhp.world.fedscale import read_clients
from fedhp.world.network import BITS, Bandwidth, Jitter, build_lines
from fedhp.world.trace import Trace, read_trace


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
    lines: Lines | None = None  # where sending and receiving differ
    jitter: Jitter | None = None  # of single transfers; planners do not see it
    constant: FloatArray | None = None  # [N] bits per second that never change, if they do not
    server: ServerLine | None = None

    def available(self, round_index: int, time: float = 0.0) -> BoolArray:
        """Which workers are available in this round, which starts at this virtual time, [N]."""
        return self.availability.at(round_index, time)

    @property
    def recorded_away(self) -> tuple[int, ...]:
        """The workers that are away at some time of the trace."""
        presence = {} if self.trace is None else self.trace.presence
        return tuple(worker for worker, series in presence.items() if not all(series.values))

    def network(self, time: float) -> Network:
        lines = self.lines
        if self.trace is not None and self.trace.uplink:
            up, down = self.trace.lines_at(time, self.unit_bits)
            line = np.maximum(up, down)
            bandwidth, lines = np.minimum(up, down), Lines(up / line, down / line)
        elif self.trace is not None and self.trace.bandwidth:
            bandwidth = self.trace.bandwidth_at(time, self.unit_bits)
        else:
            bandwidth = self.bandwidth.at(time) if self.constant is None else self.constant
            if lines is not None:  # what a transfer in both directions has of it
                factor = lines.both
                if bandwidth.ndim == 2:
                    factor = np.minimum(factor[:, None], factor)
                bandwidth = bandwidth * factor
        return Network(
            bandwidth,
            self.model_bits,
            sharing=self.sharing,
            latency=self.latency,
            lines=lines,
        )

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
        if self.trace is not None and self.trace.has_links:
            return self.trace.next_change(time)
        return np.inf if self.constant is not None else self.bandwidth.next_change(time)

    def transfer_time(
        self, bits: float | FloatArray, rate: Callable[[Network], FloatArray], *, starts: FloatArray
    ) -> FloatArray:
        """Seconds from the start of each transfer [T] to the arrival of its bits (of all, or of
        each), without latency.

        rate gives the bits per second of every transfer on the links of one moment. If links do
        not follow the trace, each transfer keeps the rate of its start; else they are constant from
        one change to the next, and what arrives is added up interval by interval.
        """
        seconds, left = np.zeros(len(starts)), np.full(len(starts), bits, dtype=np.float64)
        if not self.follows_trace:
            for start in np.unique(starts).tolist():
                now = starts == start
                seconds[now] = left[now] / rate(self.network(start))[now]
            return seconds
        time = float(starts.min(initial=np.inf))
        while (left > 0).any():
            until = self.next_change(time)
            # In the middle of the interval: its ends may round to the one before or after.
            rates = rate(self.network((time + until) / 2))
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

    def link_time(
        self,
        links: IntArray,
        transfers: IntArray,
        *,
        clock: float,
        ready: FloatArray,
        size: float = 1.0,
        directed: bool = False,
        event: int = 0,
    ) -> FloatArray:
        """Seconds to transfer a model over each link [E] in the round that started at this clock.

        size is the share of the model's bits that travel (compressed: less than 1), and transfers
        [N] are those that share a worker's bandwidth (with sharing). Fixed links are those of the
        clock; otherwise a transfer starts when both ends are ready, [N] seconds after the clock.
        If directed, links are (receiver, sender). The event (a round, or a sender's turn) tells
        transfers over one link apart, of which each has its own jitter.
        """
        jitter = 1.0 if self.jitter is None else self.jitter.factors(links, event)
        if not self.follows_trace:
            network = replace(self.network(clock), model_bits=size * self.model_bits)
            return jitter * network.link_time(links, transfers, directed=directed)
        starts = clock + np.maximum(ready[links[:, 0]], ready[links[:, 1]])
        seconds = self.transfer_time(
            jitter * size * self.model_bits,
            lambda network: network.link_rate(links, transfers, directed=directed),
            starts=starts,
        )
        return seconds + jitter * self.latency

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

    def other_times(self, time: float) -> FloatArray:
        """Seconds of a round besides steps and transfers, where they were recorded, [N]."""
        if self.trace is None or not self.trace.other_time:
            return np.zeros(self.workers)
        return np.array([self.trace.other_time_at(worker, time) for worker in range(self.workers)])

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
    batch_size: int = 32,
) -> World:
    """The world of an experiment; model_bits is the true size, which the config may override.
    batch_size: of a local step, for devices that are known by their time per sample."""
    trace: Trace | None = None
    if config.trace:
        with about("world.trace"):
            trace = read_trace(config.trace, workers=workers, repeat=config.trace_repeat)
    devices = build_devices(config, workers=workers, seed=seed)
    constant: FloatArray | None = None
    recorded: RecordedPresence | None = trace if trace is not None and trace.presence else None
    if config.device_trace or config.availability_trace:
        clients, times = read_clients(config, workers=workers, seed=seed, batch_size=batch_size)
        if clients is not None:
            devices, constant = clients
        if times is not None and recorded is not None:
            raise ConfigError(
                f"is set, but {config.trace} says who is available as well",
                key="world.availability_trace",
                allowed="one of world.availability_trace and a world.trace with availability",
                fix="remove world.availability_trace, or the column available",
            )
        recorded = times or recorded
    unit, server = BITS[config.bandwidth.unit], config.server
    return World(
        workers=workers,
        devices=devices,
        bandwidth=Bandwidth(config.bandwidth, workers=workers, seed=seed),
        availability=build_availability(
            config, workers=workers, rounds=rounds, seed=seed, recorded=recorded
        ),
        trace=trace,
        model_bits=config.model_megabits * 1e6 if config.model_megabits else model_bits,
        unit_bits=unit,
        sharing=config.bandwidth.sharing,
        latency=config.bandwidth.latency,
        follows_trace=config.bandwidth.during_transfer == "trace",
        monitor_error=config.monitor_error,
        seed=seed,
        lines=build_lines(config.bandwidth, workers=workers, seed=seed),
        jitter=Jitter(config.bandwidth.jitter, seed=seed) if config.bandwidth.jitter else None,
        constant=constant,
        server=ServerLine(unit * server.uplink, unit * server.downlink) if server else None,
    )

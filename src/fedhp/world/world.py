"""The world of an experiment: who is available, how fast, over which links, at which time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedhp.config import WorldConfig
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray
from fedhp.world.availability import Availability, build_availability
from fedhp.world.devices import Devices, build_devices
from fedhp.world.network import BITS, Bandwidth
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
    )

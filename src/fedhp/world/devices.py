"""How long a local step takes on each worker: Gaussian per step, times a per-round drift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedhp.config import DeviceConfig, WorldConfig
from fedhp.errors import ConfigError
from fedhp.seeds import Purpose, generator
from fedhp.types import FloatArray

DEVICES = {
    "laptop": DeviceConfig(step_time=0.03),
    "xavier_nx": DeviceConfig(step_time=0.1),
    "jetson_tx2": DeviceConfig(step_time=0.3),
}


@dataclass(frozen=True, slots=True)
class Devices:
    """The machines of a federation."""

    seed: int
    names: tuple[str, ...]  # [N]
    mean: FloatArray  # [N] s per step
    sd: FloatArray  # [N] share of the mean
    drift: float
    floor: float

    def step_times(self, worker: int, round_index: int, steps: int) -> FloatArray:
        """Times of the first `steps` steps of a round, s. More steps only append."""
        rng = generator(self.seed, Purpose.STEP_TIMES, worker, round_index)
        wobble = 1 + float(self.sd[worker]) * rng.standard_normal(steps)
        drift = 1.0
        if self.drift > 0:
            factor = generator(self.seed, Purpose.DRIFT, worker, round_index).standard_normal()
            drift = 1 + self.drift * float(factor)
        mean = float(self.mean[worker])
        return np.asarray(mean * np.maximum(wobble * drift, self.floor), dtype=np.float64)


def build_devices(config: WorldConfig, *, workers: int, seed: int) -> Devices:
    """A device for every worker: equal shares (or counts), shuffled by the seed."""
    known = {**DEVICES, **config.device}
    names = _assign(config, workers)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"unknown device {name!r}",
                key="world.devices",
                allowed=", ".join(sorted(known)),
                fix=f"use one of these, or describe it in [world.device.{name}]",
            )
    if config.shuffle_devices:
        order = generator(seed, Purpose.DEVICES).permutation(workers)
        names = [names[i] for i in order]
    return Devices(
        seed=seed,
        names=tuple(names),
        mean=np.array([known[name].step_time for name in names]),
        sd=np.array([known[name].sd for name in names]),
        drift=config.drift,
        floor=config.floor,
    )


def _assign(config: WorldConfig, workers: int) -> list[str]:
    if isinstance(config.devices, dict):
        names = [name for name, count in config.devices.items() for _ in range(count)]
        if len(names) != workers:
            raise ConfigError(
                f"the counts add up to {len(names)} devices, but workers = {workers}",
                key="world.devices",
                allowed=f"counts that add up to {workers}",
                fix="change a count, or give a list of names for equal shares",
                others=("workers",),
            )
        return names
    if not config.devices:
        raise ConfigError(
            "the list of devices is empty",
            key="world.devices",
            allowed="at least one device name",
            fix='set world.devices = ["laptop"]',
        )
    return [config.devices[i % len(config.devices)] for i in range(workers)]

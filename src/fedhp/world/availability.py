"""Which workers are available in a round: listed absences and random ones, never all workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedhp.config import AbsenceConfig, WorldConfig
from fedhp.errors import ConfigError
from fedhp.seeds import Purpose, generator
from fedhp.types import BoolArray


@dataclass(frozen=True, slots=True)
class Availability:
    """Availability as a function of (seed, worker, round)."""

    seed: int
    workers: int
    absences: tuple[AbsenceConfig, ...]
    probability: float

    def at(self, round_index: int) -> BoolArray:
        """Which workers are available, [N]."""
        available = np.ones(self.workers, dtype=np.bool_)
        for absence in self.absences:
            if absence.first <= round_index <= absence.last:
                available[absence.worker] = False
        if self.probability > 0:
            draws = generator(self.seed, Purpose.AVAILABILITY, round_index).random(self.workers)
            staying = available & (draws >= self.probability)
            # An empty federation cannot train: the worker least likely to leave stays.
            if not staying.any():
                staying = available & (draws == draws[available].max())
            available = staying
        return available


def build_availability(
    config: WorldConfig, *, workers: int, rounds: int, seed: int, source: str = ""
) -> Availability:
    """The availability of an experiment; a round without any worker is refused."""
    changes = sorted({absence.first for absence in config.away if absence.first <= rounds})
    listed = Availability(seed, workers, tuple(config.away), 0.0)
    for round_index in changes:
        if not listed.at(round_index).any():
            raise ConfigError(
                f"all {workers} workers are away in round {round_index}",
                key="world.away",
                source=source,
                allowed="at least one worker present in every round",
                fix="shorten an absence",
            )
    return Availability(seed, workers, tuple(config.away), config.away_probability)

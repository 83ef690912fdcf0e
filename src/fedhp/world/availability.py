"""Who is there in which round: listed absences and random ones; someone always is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedhp.config import AbsenceConfig, WorldConfig
from fedhp.errors import ConfigError
from fedhp.seeds import Purpose, generator
from fedhp.types import BoolArray


@dataclass(frozen=True, slots=True)
class Availability:
    """Presence as a function of (seed, worker, round)."""

    seed: int
    workers: int
    absences: tuple[AbsenceConfig, ...]
    probability: float

    def at(self, round_index: int) -> BoolArray:
        """Which workers are there, [N]."""
        there = np.ones(self.workers, dtype=np.bool_)
        for absence in self.absences:
            if absence.first <= round_index <= absence.last:
                there[absence.worker] = False
        if self.probability > 0:
            draws = generator(self.seed, Purpose.AVAILABILITY, round_index).random(self.workers)
            chance = there & (draws >= self.probability)
            # An empty federation cannot train: the worker least likely to leave stays.
            there = chance if chance.any() else there & (draws == draws[there].max())
        return there


def build_availability(
    config: WorldConfig, *, workers: int, rounds: int, seed: int, source: str = ""
) -> Availability:
    """Check that no round is left without a worker."""
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

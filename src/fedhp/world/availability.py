"""Which workers are available in a round: listed absences, random ones, and recorded ones that
depend on virtual time; never are all workers away."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from fedhp.config import AbsenceConfig, WorldConfig
from fedhp.errors import ConfigError
from fedhp.seeds import Purpose, generator
from fedhp.types import BoolArray

if TYPE_CHECKING:
    from fedhp.world.fedscale import ClientAvailability
    from fedhp.world.trace import Trace


RecordedPresence: TypeAlias = "Trace | ClientAvailability"


@dataclass(frozen=True, slots=True)
class Availability:
    """Availability as a function of (seed, worker, round), and of time where it was recorded."""

    seed: int
    workers: int
    absences: tuple[AbsenceConfig, ...]
    probability: float
    recorded: RecordedPresence | None = None

    def at(self, round_index: int, time: float = 0.0) -> BoolArray:
        """Which workers are available in a round that starts at this virtual time, [N]."""
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
        if self.recorded is None:
            return available
        here = available & self.recorded.available_at(time)
        if not here.any():
            # Nobody is there: the one that comes back first is taken as there already.
            away = np.where(available, self.recorded.seconds_away(time), np.inf)
            soonest = int(np.argmin(away)) if np.isfinite(away).any() else int(np.argmax(available))
            here[soonest] = True
        return here


def build_availability(
    config: WorldConfig,
    *,
    workers: int,
    rounds: int,
    seed: int,
    recorded: RecordedPresence | None = None,
) -> Availability:
    """The availability of an experiment; a round without any worker is refused."""
    changes = sorted({absence.first for absence in config.away if absence.first <= rounds})
    listed = Availability(seed, workers, tuple(config.away), 0.0)
    for round_index in changes:
        if not listed.at(round_index).any():
            raise ConfigError(
                f"all {workers} workers are away in round {round_index}",
                key="world.away",
                allowed="at least one worker present in every round",
                fix="shorten an absence",
            )
    return replace(listed, probability=config.away_probability, recorded=recorded)

"""An algorithm to start from: random pairs, and more local steps for faster workers.

fedhp run experiment.toml algorithm.name=own_algorithm:RandomPairs
fedhp compare experiment.toml --algorithms own_algorithm:RandomPairs,fedhp
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from fedhp import Decision, Federation, NeighborMixing, Observation, Plan, Reports
from fedhp.graph import topology_from
from fedhp.seeds import Purpose, generator
from fedhp.types import FloatArray, LinkVerdict


@dataclass(frozen=True, slots=True)
class PairsMemory:
    """What the algorithm remembers between rounds: arrays, numbers and strings only."""

    seed: int
    mean_steps: int
    step_time: FloatArray  # [workers] seconds per local step; NaN until a worker has reported


class RandomPairs:
    """Keyword-only parameters are settings: algorithm.max_steps."""

    def __init__(self, *, max_steps: Annotated[int, Field(ge=1)] = 100) -> None:
        self.max_steps = max_steps

    def start(self, federation: Federation) -> PairsMemory:
        """The state before round 1."""
        unknown = np.full(federation.workers, np.nan)
        return PairsMemory(federation.seed, federation.local_steps, unknown)

    def plan(
        self, state: PairsMemory, observation: Observation, reports: Reports
    ) -> tuple[PairsMemory, Plan]:
        """Decide one round. It must depend on the arguments alone, so that runs can be repeated."""
        measured = np.isfinite(reports.step_time)
        step_time = np.where(measured, reports.step_time, state.step_time)

        # who exchanges models with whom
        rng = generator(state.seed, Purpose.ALGORITHM, observation.round_index)
        shuffled = rng.permutation(np.flatnonzero(observation.available))
        half = len(shuffled) // 2
        pairs = np.stack([shuffled[:half], shuffled[half : 2 * half]], axis=1)
        topology = topology_from(len(step_time), pairs)

        # how many local steps each worker takes; the first round does not know the speeds yet
        known = np.isfinite(step_time)
        mean_time = step_time[known].mean() if known.any() else 1.0
        steps = state.mean_steps * mean_time / np.where(known, step_time, mean_time)
        steps = np.clip(steps, 1, self.max_steps).astype(np.int64)

        plan = Plan(
            exchange=NeighborMixing(topology),
            local_steps=np.where(observation.available, steps, 0),
            decision=Decision(  # what `fedhp explain` shows
                links=topology.links,
                verdicts=np.full(len(topology.links), LinkVerdict.DRAWN, dtype=np.int64),
                link_time=observation.network.link_time(topology.links, topology.degrees),
                rule="random pairs; more steps for faster workers",
            ),
        )
        return replace(state, step_time=step_time), plan

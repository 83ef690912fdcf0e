"""Your own algorithm: random pairs, and steps in proportion to each worker's speed.

In every round the workers are paired at random; a worker that is twice as fast takes twice as
many steps. Run it: fedhp run examples/own_algorithm.toml
Compare it: fedhp compare examples/own_algorithm.toml --algorithms own_algorithm:Pairs,fedhp
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedhp import Decision, Federation, NeighborMixing, Observation, Plan, Reports
from fedhp.algorithms import Range
from fedhp.graph import topology_from
from fedhp.seeds import Purpose, generator
from fedhp.types import FloatArray, LinkVerdict


@dataclass(frozen=True, slots=True)
class PairsState:
    """What the algorithm remembers: arrays, numbers and strings only."""

    seed: int
    mean_steps: int
    step_time: FloatArray  # [N] s


class Pairs:
    """The keyword-only parameters are settings; they come from [algorithm] in the file."""

    tunable: ClassVar = {"max_steps": Range(20, 500)}  # what `fedhp tune` tries

    def __init__(self, *, max_steps: Annotated[int, Field(ge=1)] = 100) -> None:
        self.max_steps = max_steps

    def start(self, federation: Federation) -> PairsState:
        """The state before round 1."""
        unknown = np.full(federation.workers, np.nan)
        return PairsState(federation.seed, federation.local_steps, unknown)

    def plan(
        self, state: PairsState, observation: Observation, reports: Reports
    ) -> tuple[PairsState, Plan]:
        """A pure function: what it has to remember goes into the state that it returns."""
        measured = np.isfinite(reports.step_time)
        step_time = np.where(measured, reports.step_time, state.step_time)
        state = replace(state, step_time=step_time)

        # Randomness depends only on the seed and the round, so that a run can be repeated.
        rng = generator(state.seed, Purpose.ALGORITHM, observation.round_index)
        available = rng.permutation(np.flatnonzero(observation.available))
        half = len(available) // 2
        pairs = np.stack([available[:half], available[half : 2 * half]], axis=1)
        topology = topology_from(len(step_time), pairs)

        speed = 1 / step_time
        wanted = state.mean_steps * speed / np.nanmean(speed)
        steps = np.clip(np.nan_to_num(wanted, nan=1.0), 1, self.max_steps).astype(np.int64)
        return state, Plan(
            exchange=NeighborMixing(topology),
            local_steps=np.where(observation.available, steps, 0),
            decision=Decision(
                links=topology.links,
                verdicts=np.full(len(topology.links), LinkVerdict.DRAWN, dtype=np.int64),
                link_time=observation.network.link_time(topology.links, topology.degrees),
                rule="random pairs; steps in proportion to speed",
            ),
        )

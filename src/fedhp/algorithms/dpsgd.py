"""D-PSGD (Lian et al., 2017): a fixed ring, the same number of steps for every worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedhp.algorithms.base import STEPS, Federation, Observation, Settings, Space
from fedhp.graph import MixingRule, ring_over, topology_from
from fedhp.seeds import Purpose, generator
from fedhp.types import (
    BoolArray,
    Decision,
    IntArray,
    LinkVerdict,
    NeighborMixing,
    Plan,
    Reports,
    StepReason,
    StepRule,
    Topology,
)


@dataclass(frozen=True, slots=True)
class RingState:
    """The order of the workers on the ring, and the steps of a round."""

    order: IntArray  # [N]
    steps: int


class DPSGD(Settings):
    """Ring over a random permutation, fixed steps."""

    uses_rounds: ClassVar[bool] = False
    tunable: ClassVar[Space] = {**Settings.tunable, "steps": STEPS}
    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None  # none: training.local_steps
    weights: MixingRule = "max_degree"

    def start(self, federation: Federation) -> RingState:
        """Draw the ring."""
        return RingState(ring_order(federation), self.steps or federation.local_steps)

    def plan(
        self, state: RingState, observation: Observation, reports: Reports
    ) -> tuple[RingState, Plan]:
        """The same ring and steps every round."""
        rule = StepReason(StepRule.FIXED_STEPS, {"steps": state.steps})
        return state, ring_plan(
            state.order, observation, steps=state.steps, weights=self.weights, rule=rule
        )


def ring_order(federation: Federation) -> IntArray:
    """A random order of the workers, the same for every ring algorithm of a seed."""
    return generator(federation.seed, Purpose.ALGORITHM, 0).permutation(federation.workers)


def ring_plan(
    order: IntArray, observation: Observation, *, steps: int, weights: str, rule: StepReason
) -> Plan:
    """A plan on the ring of the available workers: it skips those that are away."""
    topology = present_ring(order, observation.available)
    links = topology.links
    return Plan(
        exchange=NeighborMixing(topology, weights),
        local_steps=np.where(observation.available, steps, 0).astype(np.int64),
        decision=Decision(
            links=links,
            verdicts=np.full(len(links), LinkVerdict.FIXED, dtype=np.int64),
            link_time=observation.network.link_time(links, topology.degrees),
            rule=rule,
        ),
    )


def present_ring(order: IntArray, available: BoolArray) -> Topology:
    """The ring over the available workers, in the drawn order."""
    return topology_from(len(order), ring_over(order[available[order]]))

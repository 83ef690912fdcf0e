"""D-PSGD (Lian et al., 2017): a fixed ring, the same number of steps for every worker.

Instead of its ring it can mix on the topology of the experiment, also on one that changes over
rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field

from fedhp.algorithms.base import STEPS, Federation, Observation, Settings, Space
from fedhp.algorithms.traits import About, Traits
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.exchange import NeighborMixing
from fedhp.graph import MixingRule, among, ring_over, topology_from
from fedhp.seeds import Purpose, generator
from fedhp.topologies import ADDED_NAMES
from fedhp.types import (
    Decision,
    IntArray,
    LinkVerdict,
    Plan,
    Reports,
    StepReason,
    StepRule,
)

Neighbors: TypeAlias = Literal["ring", "base"]


@dataclass(frozen=True, slots=True)
class RingState:
    """The order of the workers on the ring, and the steps of a round."""

    order: IntArray  # [N]
    steps: int


class OnRing(Settings):
    """Base of those with fixed steps that mix on a ring, or on the topology of the experiment."""

    traits: ClassVar[Traits] = Traits(
        uses_rounds=False, follows_changes=True, local_epochs=True, plans_by="world"
    )
    tunable: ClassVar[Space] = {**Settings.tunable, "steps": STEPS}
    steps: int | None = None
    weights: MixingRule = "max_degree"
    neighbors: Neighbors | None = None  # base: those of [topology]; none: its own ring

    def configured(self) -> Traits:
        return replace(
            super().configured(),
            uses_topology=self.neighbors == "base",
            own_steps="" if self.steps is None else "steps",
        )

    def check_experiment(self, experiment: Experiment, federation: Federation) -> None:
        """Refuse a topology that the ring would silently replace, and weights that the topology
        replaces."""
        name = experiment.topology.name
        added = name in ADDED_NAMES or federation.changing is not None
        if self.neighbors is None and added:
            raise ConfigError(
                f"{experiment.algorithm.name!r} mixes on its own ring by default, so topology.name "
                f"= {name!r} would have no effect",
                key="algorithm.neighbors",
                allowed="'base' (the links of [topology]) or 'ring'",
                fix=f"set algorithm.neighbors = 'base' (in a comparison: "
                f"{experiment.algorithm.name}:neighbors=base)",
                others=("topology.name",),
            )
        given = self.neighbors == "base" and "weights" in self.model_fields_set
        if given and federation.topology_at(1).weights is not None:
            raise ConfigError(
                f"has no effect: {name!r} has its own weights",
                key="algorithm.weights",
                allowed="no algorithm.weights with this topology",
                fix="remove algorithm.weights",
            )

    def start(self, federation: Federation) -> RingState:
        """Draw the ring."""
        steps = federation.local_steps if self.steps is None else self.steps
        return RingState(ring_order(federation), steps)

    def mixing_plan(
        self,
        state: RingState,
        observation: Observation,
        *,
        steps: int | IntArray,
        rule: StepReason,
    ) -> Plan:
        """A plan on the ring of the available workers, which skips those that are away, or on the
        links of the round's topology between available workers."""
        verdict, order = LinkVerdict.FIXED, state.order
        if self.neighbors == "base":
            assert observation.topology is not None
            topology = among(observation.topology, observation.available)
            verdict = LinkVerdict.SCHEDULED if observation.changing else LinkVerdict.FIXED
        else:
            # The ring over the available workers, in the drawn order.
            topology = topology_from(len(order), ring_over(order[observation.available[order]]))
        links = topology.links
        return Plan(
            exchange=NeighborMixing(topology, self.weights),
            local_steps=np.where(observation.available, steps, 0).astype(np.int64),
            decision=Decision(
                links=links,
                verdicts=np.full(len(links), verdict, dtype=np.int64),
                link_time=observation.network.link_time(links, topology.degrees),
                rule=rule,
            ),
        )


class DPSGD(OnRing):
    """Ring over a random permutation, fixed steps."""

    about: ClassVar[About] = About(
        name="D-PSGD",
        color="#0072B2",
        dashes="--",
        marker="s",
        planners=("",),
        on_topology="neighbors=base",
    )
    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None  # none: training.local_steps

    def plan(
        self, state: RingState, observation: Observation, reports: Reports
    ) -> tuple[RingState, Plan]:
        """The same ring and steps every round, or the topology of the round."""
        in_epochs = observation.epoch_steps is not None
        rule = StepRule.FIXED_EPOCHS if in_epochs else StepRule.FIXED_STEPS
        return state, self.mixing_plan(
            state,
            observation,
            steps=observation.fixed_steps(state.steps),
            rule=StepReason(rule, observation.step_numbers(state.steps)),
        )


def ring_order(federation: Federation) -> IntArray:
    """A random order of the workers, the same for every ring algorithm of a seed."""
    return generator(federation.seed, Purpose.ALGORITHM, 0).permutation(federation.workers)

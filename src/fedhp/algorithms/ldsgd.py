"""LD-SGD (Li et al., 2019): I1 local steps, then I2 communicating ones, on the ring.

A round ends with a communication, so rounds cycle through I1 + 1, 1, ..., 1 local steps.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedhp.algorithms.base import Observation
from fedhp.algorithms.dpsgd import OnRing, RingState
from fedhp.algorithms.traits import About
from fedhp.types import Plan, Reports, StepReason, StepRule


class LDSGD(OnRing):
    """Local and communicating phases in turn."""

    about: ClassVar[About] = About(
        name="LD-SGD",
        color="#56B4E9",
        dashes=":",
        marker="D",
        work=0.53,
        planners=("",),
        on_topology="neighbors=base",
    )
    steps: Annotated[int, Field(ge=0, le=100_000)] | None = None  # I1; none: training.local_steps
    communications: Annotated[int, Field(ge=1)] = 2  # I2

    def plan(
        self, state: RingState, observation: Observation, reports: Reports
    ) -> tuple[RingState, Plan]:
        """A long round first, then short ones, then again."""
        phase = (observation.round_index - 1) % self.communications
        in_epochs = observation.epoch_steps is not None
        steps = observation.fixed_steps(state.steps) + 1 if phase == 0 else 1
        local = StepRule.EPOCH_PHASE if in_epochs else StepRule.LOCAL_PHASE
        rule = (
            StepReason(local, observation.step_numbers(state.steps))
            if phase == 0
            else StepReason(StepRule.COMMUNICATING_PHASE)
        )
        return state, self.mixing_plan(state, observation, steps=steps, rule=rule)

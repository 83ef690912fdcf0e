"""FedAvg (McMahan et al., 2017) over a server, and DiLoCo (Douillard et al., 2023) with momentum.

In every round a share of the workers is drawn. They receive the server's model, train, and send
their models back; the server steps by their mean change, with Nesterov momentum if it is set.
Run it: fedhp run examples/fedavg.toml
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedhp import Decision, Federation, Observation, Plan, Reports, ServerAverage
from fedhp.algorithms import Traits
from fedhp.algorithms.base import Settings
from fedhp.rule import Rows, Rule, Step, Vector, Vectors
from fedhp.seeds import Purpose, generator


@dataclass(frozen=True, slots=True)
class Draws:
    """It never changes."""

    seed: int
    steps: int


class OuterStep(Rule):
    """The server steps by d = rate ((1 + k) u + k^2 m) for the mean change u; then m <- u + k m.
    d is linear in u: a worker sends what the server makes of its change, and knows m from d."""

    vectors: ClassVar = (Vector("momentum"),)

    def __init__(self, rate: float, factor: float) -> None:
        self.rate, self.factor = rate, factor

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """The server's model after a step by this change alone."""
        k = self.factor
        return x0 + self.rate * ((1 + k) * (x - x0) + k * k * v["momentum"])

    def receive(self, x0: Rows, x: Rows, v: Vectors, mixed: Rows, step: Step) -> Rows:
        """The server's model, and its momentum."""
        v["momentum"] = ((mixed - x0) / self.rate + self.factor * v["momentum"]) / (1 + self.factor)
        return mixed


class FedAvg(Settings):
    """DiLoCo: share = 1, rate = 0.7, momentum = 0.9, with AdamW and many local steps."""

    traits: ClassVar = Traits(uses_rounds=False, uses_topology=False, local_epochs=True)
    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    rate: Annotated[float, Field(gt=0, le=2)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def rule(self) -> Rule:
        """Nothing, where the server takes the mean as it is."""
        plain = self.rate == 1 and not self.momentum
        return Rule() if plain else OuterStep(self.rate, self.momentum)

    def start(self, federation: Federation) -> Draws:
        """What the draws depend on."""
        return Draws(federation.seed, federation.local_steps)

    def plan(self, state: Draws, observation: Observation, reports: Reports) -> tuple[Draws, Plan]:
        """Draw those who take part; their models count equally."""
        available = np.flatnonzero(observation.available)
        rng = generator(state.seed, Purpose.ALGORITHM, observation.round_index)
        count = min(len(available), max(1, round(self.share * len(observation.available))))
        weights = np.zeros(len(observation.available))
        weights[rng.choice(available, count, replace=False)] = 1.0
        steps = np.where(weights > 0, observation.fixed_steps(state.steps), 0)
        decision = Decision.without_links("a share of the workers takes part")
        return state, Plan(ServerAverage(weights), decision, steps)

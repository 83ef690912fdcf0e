"""SCAFFOLD (Karimireddy et al., 2020): control variates against the drift of local steps.

In every round a share of the workers receives the server's x and c. They step along g - c_i + c;
c_i becomes what their own steps were along, and c moves by the change of all c_i.
Run it: fedhp run examples/scaffold.toml
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


class Controls(Rule):
    """`own` is c_i and stays; `control` is c: a worker sends c + share (new c_i - c_i), and the
    mean of the participants is the c of the next round."""

    vectors: ClassVar = (Vector("own"), Vector("control", travels=True))

    def __init__(self, share: float, server_rate: float) -> None:
        self.share, self.server_rate = share, server_rate

    def gradient(self, g: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """Along the mean of all workers instead of the own samples."""
        return g - v["own"] + v["control"]

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """Option II of the paper: the mean gradient of the steps that were taken."""
        change = (x0 - x) / (step.local_steps * step.learning_rate) - v["control"]
        v["own"] = v["own"] + change
        v["control"] = v["control"] + self.share * change
        return x0 + self.server_rate * (x - x0)


class Scaffold(Settings):
    """Fixed steps of those who take part; use it with plain SGD, and a share that gives a whole
    number of workers."""

    traits: ClassVar = Traits(uses_rounds=False, uses_topology=False, local_epochs=True)
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    server_rate: Annotated[float, Field(gt=0, le=2)] = 1.0

    def rule(self) -> Controls:
        """What a worker does."""
        return Controls(self.share, self.server_rate)

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

"""SCAFFOLD (Karimireddy et al., 2020): control variates against the drift of local steps.

A worker steps along g - c_i + c. Afterwards c_i becomes what its own steps were along, and c the
mean of all c_i. The full mesh gives every worker the mean that a server would compute.
Run it: fedhp run examples/scaffold.toml
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedhp.algorithms.dpsgd import DPSGD, Neighbors
from fedhp.rule import Rows, Rule, Step, Vector, Vectors


class Controls(Rule):
    """`own` is c_i; `mean` is c: it travels as c_i, and comes back as the mean."""

    vectors: ClassVar = (Vector("own"), Vector("mean", travels=True))

    def __init__(self, server_rate: float) -> None:
        self.server_rate = server_rate

    def gradient(self, g: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """Along the mean of all workers instead of the own samples."""
        return g - v["own"] + v["mean"]

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """Option II of the paper: the mean gradient of the steps that were taken."""
        v["own"] = v["own"] - v["mean"] + (x0 - x) / (step.local_steps * step.learning_rate)
        v["mean"] = v["own"]
        return x

    def receive(self, x0: Rows, x: Rows, v: Vectors, mixed: Rows, step: Step) -> Rows:
        """All workers begin a round with the same model: mixed - x0 is the mean change."""
        return x0 + self.server_rate * (mixed - x0)


class Scaffold(DPSGD):
    """Fixed steps, and the mean of all models; use it with plain SGD and topology.name = 'full'."""

    neighbors: Neighbors | None = "base"
    server_rate: Annotated[float, Field(gt=0, le=2)] = 1.0

    def rule(self) -> Controls:
        """What a worker does."""
        return Controls(self.server_rate)

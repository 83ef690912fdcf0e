"""K-GT (Liu et al., 2023): gradient tracking with several local steps, on any topology.

Every local step takes g + c_i, and the c_i sum to 0. After a round, c_i moves from the worker's own
mean gradient z_i to that of its neighbors: c_i <- c_i - z_i + sum_j w_ij z_j.
Run it: fedhp run examples/k_gt.toml
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedhp.algorithms.dpsgd import DPSGD
from fedhp.rule import Rows, Rule, Step, Vector, Vectors


class Correction(Rule):
    """`correction` is c_i and stays; `slope` is z_i, which travels and is mixed."""

    vectors: ClassVar = (Vector("correction"), Vector("slope", travels=True))

    def __init__(self, outer_rate: float) -> None:
        self.outer_rate = outer_rate

    def gradient(self, g: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """The own gradient, corrected towards that of all."""
        return g + v["correction"]

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """z_i is the mean of the steps that were taken, so that it has c_i in it."""
        v["slope"] = (x0 - x) / (step.local_steps * step.learning_rate)
        v["correction"] = v["correction"] - v["slope"]
        return x0 + self.outer_rate * (x - x0)

    def receive(self, x0: Rows, x: Rows, v: Vectors, mixed: Rows, step: Step) -> Rows:
        """The slope is now the mean of the neighbors'."""
        v["correction"] = v["correction"] + v["slope"]
        return mixed


class KGT(DPSGD):
    """D-PSGD with corrected local steps; use it with plain SGD."""

    outer_rate: Annotated[float, Field(gt=0, le=2)] = 1.0

    def rule(self) -> Correction:
        """What a worker does."""
        return Correction(self.outer_rate)

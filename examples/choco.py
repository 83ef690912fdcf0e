"""CHOCO-SGD (Koloskova, Stich, Jaggi, 2019): only the largest changes travel, the mean is kept.

Every worker has a public copy of its model that all its neighbors know. A round sends what
[exchange] cuts out of the difference to it, and moves the model towards the neighbors' copies:
x <- x + gamma * sum_j w_ij (copy_j - copy_i).
Run it: fedhp run examples/choco.toml
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from fedhp.algorithms.dpsgd import DPSGD
from fedhp.rule import Rows, Rule, Step, Vector, Vectors


class PublicCopies(Rule):
    """Between rounds the vector is the public copy; during an exchange it holds the model."""

    vectors: ClassVar = (Vector("copy"),)
    public: ClassVar = True

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def send(self, x0: Rows, x: Rows, v: Vectors, step: Step) -> Rows:
        """The new public copy."""
        copy = v["copy"]
        v["copy"] = x
        return copy + step.compress(x - copy)

    def receive(self, x0: Rows, x: Rows, v: Vectors, mixed: Rows, step: Step) -> Rows:
        """The weights of a worker sum to 1: what is mixed is w_ii copy_i + sum_j w_ij copy_j."""
        trained = v["copy"]
        v["copy"] = x
        return trained + self.gamma * (mixed - x)


class Choco(DPSGD):
    """D-PSGD with public copies; gamma has to be smaller the fewer values travel."""

    gamma: Annotated[float, Field(gt=0, le=1)] = 0.4

    def rule(self) -> PublicCopies:
        """What a worker does."""
        return PublicCopies(self.gamma)

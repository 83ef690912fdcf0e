"""RelaySGD (Vogels et al., 2021): sums of models are passed on along the links of a tree.

A worker sends to each neighbor its own model plus what has come last from all its other neighbors,
and how many models that are. So it has, with a delay, one model of each worker, and takes their
mean; the initial model stands for those that have not come yet.
Run it: fedhp run examples/relaysgd.toml
"""

from __future__ import annotations

from typing import ClassVar

from fedhp import Federation
from fedhp.algorithms.dpsgd import DPSGD, Neighbors
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.rule import LastMessages, Rows, Rule, Step, Vector, Vectors


class Relay(Rule):
    """`count` is how many models a message is the sum of, and `start` the initial model."""

    vectors: ClassVar = (
        Vector("count", start="one", scalar=True, travels=True),
        Vector("start", start="model"),
    )

    def send_to(self, x: Rows, v: Vectors, heard: LastMessages, step: Step) -> Rows:
        """The own model and what the other neighbors have sent, added up."""
        v["count"] = v["count"] + heard["count"].sum(0, keepdim=True)
        return x + heard.x.sum(0, keepdim=True)

    def receive_from(self, x0: Rows, x: Rows, v: Vectors, heard: LastMessages, step: Step) -> Rows:
        """The mean of one model of each worker."""
        missing = step.workers - 1 - heard["count"].sum(0, keepdim=True)
        return (x + heard.x.sum(0, keepdim=True) + missing * v["start"]) / step.workers


class RelaySGD(DPSGD):
    """Fixed steps on [topology], which has to be a tree."""

    neighbors: Neighbors | None = "base"

    def rule(self) -> Relay:
        """What a worker does."""
        return Relay()

    def check_experiment(self, experiment: Experiment, federation: Federation) -> None:
        """Refuse a cycle: on it a model would be added up again and again."""
        if self.neighbors != "base":
            raise ConfigError(
                f"is {self.neighbors!r}, but RelaySGD needs a tree",
                key="algorithm.neighbors",
                allowed="'base' (the links of [topology])",
                fix="remove algorithm.neighbors",
            )
        super().check_experiment(experiment, federation)
        links, workers = len(federation.topology_at(1).links), federation.workers
        if links != workers - 1:  # it is connected
            raise ConfigError(
                f"{experiment.topology.name!r} has {links} links between {workers} workers, so it "
                "has cycles, but RelaySGD needs a tree",
                key="topology.name",
                allowed=f"a tree: connected, with {workers - 1} links",
                fix="set topology.name = 'star', or 'links' with topology.pairs that are a tree",
            )

"""An asynchronous method with boxes: AGP (asynchronous gradient push).

A worker that is ready adds to its own mass what its box holds, trains, and pushes equal shares of
mass and model to its neighbors, without waiting for anyone. Push-sum divides by the mass, so that
uneven traffic does not pull the models away from their mean. A worker that has received nothing
since its last push keeps its mass.
Run it: fedhp run examples/agp.toml
Compare it: fedhp compare examples/agp.toml --algorithms agp:AGP,adpsgd,dpsgd
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedhp import Action, Delivery, Federation, Observation
from fedhp.algorithms import Traits
from fedhp.graph import neighbor_lists
from fedhp.rule import PushSum, Rule
from fedhp.types import IntArray


@dataclass(frozen=True, slots=True)
class Graph:
    """Nothing changes from turn to turn."""

    steps: int
    start: IntArray  # [N + 1] where each worker's neighbors begin
    neighbors: IntArray  # [2E] worker by worker


class AGP:
    """Messages are added in the receivers' boxes; the mass of a message leaves its sender."""

    traits: ClassVar = Traits(uses_rounds=False, plans_by="world", mailbox="sum")

    def rule(self) -> Rule:
        """z is the model; w z + the change is sent together with w."""
        return PushSum()

    def start(self, federation: Federation) -> Graph:
        """The state before the first turn."""
        return Graph(federation.local_steps, *neighbor_lists(federation.base_topology))

    def act(
        self, state: Graph, worker: int, observation: Observation, *, turn: int
    ) -> tuple[Graph, Action]:
        """Train, then push, if something has come since the last push."""
        if turn and not observation.received:
            return state, Action(state.steps)
        peers = state.neighbors[state.start[worker] : state.start[worker + 1]].tolist()
        share = 1 / (len(peers) + 1)
        push = Delivery(to=tuple(peers), weights=(share,) * len(peers))
        return state, Action(state.steps, mail=push)

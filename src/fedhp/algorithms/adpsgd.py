"""AD-PSGD (Lian et al., 2018): asynchronous; a free worker averages with one random neighbor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedhp.algorithms.base import Federation, Observation, Settings
from fedhp.algorithms.dpsgd import present_ring, ring_order
from fedhp.seeds import Purpose, generator
from fedhp.types import Action, BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class ADState:
    """What an action is drawn from."""

    seed: int
    steps: int
    order: IntArray  # [N] of the ring
    base_links: IntArray  # [E, 2]


class ADPSGD(Settings):
    """Fixed steps, then a random neighbor."""

    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None  # none: training.local_steps
    neighbors: Literal["base", "ring"] = "base"

    def start(self, federation: Federation) -> ADState:
        """Nothing to learn: only the graph and the steps."""
        return ADState(
            seed=federation.seed,
            steps=self.steps or federation.local_steps,
            order=ring_order(federation),
            base_links=federation.base_topology.links,
        )

    def act(
        self, state: ADState, worker: int, observation: Observation, *, turn: int
    ) -> tuple[ADState, Action]:
        """Train, then pick one of the neighbors that are there."""
        peers = self._peers(state, worker, observation.available)
        if not len(peers):
            return state, Action(state.steps, None)
        rng = generator(state.seed, Purpose.ALGORITHM, 1, worker, turn)
        return state, Action(state.steps, int(peers[rng.integers(len(peers))]))

    def _peers(self, state: ADState, worker: int, available: BoolArray) -> IntArray:
        links = (
            present_ring(state.order, available).links
            if self.neighbors == "ring"
            else state.base_links
        )
        ends = np.concatenate([links[links[:, 0] == worker, 1], links[links[:, 1] == worker, 0]])
        return np.sort(ends[available[ends]])

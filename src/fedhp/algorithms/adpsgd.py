"""AD-PSGD (Lian et al., 2018): asynchronous; a free worker averages with one random neighbor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedhp.algorithms.base import STEPS, Federation, Observation, Range, Settings, Space
from fedhp.algorithms.dpsgd import ring_order
from fedhp.algorithms.traits import About, Traits
from fedhp.graph import neighbor_lists
from fedhp.seeds import Purpose, generator
from fedhp.types import Action, BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class ADState:
    """What an action is drawn from."""

    seed: int
    steps: int
    order: IntArray  # [N] of the ring
    place: IntArray  # [N] of each worker in that order
    start: IntArray  # [N + 1] where each worker's neighbors begin
    neighbors: IntArray  # [2E] of the base topology, worker by worker, ascending


class ADPSGD(Settings):
    """Fixed steps, then a random neighbor.

    The last four settings are not part of the method: they are the aids that FedHP+ has, for a
    fair comparison.
    """

    traits: ClassVar[Traits] = Traits(
        uses_rounds=False,
        local_epochs=True,
        compression="set algorithm.compression instead (in simulations)",
        plans_by="world",
    )
    about: ClassVar[About] = About(
        name="AD-PSGD",
        color="#009E73",
        dashes="-.",
        marker="^",
        own_momentum=True,
        planners=("", "steps=100"),
    )
    tunable: ClassVar[Space] = {
        **Settings.tunable,
        "steps": STEPS,
        "momentum": Range(0.0, 0.95, unset="training.momentum"),
    }
    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None  # none: training.local_steps
    neighbors: Literal["base", "ring"] = "base"
    overlap: bool = False  # train during the transfer
    serve: Literal["model", "average"] = "model"  # average: a moving average of each model
    compression: Literal["none", "int8"] = "none"  # of the difference between the pair's models
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None  # none: training.momentum

    def configured(self) -> Traits:
        aids = {name: getattr(self, name) for name in ("overlap", "serve", "compression")}
        return replace(
            super().configured(),
            uses_topology=self.neighbors == "base",
            own_steps="" if self.steps is None else "steps",
            momentum=self.momentum,
            serves=self.serve,
            simulated_settings={
                name: f"is {value!r}, but workers of a network do not offer that"
                for name, value in aids.items()
                if value != ADPSGD.model_fields[name].default
            },
        )

    def start(self, federation: Federation) -> ADState:
        order = ring_order(federation)
        start, neighbors = neighbor_lists(federation.base_topology)
        return ADState(
            seed=federation.seed,
            steps=self.steps or federation.local_steps,
            order=order,
            place=np.argsort(order),
            start=start,
            neighbors=neighbors,
        )

    def act(
        self, state: ADState, worker: int, observation: Observation, *, turn: int
    ) -> tuple[ADState, Action]:
        """Train, then pick one of the available neighbors."""
        peers = self._peers(state, worker, observation.available)
        partner = None
        if len(peers):
            rng = generator(state.seed, Purpose.ALGORITHM, 1, worker, turn)
            partner = int(peers[rng.integers(len(peers))])
        in_epochs = observation.epoch_steps
        steps = state.steps if in_epochs is None else int(in_epochs[worker])
        return state, Action(steps, partner, overlap=self.overlap, compression=self.compression)

    def _peers(self, state: ADState, worker: int, available: BoolArray) -> IntArray:
        if self.neighbors == "ring":
            return _ring_peers(state, worker, available)
        peers = state.neighbors[state.start[worker] : state.start[worker + 1]]
        return peers[available[peers]]


def _ring_peers(state: ADState, worker: int, available: BoolArray) -> IntArray:
    """The next available worker in both directions: the ring skips those that are away."""
    count, position = len(state.order), int(state.place[worker])
    peers: set[int] = set()
    for direction in (1, -1) if available[worker] else ():
        for distance in range(1, count):
            peer = int(state.order[(position + direction * distance) % count])
            if available[peer]:
                peers.add(peer)
                break
    return np.array(sorted(peers), dtype=np.int64)

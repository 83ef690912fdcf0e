"""The limit: the same devices and data with links that cost nothing.

Every finished step of any worker moves one shared model at once, and nobody ever waits. With the
learning rate N times as large this is an exact average of all N models after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedhp.algorithms.base import Federation, Observation, Settings
from fedhp.algorithms.traits import About, Traits
from fedhp.types import Action


@dataclass(frozen=True, slots=True)
class FreeLinksState:
    """Nothing is decided, so nothing is remembered."""


class FreeLinks(Settings):
    """Asynchronous SGD on one shared model."""

    traits: ClassVar[Traits] = Traits(
        uses_rounds=False,
        uses_topology=False,
        local_work=False,
        single_steps=True,
        plans_by="world",
        simulated="has links that cost nothing, which a network does not have",
    )
    about: ClassVar[About] = About(
        name="free links (limit)", color="#7f7f7f", dashes="--", marker="x", width=1.0, limit=True
    )
    # Of the shared model: up to N steps are under way at a time, and each moves it.
    # It is a rate of SGD (rates.py).
    learning_rate: Annotated[float, Field(gt=0)] | None = 0.05
    serve: Literal["model", "average"] = "average"  # average: a moving average of the model

    def configured(self) -> Traits:
        return replace(super().configured(), serves=self.serve)

    def start(self, federation: Federation) -> FreeLinksState:
        return FreeLinksState()

    def act(
        self, state: FreeLinksState, worker: int, observation: Observation, *, turn: int
    ) -> tuple[FreeLinksState, Action]:
        """One step, from the shared model as it is now."""
        return state, Action(local_steps=1, partner=None, shared=True)

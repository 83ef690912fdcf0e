"""The protocol that every algorithm implements, and what an algorithm knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

from fedhp import components
from fedhp.errors import ConfigError
from fedhp.timing import Network
from fedhp.types import Action, BoolArray, Plan, Reports, StepReason, Topology

ALGORITHMS = {
    "fedhp": "fedhp.algorithms.fedhp:FedHP",
    "dpsgd": "fedhp.algorithms.dpsgd:DPSGD",
    "adpsgd": "fedhp.algorithms.adpsgd:ADPSGD",
    "ldsgd": "fedhp.algorithms.ldsgd:LDSGD",
    "pens": "fedhp.algorithms.pens:PENS",
}


@dataclass(frozen=True, slots=True)
class Federation:
    """What an algorithm knows before the first round."""

    workers: int
    rounds: int
    seed: int
    local_steps: int  # of the algorithms with fixed steps
    base_topology: Topology


@dataclass(frozen=True, slots=True)
class Observation:
    """What the coordinator knows at the start of a round."""

    round_index: int  # from 1
    clock: float  # virtual time, s
    learning_rate: float
    available: BoolArray  # [N]
    network: Network


@runtime_checkable
class Algorithm(Protocol):
    """A synchronous algorithm. The state is a frozen dataclass of arrays and scalars."""

    def start(self, federation: Federation) -> Any:
        """The state before round 1."""

    def plan(self, state: Any, observation: Observation, reports: Reports) -> tuple[Any, Plan]:
        """The next round's plan. Round 1 sees the calibration as the reports of round 0."""


@runtime_checkable
class AsyncAlgorithm(Protocol):
    """An asynchronous algorithm: asked for one worker at a time, whenever it is free."""

    def start(self, federation: Federation) -> Any:
        """The state before the first action."""

    def act(
        self, state: Any, worker: int, observation: Observation, *, turn: int
    ) -> tuple[Any, Action]:
        """What this worker does in its turn-th turn (from 0)."""


@dataclass(frozen=True, slots=True)
class PastRound:
    """A recorded round, as far as an algorithm decided it."""

    round_index: int
    learning_rate: float
    rule: StepReason | None
    facts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Lengthened:
    """What a run with more rounds would have had instead, with the same decisions."""

    state: Mapping[str, Any]  # fields of the algorithm's state
    facts: Mapping[int, Mapping[str, float]]  # by round


class OtherDecisions(Exception):
    """With more rounds an earlier decision would have been different."""

    def __init__(self, problem: str, *, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint  # which settings avoid this


@runtime_checkable
class Lengthenable(Protocol):
    """An algorithm that uses the number of rounds and can tell whether a run may have more."""

    def lengthen(
        self, past: Sequence[PastRound], *, workers: int, rounds: int, local_steps: int
    ) -> Lengthened:
        """The past of a run with more rounds; OtherDecisions if a decision would change."""


class Settings(BaseModel):
    """Base of the built-in algorithms, whose settings are their fields.

    `uses_rounds`: whether the number of rounds of the experiment is used. If not, a finished run
    can be extended. An algorithm that does not declare it counts as if it did.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    uses_rounds: ClassVar[bool] = True


def load_algorithm(
    name: str, settings: Mapping[str, Any], *, source: str = ""
) -> Algorithm | AsyncAlgorithm:
    """The algorithm of this name or dotted path, with its settings checked."""
    part = components.resolve(name, ALGORITHMS, key="algorithm.name", source=source)
    algorithm = components.build(part, settings=settings, prefix="algorithm", source=source)
    if not isinstance(algorithm, Algorithm | AsyncAlgorithm):
        raise ConfigError(
            f"{name!r} is not an algorithm: it needs start() and plan(), or start() and act()",
            key="algorithm.name",
            source=source,
            allowed="a class with start(federation) and plan(state, observation, reports)",
            fix="see docs/own-parts.md for the protocol",
        )
    return algorithm

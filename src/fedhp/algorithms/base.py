"""The protocol that every algorithm implements, and what an algorithm knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fedhp import components
from fedhp.algorithms.traits import About, Traits
from fedhp.config import Experiment
from fedhp.errors import ConfigError
from fedhp.graph import round_topology
from fedhp.rule import Rule
from fedhp.timing import Network
from fedhp.types import (
    Action,
    BoolArray,
    ChangingTopology,
    IntArray,
    Pair,
    Plan,
    Reports,
    Topology,
)

ALGORITHMS = {
    "fedhp": "fedhp.algorithms.fedhp:FedHP",
    "fedhp_plus": "fedhp.algorithms.fedhp_plus:FedHPPlus",
    "dpsgd": "fedhp.algorithms.dpsgd:DPSGD",
    "ldsgd": "fedhp.algorithms.ldsgd:LDSGD",
    "adpsgd": "fedhp.algorithms.adpsgd:ADPSGD",
    "pens": "fedhp.algorithms.pens:PENS",
    "free_links": "fedhp.algorithms.free_links:FreeLinks",
}


@dataclass(frozen=True, slots=True)
class Range:
    """What `fedhp tune` tries for a setting: numbers from low to high, whole ones if both are.

    A range that spans a factor of ten or more is searched on a logarithmic scale.
    """

    low: float
    high: float
    unset: str = ""  # the key of the experiment that applies where the setting is none

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def logarithmic(self) -> bool:
        """Whether small numbers are tried as often as large ones."""
        return self.low > 0 and self.high >= 10 * self.low


Choices: TypeAlias = tuple[str | bool, ...]
Space: TypeAlias = Mapping[str, Range | Choices]  # by setting

LEARNING_RATES = Range(0.02, 1.0, unset="training.learning_rate")
ADAMW_LEARNING_RATES = Range(0.0001, 0.01, unset="training.learning_rate")
STEPS = Range(5, 200, unset="training.local_steps")


@dataclass(frozen=True, slots=True)
class Federation:
    """What an algorithm knows before the first round."""

    workers: int
    rounds: int  # with a horizon: 10,000,000, and observations have share_done
    seed: int
    local_steps: int  # of the algorithms with fixed steps; observations have the local epochs
    base_topology: Topology  # of a topology that changes: all links of a cycle
    changing: ChangingTopology | None = None

    def topology_at(self, round_index: int) -> Topology:
        """The topology of a round, from 1; the base topology unless it changes."""
        if self.changing is None:
            return self.base_topology
        return round_topology(self.changing, round_index)


@dataclass(frozen=True, slots=True)
class Observation:
    """What the coordinator knows at the start of a round."""

    round_index: int  # from 1
    clock: float  # virtual time, s
    learning_rate: float
    available: BoolArray  # [N]
    network: Network
    share_done: float | None = None  # of the horizon; None: the run has a number of rounds
    topology: Topology | None = None  # of this round, as [topology] says; set in every run
    changing: bool = False  # whether other rounds have another topology
    # [N] the steps of training.local_epochs, 0 where a worker's samples are not known; None: it is
    # not set.
    epoch_steps: IntArray | None = None
    # Links that do not work, the lower worker first; on the network only.
    avoid: frozenset[Pair] = frozenset()
    # Workers that have delivered into the box since it was read last; of a turn only, rising.
    received: tuple[int, ...] = ()

    def fixed_steps(self, steps: int) -> IntArray:
        """[N] so many steps, or the local epochs, of every available worker; 0 of the others."""
        chosen = steps if self.epoch_steps is None else self.epoch_steps
        return np.where(self.available, chosen, 0).astype(np.int64)

    def step_numbers(self, steps: int) -> dict[str, int]:
        """The same for the record: the steps of all, or the least and the most of a worker."""
        if self.epoch_steps is None:
            return {"steps": steps}
        own = self.epoch_steps[self.available].tolist()
        return {"least": min(own, default=0), "most": max(own, default=0)}


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


def expected_rounds(round_index: int, share_done: float) -> int:
    """How many rounds a run with a horizon will have, if they take as long as those before this
    one."""
    return max(1, round((round_index - 1) / share_done))


@runtime_checkable
class Condensable(Protocol):
    """An algorithm whose state has parts that follow, nearly, from its other parts.

    A coordinator commits the state after every round: what grows with all pairs of workers is left
    out there, and estimated again by the coordinator that continues from it.
    """

    def condense(self, state: Any) -> Any:
        """The state without these parts; itself where they are not large."""

    def expand(self, state: Any) -> Any:
        """A state that may have been condensed, whole again."""


@runtime_checkable
class Restartable(Protocol):
    """An algorithm of group averages that runs on real machines, which may lose what they keep."""

    def restart(self, state: Any, workers: BoolArray) -> Any:
        """The state once these workers, [N], begin again with the initial model."""


@runtime_checkable
class Ruled(Protocol):
    """An algorithm whose workers do more than train, send the model and take the mix."""

    def rule(self) -> Rule:
        """What they do (fedhp.rule), by the settings of the algorithm."""


@runtime_checkable
class Configured(Protocol):
    """An algorithm whose traits depend on its settings."""

    def configured(self) -> Traits:
        """Its traits, with these settings."""


@runtime_checkable
class Selective(Protocol):
    """An algorithm that refuses some experiments by itself."""

    def check_experiment(self, experiment: Experiment, federation: Federation) -> None:
        """ConfigError for an experiment that it cannot have."""


class Settings(BaseModel):
    """Base of the built-in algorithms, whose settings are their fields.

    `learning_rate` is used by the engine; the algorithm sees the rate of a round in its
    observation. A class may have another default of it, which counts with SGD (rates.py).
    `tunable`: what `fedhp tune` tries for its settings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    traits: ClassVar[Traits] = Traits()
    about: ClassVar[About]
    tunable: ClassVar[Space] = {"learning_rate": LEARNING_RATES}
    learning_rate: Annotated[float, Field(gt=0)] | None = None  # none: training.learning_rate

    def configured(self) -> Traits:
        given = "learning_rate" in self.model_fields_set
        return replace(self.traits, learning_rate=self.learning_rate, sgd_rate=not given)


def load_algorithm(name: str, settings: Mapping[str, Any]) -> Algorithm | AsyncAlgorithm:
    """The algorithm of this name or dotted path, with its settings checked."""
    part = components.resolve(name, ALGORITHMS, key="algorithm.name")
    algorithm = components.build(part, settings=settings, prefix="algorithm")
    if not isinstance(algorithm, Algorithm | AsyncAlgorithm):
        raise ConfigError(
            f"{name!r} is not an algorithm: it needs start() and plan(), or start() and act()",
            key="algorithm.name",
            allowed="a class with start(federation) and plan(state, observation, reports)",
            fix="see docs/own-parts.md for the protocol",
        )
    wrong, instead = _misdeclared(algorithm)
    if wrong:
        raise ConfigError(
            f"{name!r} has {wrong}, which has no effect",
            key="algorithm.name",
            allowed=f"{instead} in its class, with from fedhp.algorithms import Traits",
            fix=f"write {instead} instead (docs/own-parts.md)",
        )
    return algorithm


def rule_of(algorithm: object) -> Rule:
    """What the workers of an algorithm do, as it declares."""
    return algorithm.rule() if isinstance(algorithm, Ruled) else Rule()


# Once flags of the class, and what each is now: a trait, or a rule.
_FORMER = {
    "uses_rounds": "traits = Traits(uses_rounds={})",
    "changing_topology": "traits = Traits(follows_changes={})",
    "local_epochs": "traits = Traits(local_epochs={})",
    "group_average": "traits = Traits(group_average={})",
    "push_sum": "def rule(self): return fedhp.rule.PushSum()",
    "tracking": "def rule(self): return fedhp.rule.Tracking()",
}


def _misdeclared(algorithm: object) -> tuple[str, str]:
    """What a class declares in a form that nothing reads, and the right form; or nothing."""
    declared = getattr(algorithm, "traits", Traits())
    if not isinstance(declared, Traits):
        return f"traits = {declared!r}", "traits = Traits(...)"
    if not isinstance(rule_of(algorithm), Rule):
        return f"the rule {rule_of(algorithm)!r}", "def rule(self) -> fedhp.rule.Rule"
    flags = {name: getattr(algorithm, name, None) for name in _FORMER}
    flags = {name: value for name, value in flags.items() if isinstance(value, bool)}
    forms = (_FORMER[name].format(value) for name, value in flags.items())
    return " and ".join(f"{name} = {value}" for name, value in flags.items()), ", ".join(forms)


def is_synchronous(algorithm: object) -> TypeGuard[Algorithm]:
    return isinstance(algorithm, Algorithm)


def is_asynchronous(algorithm: object) -> TypeGuard[AsyncAlgorithm]:
    """Whether it has turns instead of rounds."""
    return not is_synchronous(algorithm)


def traits_of(algorithm: object) -> Traits:
    """What an algorithm declares, with its settings; a class may declare nothing."""
    if isinstance(algorithm, Configured):
        return algorithm.configured()
    declared: Traits = getattr(algorithm, "traits", Traits())
    return declared


@cache
def built_in(name: str) -> type[Settings]:
    """The class of a built-in algorithm, the only one that is imported."""
    part = components.resolve(name, ALGORITHMS, key="algorithm.name")
    assert isinstance(part, type)
    assert issubclass(part, Settings)
    return part


def has_own_rate(part: object) -> bool:
    """Whether a class has a setting `learning_rate`, which replaces that of the experiment."""
    return isinstance(part, type) and issubclass(part, Settings)


def built_ins(wanted: Callable[[Settings], bool]) -> list[str]:
    """The names of the built-in algorithms, with their default settings, that are such."""
    return [name for name in ALGORITHMS if wanted(built_in(name)())]


def about(name: str) -> About | None:
    """How reports call and draw the built-in algorithm of this name; None: there is none."""
    return built_in(name).about if name in ALGORITHMS else None


def abouts() -> dict[str, About]:
    """Of all built-in algorithms, by name."""
    return {name: built_in(name).about for name in ALGORITHMS}

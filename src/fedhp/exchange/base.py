"""What the loop, the coordinator and a replay ask of an exchange, whatever its form.

A form answers for itself: is it usable, over which links, how long, how many bytes, what is each
worker's part, what does the history say. Carrying it out is the executor's: `carry_out` calls the
method of the executor that fits the form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedhp.config import Experiment
from fedhp.errors import RunError
from fedhp.rule import Rule
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray, Pair, Plan

if TYPE_CHECKING:
    from fedhp.exchange.group import GroupAverage
    from fedhp.exchange.mixing import DirectedMixing, Mixing, Scoring
    from fedhp.exchange.server import ServerAverage
    from fedhp.world import World


class Unusable(Exception):
    """A part of a plan cannot be used: the problem, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Which models travelled: links (receiver, sender if directed), and which peers were kept."""

    links: IntArray  # [E, 2]
    directed: bool
    distance: FloatArray  # [E] before mixing
    selected: IntArray  # [N, keep], -1 where none
    # [E, 2] what went to the first and to the second end of a link, as a share of a model's bytes;
    # None: whole models.
    share: FloatArray | None = None
    parts: tuple[Exchanged, ...] = ()  # of exchanges that followed each other


@dataclass(frozen=True, slots=True)
class Cost:
    """What an exchange costs in simulation."""

    link_time: FloatArray  # [E] s
    link_bytes: IntArray  # [E] both directions together
    communication: FloatArray  # [N] s that each worker needs for it after its steps


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A worker's part in a group average; members 0: it takes no part."""

    group: GroupAverage
    members: int = 0
    returning: bool = False
    parent: int = -1
    children: tuple[int, ...] = ()
    returning_children: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker does in an exchange, as an order says it."""

    sources: Sequence[int] = ()  # whose models it pulls, ascending
    weights: Sequence[float] = ()  # of these models; none where it scores them
    own_weight: float = 1.0
    push_sum: bool = False
    score: Scoring | None = None
    group: GroupPart | None = None
    then: tuple[Part, ...] = ()  # in the exchanges that follow in the same round


class Executor(Protocol):
    """Carries exchanges out, with models or with what a run has measured."""

    @property
    def workers(self) -> int:
        """How many there are."""

    def mix(self, mixing: Mixing, *, round_index: int) -> Exchanged:
        """Every worker takes the models of others by their weights."""

    def score(self, mixing: DirectedMixing, scoring: Scoring, *, round_index: int) -> Exchanged:
        """Every worker scores the models of others and averages the best."""

    def average_over_server(self, average: ServerAverage) -> Exchanged:
        """The participants send their models, and everyone takes the mean."""

    def average_groups(self, groups: Sequence[GroupAverage]) -> None:
        """The participants of each add the mean of their changes to the consensus."""

    def proceed(self) -> None:
        """The next exchange of the round begins with what the last one left."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When and where a simulated exchange takes place."""

    world: World
    clock: float  # s, at the start of the round
    ready: FloatArray  # [N] s from then until each worker may begin
    event: int  # tells the jitter of rounds apart
    model_bytes: int


class Exchange(ABC):
    """A way in which models meet; frozen, part of a plan."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return type(self).__name__

    # --- links ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def links(self) -> IntArray:
        """Over which something travels, [E, 2]; (receiver, sender) if directed."""

    @property
    def directed(self) -> bool:
        """Whether a link carries a model in one direction only."""
        return False

    @property
    def in_a_row(self) -> int:
        """How many exchanges follow each other in it."""
        return 1

    @property
    def scored(self) -> bool:
        """Whether workers choose among the models that they get."""
        return False

    @property
    def required(self) -> Sequence[int]:
        """The workers without whom it cannot be carried out."""
        return ()

    @property
    def groups(self) -> tuple[GroupAverage, ...]:
        """The averages over trees that it consists of, if it does."""
        return ()

    # --- checks -----------------------------------------------------------------------------

    @abstractmethod
    def check(self, plan: Plan, workers: int) -> None:
        """Refuse what cannot be carried out."""

    @abstractmethod
    def check_present(self, here: BoolArray) -> None:
        """Refuse a part for a worker that is away; here is [N]."""

    def check_rule(self, rule: Rule) -> None:
        """Refuse a rule of the workers that this exchange does not fit."""
        if rule.acts():
            raise Unusable(
                f"its workers have a rule that sends or receives, and its plan has a {self.name}",
                "a NeighborMixing, a DirectedMixing or a WeightedMixing with such a rule",
            )

    def check_network(self) -> None:
        """Refuse what can only be simulated."""
        return

    def check_experiment(self, experiment: Experiment) -> None:
        """Refuse settings with which it cannot be carried out."""
        if self.in_a_row > 1 and experiment.exchange.compression == "topk":
            raise RunError(
                "the algorithm plans several exchanges in a round, but with topk every reader has "
                "one copy of a model per round",
                allowed="exchange.compression other than 'topk', or one exchange per round",
                fix="set exchange.compression = 'int8'",
            )

    # --- changes before it is carried out -----------------------------------------------------

    def with_min_peers(
        self, available: BoolArray, network: Network, *, least: int, round_index: int
    ) -> Exchange:
        """With links added, the fastest first, until every available worker [N] has at least so
        many peers. Without links it stays as it is: in that round nothing is mixed."""
        return self

    def without_links(self, avoid: Collection[Pair]) -> Exchange:
        """Without the links that do not work."""
        return self

    def connected(
        self, available: BoolArray, network: Network, *, avoid: Collection[Pair]
    ) -> Exchange:
        """With links added until the available workers [N] are connected."""
        return self

    def without_group(self, plan: Plan) -> Plan:
        """The plan in which nobody averages over a tree; the same plan where nobody did."""
        return plan

    # --- carried out ------------------------------------------------------------------------

    @abstractmethod
    def carry_out(self, executor: Executor, *, round_index: int) -> Exchanged:
        """By the executor's method for this form."""

    @abstractmethod
    def parts(self, workers: int) -> list[Part]:
        """What each worker does, [N]."""

    def selected(self, kept: Mapping[int, Sequence[int]], workers: int) -> IntArray:
        """The peers that workers kept after scoring them, [N, keep], -1 where there are fewer."""
        return np.empty((workers, 0), dtype=np.int64)

    # --- time and bytes ---------------------------------------------------------------------

    def extra_steps(self, workers: int) -> FloatArray:
        """Work of each worker in units of its step time, [N]."""
        return np.zeros(workers)

    def lead_time(self, network: Network) -> float | None:
        """Seconds that it needs if it begins with the round; None: it follows the steps."""
        return None

    def lead_time_in(self, world: World, *, clock: float, event: int) -> float | None:
        """The same on the true network of a round that starts now."""
        return None

    def communication_time(self, network: Network, workers: int) -> FloatArray:
        """Seconds that each worker should need for it after its steps, [N]."""
        return np.zeros(workers)

    @abstractmethod
    def cost(self, exchanged: Exchanged, at: Moment) -> Cost:
        """In simulation, of what was carried out."""

    # --- history ----------------------------------------------------------------------------

    def to_facts(self) -> dict[str, Any]:
        """What the record does not say of it: enough to repeat it (facts.py)."""
        return {}

    def weight_facts(self) -> list[dict[str, Any]]:
        """Its mixings by their weights, each with how often it is repeated."""
        return []


# --- what is checked of numbers that an algorithm gave, with the words of a refusal -----------


def check_array(
    values: Any, name: str, wanted: str, *, shape: tuple[int, ...] | None = None, kinds: str = ""
) -> Any:
    """The values as an array, of this shape if it is given; kinds are numpy's letters."""
    try:
        array = np.asarray(values)
    except Exception as error:  # rows of different lengths, or an object of the user's own
        raise Unusable(f"{name} is not an array: {error}", wanted) from None
    if shape is not None and (array.shape != shape or array.dtype.kind not in kinds):
        raise Unusable(f"{name} is {array.dtype} of the shape {array.shape}", wanted)
    return array


def check_links(values: Any, name: str, workers: int) -> Any:
    """Links [E, 2] between known workers."""
    wanted = "whole numbers of the shape [links, 2]"
    links = check_array(values, f"the links of {name}", wanted)
    if links.ndim != 2 or links.shape[1] != 2 or links.dtype.kind not in "iu":
        raise Unusable(f"the links of {name} are {links.dtype} of the shape {links.shape}", wanted)
    if links.size and (links.min() < 0 or links.max() >= workers):
        bad = int(links.max() if links.max() >= workers else links.min())
        raise Unusable(
            f"{name} has a link of the unknown worker {bad}", f"workers 0 to {workers - 1}"
        )
    return links


def check_distinct(links: IntArray, name: str) -> None:
    """Refuse links of a worker to itself, and those that are there twice, [E, 2]."""
    for worker in links[links[:, 0] == links[:, 1], 0].tolist():
        raise Unusable(
            f"{name} links worker {worker} to itself", "links between two different workers"
        )
    pairs, counts = np.unique(links, axis=0, return_counts=True)
    for end, other in pairs[counts > 1].tolist():
        raise Unusable(f"{name} has the link {end} - {other} more than once", "each link once")


def check_values(whose: str, *checked: tuple[str, Any, bool, str]) -> None:
    """Refuse what is wrong: each has a name, its value, whether it is right, what is wanted."""
    for name, value, right, wanted in checked:
        if not right:
            raise Unusable(f"{name} of its {whose} is {value!r}", wanted)


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def kind_of(value: Any) -> str:
    """What it is, for people."""
    return "None" if value is None else f"a {type(value).__name__}"


def check_exchange(exchange: Any, plan: Plan, workers: int) -> None:
    """Refuse a plan whose exchange is none, or cannot be carried out."""
    if not isinstance(exchange, Exchange):
        raise Unusable(
            f"the exchange of its plan is {kind_of(exchange)}",
            "a NeighborMixing, a DirectedMixing, a WeightedMixing, a PeerScoring, a GroupAverage, "
            "a ServerAverage or an ExchangeSequence",
        )
    exchange.check(plan, workers)

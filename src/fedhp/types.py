"""The frozen dataclasses that packages pass to each other.

Shapes use N workers, E links, M candidate peers. Times are in seconds, sizes in bytes;
workers are numbered from 0, rounds from 1 (round 0 is the calibration before the first).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedhp.exchange import Exchange
    from fedhp.exchange.mailbox import Mail

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
Pair: TypeAlias = tuple[int, int]  # two workers, the lower one first


@dataclass(frozen=True, slots=True)
class Topology:
    """An undirected graph: each link once, smaller worker first, sorted."""

    workers: int
    links: IntArray  # [E, 2]
    weights: FloatArray | None = None  # [E] of mixing over each link; None: by the plan's rule

    @property
    def degrees(self) -> IntArray:
        """Number of neighbors of each worker, [N]."""
        return np.bincount(self.links.ravel(), minlength=self.workers).astype(np.int64)

    @property
    def adjacency(self) -> BoolArray:
        """Dense symmetric matrix, [N, N], false on the diagonal."""
        matrix = np.zeros((self.workers, self.workers), dtype=np.bool_)
        matrix[self.links[:, 0], self.links[:, 1]] = True
        matrix[self.links[:, 1], self.links[:, 0]] = True
        return matrix

    def keep(self, mask: BoolArray) -> Topology:
        """The same workers with only the links where mask [E] is true."""
        weights = None if self.weights is None else self.weights[mask]
        return Topology(self.workers, self.links[mask], weights)


@dataclass(frozen=True, slots=True)
class ChangingTopology:
    """A topology for every round: a pure function of the round, from 1."""

    at: Callable[[int], Topology | IntArray]  # the topology of a round, or its links [E, 2]
    period: int | None = None  # rounds after which it repeats; None: never


class LinkVerdict(IntEnum):
    """Why a link is in this round's topology or not."""

    CUT = 0  # removed to shorten the round
    KEPT_BRIDGE = 1  # without it the graph would be disconnected
    KEPT_BOUND = 2  # without it the distance bound would be exceeded
    KEPT_NO_GAIN = 3  # removing it would not improve the objective
    KEPT_UNTRIED = 4  # the search ended before it was tried
    KEPT_ALL = 5  # the round did not search: every link stays
    FIXED = 6  # the algorithm always uses it
    DRAWN = 7  # chosen at random
    SCORED = 8  # the peers were scored on the worker's samples
    TREE = 9  # it carries the sum of a group average
    SCHEDULED = 10  # the topology changes over rounds, and this round has it

    @property
    def word(self) -> str:
        """The name in tables and files: "cut", "kept_bridge", ..."""
        return self.name.lower()


class StepRule(StrEnum):
    """What set the steps of a round. The record keeps these texts, with numbers in the braces."""

    OPT = "opt: the deadline with the least time per step of {tried} tried"
    FILL_PACE = "fill: the fastest worker's pace sets the deadline"
    FILL_ONE_STEP = (
        "fill: the slowest worker needs this long for one step, the others fill the time"
    )
    LITERAL = "literal: the fastest worker's completion time is minimised"
    FIXED_STEPS = "every worker takes {steps} steps, whatever its speed"
    LOCAL_PHASE = "the local phase: {steps} steps and one more before communicating"
    COMMUNICATING_PHASE = "the communicating phase: one step, then communicate"
    PEERS_SCORED = (
        "every worker takes {steps} steps; "
        "first stage: {peers} random peers scored, the {keep} best averaged"
    )
    PEERS_DRAWN = (
        "every worker takes {steps} steps; "
        "second stage: {keep} random ones of the peers kept more often than by chance"
    )
    FIXED_EPOCHS = (
        "every worker takes its local epochs, {least} to {most} steps, whatever its speed"
    )
    EPOCH_PHASE = (
        "the local phase: the local epochs, {least} to {most} steps, and one more before "
        "communicating"
    )
    PEERS_SCORED_EPOCHS = (
        "every worker takes its local epochs, {least} to {most} steps; "
        "first stage: {peers} random peers scored, the {keep} best averaged"
    )
    PEERS_DRAWN_EPOCHS = (
        "every worker takes its local epochs, {least} to {most} steps; "
        "second stage: {keep} random ones of the peers kept more often than by chance"
    )
    ASYNCHRONOUS = (
        "asynchronous: whoever is ready trains and averages with one random neighbor; nobody waits"
    )
    DELIVERY = "asynchronous: whoever is ready reads its box, trains and delivers a message"
    GATHERING = "asynchronous: whoever has trained waits for its group, which averages"
    SHARED_MODEL = (
        "limit: every finished step of any worker moves the one model of all; links cost nothing"
    )
    GROUP_START = "group: everyone trains until the first deadline, nothing is exchanged"
    GROUP_OVERLAP = "group: everyone trains during the transfer and on until the deadline"
    GROUP_WAIT = "group: everyone waits for the transfer, then trains until the deadline"


@dataclass(frozen=True, slots=True)
class StepReason:
    """A step rule with its numbers; str() gives the text of the record, parse() reads it back."""

    rule: StepRule
    numbers: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.rule.format(**self.numbers)

    @classmethod
    def parse(cls, text: str) -> StepReason | None:
        """The reason that was recorded as this text; None if the text follows no rule."""
        for rule in StepRule:
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(rule))
            match = re.fullmatch(pattern, text)
            if match:
                return cls(rule, {name: int(number) for name, number in match.groupdict().items()})
        return None


class GroupRole(StrEnum):
    """Why a worker takes part in a group average, or not. The record keeps these words."""

    FAST = "fast"  # its link is among the fast ones
    OVERDUE = "overdue"  # it was left out as often as is allowed
    ADDED = "added"  # it holds the current consensus, and no other participant does
    LEFT_OUT = "left_out"
    AWAY = "away"


@dataclass(frozen=True, slots=True)
class Participation:
    """Who takes part in a group average and why, [N] each."""

    roles: tuple[GroupRole, ...]
    left_out: IntArray  # averages of this fragment in a row without it, before this round
    returning: BoolArray  # it takes part, and receives the whole consensus
    root: int  # -1: nothing is averaged


@dataclass(frozen=True, slots=True)
class Decision:
    """The recorded reasons of a plan: a verdict per link considered, and what sets the pace."""

    links: IntArray  # [E, 2]
    verdicts: IntArray  # [E], LinkVerdict
    link_time: FloatArray  # [E] s, as the planner saw it
    rule: StepReason | str  # what set the steps and the deadline; text for a new algorithm
    distance: FloatArray | None = None  # [E] as the planner estimated it
    pace_setter: int | None = None  # the worker whose time the others match
    facts: dict[str, float] = field(default_factory=dict)  # deadline, objective, bound, ...
    participation: Participation | None = None  # of a group average

    @classmethod
    def without_links(cls, rule: StepReason | str) -> Decision:
        """Where no link was considered."""
        return cls(np.empty((0, 2), np.int64), np.empty(0, np.int64), np.empty(0), rule)


@dataclass(frozen=True, slots=True)
class Plan:
    """What every worker does in one round.

    Either local_steps is given, or a deadline until which every worker trains
    (local_steps None); the algorithm chooses. A GroupAverage starts at once, from the models at
    the start of the round; its deadline counts from the end of the transfer.
    """

    exchange: Exchange
    decision: Decision
    local_steps: IntArray | None = None  # [N], 0 for a worker that is away
    deadline: float | None = None  # s
    # [N] workers that measure smoothness and gradient variance this round; None: no worker.
    estimate: BoolArray | None = None
    overlap: bool = False  # of a GroupAverage: everyone trains during the transfer as well


@dataclass(frozen=True, slots=True)
class Action:
    """What one worker of an asynchronous algorithm does next."""

    local_steps: int
    partner: int | None = None  # to meet; None: nobody
    # The next steps start at once; the partner is met as soon as no own transfer is on its way.
    overlap: bool = False
    compression: str = "none"  # of the exchange, or "int8"
    shared: bool = False  # the change goes to every worker's model, at no cost: the limit
    mail: Mail | None = None  # a Delivery or a Gathering, instead of a partner
    wait: int = 0  # the next turn begins when so many workers have delivered into the box


@dataclass(frozen=True, slots=True)
class Reports:
    """What the workers report to the coordinator after a round, one row per worker.

    NaN where a worker was away or did not measure.
    """

    round_index: int
    step_time: FloatArray  # [N] mean over the round's steps
    update_norm: FloatArray  # [N] ||x after local steps - x before||
    links: IntArray  # [E, 2] pairs whose distance was measured
    distance: FloatArray  # [E] before mixing
    smoothness: FloatArray  # [N]
    gradient_variance: FloatArray  # [N]
    start_loss: FloatArray  # [N] loss before the first step of round 1
    selected: IntArray  # [N, keep] peers kept by scoring, -1 where none
    transfer_time: float = np.nan  # s that a group average was on its way; NaN: there was none


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a round took, [N] each; NaN for a worker that is away."""

    compute_time: FloatArray
    communication_time: FloatArray
    worker_time: FloatArray
    waiting_time: FloatArray
    round_time: float

    @property
    def mean_waiting_time(self) -> float:
        """Mean over the workers that took part."""
        present = self.waiting_time[~np.isnan(self.waiting_time)]
        return float(present.mean()) if present.size else 0.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Test results after a round."""

    # [N] each worker's model (for other tasks: its metric); NaN: away, or it attacks
    accuracy: FloatArray
    mean_model_accuracy: float  # NaN on a real network, where no process has all models
    images: int
    standard_error: float  # of the mean accuracy, from the finite test sample; NaN if unknown
    loss: FloatArray | None = None  # [N] each worker's model; None where it is not reported
    mean_model_loss: float = np.nan
    class_accuracy: FloatArray | None = None  # [classes] mean of the workers, if asked for
    mean_model_class_accuracy: FloatArray | None = None  # [classes]
    own_accuracy: FloatArray | None = None  # [N] on what each worker held back; NaN: nothing
    honest: BoolArray | None = None  # [N] whose tests count in a study of attacks; None: all

    @property
    def mean_accuracy(self) -> float:
        """Mean over the workers that tested."""
        return float(self.accuracy[np.isfinite(self.accuracy)].mean())


@dataclass(frozen=True, slots=True)
class TurnPhase:
    """A part of a worker's turn without a barrier: its steps, or the transfer to its partner."""

    worker: int
    start: float  # virtual time, s
    finish: float
    partner: int | None = None  # of a transfer; both average when it ends


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Everything that is recorded of one round; committing it ends the round."""

    round_index: int
    clock: float  # virtual time at the end of the round
    learning_rate: float
    local_steps: IntArray  # [N]
    step_time: FloatArray  # [N]
    timing: Timing
    links: IntArray  # [E, 2] directed where the exchange is: (receiver, sender)
    link_time: FloatArray  # [E]
    link_bytes: IntArray  # [E] both directions together
    link_distance: FloatArray  # [E], NaN where not measured
    decision: Decision
    train_loss: FloatArray  # [N] mean over the round's steps
    update_norm: FloatArray  # [N]
    smoothness: FloatArray  # [N]
    gradient_variance: FloatArray  # [N]
    bandwidth: FloatArray  # [N] bytes per second at the start; mean over links if per link
    evaluation: Evaluation | None
    wall: dict[str, float]  # real time in seconds by phase; not part of the result
    final_evaluation: Evaluation | None = None  # on the whole test set, after the last round
    phases: tuple[TurnPhase, ...] = ()  # that ended in a round without a barrier, in this order
    measures: Mapping[str, FloatArray] = field(default_factory=dict)  # [N] added columns, by name

    @property
    def bytes_sent(self) -> int:
        """All bytes that crossed a link."""
        return int(self.link_bytes.sum())

    @property
    def mean_local_steps(self) -> float:
        """Mean over the workers that took part."""
        present = ~np.isnan(self.timing.worker_time)
        return float(self.local_steps[present].mean()) if present.any() else 0.0

    @property
    def accuracy(self) -> float | None:
        """Mean of the workers' test accuracies, if this round was evaluated."""
        if self.evaluation is None:
            return None
        return self.evaluation.mean_accuracy


@dataclass(frozen=True, slots=True)
class Scaling:
    """x -> (x - mean) / deviation, one pair per channel, shaped to broadcast over a sample."""

    mean: NDArray[np.float32]
    deviation: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DataFingerprint:
    """SHA-256 of a data set as it was read; equal only if every sample, its order and the way it
    is prepared are equal."""

    train: str  # training samples and targets
    test: str  # shape and classes of the samples, the test set, and what gives the scaling


@dataclass(frozen=True, slots=True)
class Dataset:
    """Prepared arrays of one data set."""

    name: str
    # [n, ...] images as [n, channels, height, width]; int64: tokens, which are never scaled
    train_inputs: NDArray[np.float32] | NDArray[np.int64]
    train_targets: NDArray[np.int64] | NDArray[np.float32]  # [n] classes, or [n, k] numbers
    test_inputs: NDArray[np.float32] | NDArray[np.int64]
    test_targets: NDArray[np.int64] | NDArray[np.float32]
    classes: int | None  # None: not a classification
    class_names: tuple[str, ...] = ()
    groups: IntArray | None = None  # [n] whose sample it is, for data.partition = "natural"
    scaling: Scaling | None = None  # that was applied to all inputs
    fingerprint: DataFingerprint | None = None  # of the whole set, also where this is a part of it

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train_inputs.shape[1:])

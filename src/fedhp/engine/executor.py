"""What the two loops ask of an executor, and the numbers they get back: no tensors.

ShardedExecutor (sharded.py) trains models. The executors of replay/executor.py look up what a
run has measured: virtual time passes as it would, and nothing is computed but plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from fedhp.exchange.base import Executor
from fedhp.types import BoolArray, Evaluation, FloatArray, IntArray

Result = TypeVar("Result", covariant=True)
Part = TypeVar("Part")
Whole = TypeVar("Whole")


class ShardLost(Exception):
    """A shard is gone; `recover` brings it back as it was at the last round's end."""


class StateLost(Exception):
    """A shard is gone together with its kept state; only a checkpoint can help."""


@dataclass(frozen=True, slots=True)
class Training:
    """Results of local training, [N] each; NaN where a worker did nothing."""

    loss: FloatArray
    update_norm: FloatArray


class Estimates(NamedTuple):
    """What workers measured of their objective, [n] each; NaN where a worker did not measure."""

    smoothness: FloatArray
    gradient_variance: FloatArray
    start_loss: FloatArray


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """One worker's local training: the key of its batches, steps and learning rate."""

    key: int
    steps: int
    learning_rate: float
    phase: int = 0  # 1: after the exchange of the same round, with other batches


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The tests after a round; after the last round also on the whole test set, if asked for."""

    evaluation: Evaluation
    final_evaluation: Evaluation | None = None


class Pending(Protocol[Result]):
    """A result that may still be in the making."""

    def done(self) -> bool:
        """Whether it is there."""

    def result(self) -> Result:
        """Wait for it."""


class PendingParts(Generic[Part, Whole]):
    """A result made of parts that may still be in the making."""

    def __init__(
        self, parts: Sequence[Pending[Part]], combine: Callable[[list[Part]], Whole]
    ) -> None:
        self._parts = parts
        self._combine = combine

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def result(self) -> Whole:
        return self._combine([part.result() for part in self._parts])


class RoundExecutor(Executor, Protocol):
    """Carries out the plans of a synchronous algorithm; exchanges make the next models."""

    def train(
        self,
        local_steps: IntArray,
        *,
        round_index: int,
        learning_rate: float,
        present: BoolArray | None = None,
        continued: bool = False,
    ) -> Training:
        """Run every worker's local steps; who is not present [N] keeps its model. continued: after
        a group average, more steps of the same round from the mixed models; the norms are those of
        all local steps of the round."""

    def estimate(self, chosen: BoolArray, *, round_index: int) -> Estimates:
        """Smoothness and gradient variance as these workers [N] measure them."""

    def advance(self) -> None:
        """End the round: the mixed models become the models of the next one."""

    def recover(self) -> None:
        """After ShardLost: go back to the last round's end."""


class EventExecutor:
    """Carries out the actions of an asynchronous algorithm, one worker at a time. This one has no
    models, as in a replay: no asynchronous planner sees losses, norms or distances."""

    def snapshot(self, worker: int) -> None:
        """Start a turn of this worker: read its box, and train from its current model."""

    def train_snapshots(self, trainings: dict[int, LocalTraining]) -> dict[int, float]:
        """Train the snapshots of these workers; mean losses."""
        return dict.fromkeys(trainings, 0.0)

    def apply(self, worker: int) -> float:
        """Add the change that training made to the worker's current model; its norm."""
        return 0.0

    def share(self, worker: int) -> float:
        """Add the change that training made to every worker's model; its norm. Of what is averaged
        plainly (statistics) everyone gets the mean: one N-th of the change."""
        return 0.0

    def average(self, worker: int, partner: int, *, compression: str = "none") -> float:
        """Set both models to their mean; the distance between them before.

        With int8, each moves by half of the difference as 8-bit numbers carry it.
        """
        return float("nan")

    def post(self, worker: int, weights: Sequence[float]) -> None:
        """Keep the worker's message as it is now for those that it is sent to; a mass of the rule
        leaves the worker, by these weights."""

    def deliver(self, sender: int, receiver: int, *, weight: float, fragment: int) -> None:
        """Put the sender's message, or a fragment of it (-1: the whole), into the receiver's box,
        which is read with its next snapshot. Weight NaN: none."""

    def average_group(self, members: Sequence[int]) -> None:
        """Set the models of these workers, rising, to the mean of their messages."""

    def serve(self, worker: int, factor: float) -> None:
        """Move the model that a worker serves towards its current one by this share of the way."""

    def keep(self) -> None:
        """Keep the state as of now, models in flight included: it is that of a round's end."""

    def recover(self) -> None:
        """After ShardLost: go back to the state that was kept."""

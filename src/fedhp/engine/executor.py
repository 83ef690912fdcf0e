"""What the two loops ask of an executor, and the numbers they get back: no tensors.

ShardedExecutor (sharded.py) trains models. The executors of replay/executor.py look up what a
run has measured: virtual time passes as it would, and nothing is computed but plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from fedhp.config import TrainingConfig
from fedhp.errors import Diverged
from fedhp.exchange import Exchange, Exchanged
from fedhp.types import BoolArray, Evaluation, FloatArray, IntArray, RoundRecord

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


@dataclass(frozen=True, slots=True)
class Estimates:
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
        """Whether all parts are there."""
        return all(part.done() for part in self._parts)

    def result(self) -> Whole:
        """Wait for all parts."""
        return self._combine([part.result() for part in self._parts])


class ModelTester(Protocol):
    """Tests models after a round."""

    @property
    def overlap(self) -> bool:
        """Whether tests may run while the next round trains."""

    def end_at(self, round_index: int) -> None:
        """This round is the last one: it is tested as such."""

    def is_tested(self, record: RoundRecord) -> bool:
        """Whether the models are tested after this round."""

    def start_tests(self, round_index: int) -> Pending[Evaluations]:
        """Start testing every worker's model and their mean; models must not change meanwhile."""


class RoundExecutor(Protocol):
    """Carries out the plans of a synchronous algorithm."""

    def train(
        self,
        local_steps: IntArray,
        *,
        round_index: int,
        learning_rate: float,
        present: BoolArray | None = None,
    ) -> Training:
        """Run every worker's local steps; who is not present [N] keeps its model."""

    def estimate(self, chosen: BoolArray, *, round_index: int) -> Estimates:
        """Smoothness and gradient variance as these workers [N] measure them."""

    def exchange(self, exchange: Exchange, *, round_index: int) -> Exchanged:
        """Move models, measure distances on the links, then mix into the next models."""

    def train_on(
        self, local_steps: IntArray, *, round_index: int, learning_rate: float
    ) -> Training:
        """After a group average: more local steps of the same round, from the mixed models. The
        norms are those of all local steps of the round."""

    def advance(self) -> None:
        """End the round: the mixed models become the models of the next one."""

    def recover(self) -> None:
        """After ShardLost: go back to the last round's end."""


class EventExecutor(Protocol):
    """Carries out the actions of an asynchronous algorithm, one worker at a time."""

    def snapshot(self, worker: int) -> None:
        """Start a turn of this worker from its current model."""

    def train_snapshots(self, trainings: dict[int, LocalTraining]) -> dict[int, float]:
        """Train the snapshots of these workers; mean losses."""

    def apply(self, worker: int) -> float:
        """Add the change that training made to the worker's current model; its norm."""

    def share(self, worker: int) -> float:
        """Add the change that training made to every worker's model; its norm. Of what is averaged
        plainly (statistics) everyone gets the mean: one N-th of the change."""

    def average(self, worker: int, partner: int, *, compression: str = "none") -> float:
        """Set both models to their mean; the distance between them before.

        With int8, each moves by half of the difference as 8-bit numbers carry it.
        """

    def serve(self, worker: int, factor: float) -> None:
        """Move the model that a worker serves towards its current one by this share of the way."""

    def keep(self) -> None:
        """Keep the state as of now, models in flight included: it is that of a round's end."""

    def recover(self) -> None:
        """After ShardLost: go back to the state that was kept."""


def check_finite(
    loss: FloatArray,
    norms: FloatArray,
    *,
    worked: BoolArray,
    round_index: int,
    learning_rate: float,
    training: TrainingConfig,
) -> None:
    """Stop a run in which a model is not finite any more."""
    bad = np.flatnonzero(worked & ~(np.isfinite(loss) & np.isfinite(norms)))
    if len(bad):
        raise Diverged(
            f"round {round_index}: the model of worker {bad[0]} diverged "
            f"(loss {loss[bad[0]]}, {len(bad)} workers in all); rounds before it are kept",
            fix=f"lower the learning rate (it was {learning_rate:g} in this round)"
            + "".join(f", or training.{name} ({value:g})" for name, value in _pulls(training)),
        )


def _pulls(training: TrainingConfig) -> list[tuple[str, float]]:
    """What multiplies the weights themselves: a step overshoots where it is large, too."""
    named = {"proximal": training.proximal, "weight_decay": training.weight_decay}
    return [(name, value) for name, value in named.items() if value]

"""What the two loops ask of whoever carries out a plan, and what they are given: no tensors.

Engine (engine.py) trains. Replay (replay.py) looks up what a run has measured: virtual time
passes as it would, and nothing is computed but plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedhp.engine.context import Stage
from fedhp.errors import Diverged
from fedhp.record.packing import Arrays
from fedhp.types import (
    BoolArray,
    Evaluation,
    Exchange,
    FloatArray,
    IntArray,
    NeighborMixing,
    PeerScoring,
)


class ShardLost(Exception):
    """A shard is gone; `Carrier.recover` brings it back as of the last round."""


class StateLost(Exception):
    """A shard is gone with everything that is kept of it; only a checkpoint can help."""


@dataclass(frozen=True, slots=True)
class Training:
    """What local training gave, [N] each; NaN where a worker did nothing."""

    loss: FloatArray
    update_norm: FloatArray


@dataclass(frozen=True, slots=True)
class Turn:
    """One worker's local training: the key of its batches, steps and learning rate."""

    key: int
    steps: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Estimates:
    """What workers found out about their objective, [n] each; NaN where one did not look."""

    smoothness: FloatArray
    gradient_variance: FloatArray
    start_loss: FloatArray


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Which models travelled: links (receiver, sender if directed), and what was chosen."""

    links: IntArray  # [E, 2]
    directed: bool
    distance: FloatArray  # [E] before mixing
    selected: IntArray  # [N, keep], -1 where none


class Answer(Protocol):
    """Numbers that are still being computed."""

    def done(self) -> bool:
        """Whether they are there."""

    def __call__(self) -> list[list[float]]:
        """Wait for them, shard by shard."""


class Testing:
    """An evaluation under way."""

    def __init__(self, answer: Answer, finish: Callable[[list[list[float]]], Evaluation]) -> None:
        self._answer = answer
        self._finish = finish

    def done(self) -> bool:
        """Whether it can be had without waiting."""
        return self._answer.done()

    def result(self) -> Evaluation:
        """Wait for it."""
        return self._finish(self._answer())


class RoundExecutor(Protocol):
    """Carries out plans."""

    @property
    def prepared(self) -> Stage:
        """The experiment."""

    def train(self, local_steps: IntArray, *, round_index: int, learning_rate: float) -> Training:
        """Every worker's local steps."""

    def estimate(self, chosen: BoolArray, *, round_index: int) -> Estimates:
        """Smoothness and gradient variance as these workers [N] measure them."""

    def exchange(self, exchange: Exchange, *, round_index: int) -> Exchanged:
        """Move models, measure distances on the links, then mix into the next models."""

    def advance(self) -> None:
        """The mixed models become the models of the next round: it is done."""

    def tests(self, round_index: int) -> bool:
        """Whether the models are tested after this round."""

    def test(self, *, whole: bool = False) -> Testing:
        """Start testing every worker's model and their mean; models must not change meanwhile."""

    def evaluate(self, *, whole: bool = False) -> Evaluation:
        """Test every worker's model and their mean."""

    # --- for asynchronous algorithms -------------------------------------------------------

    def enable_in_flight_state(self) -> None:
        """From now on there are models in flight, which belong to the state."""

    def keep(self) -> None:
        """The state as of now is that of a round's end."""

    def snapshot(self, worker: int) -> None:
        """A worker starts a turn from its current model."""

    def train_snapshots(self, turns: dict[int, Turn]) -> dict[int, float]:
        """Train the snapshots of these workers; mean losses."""

    def apply(self, worker: int) -> float:
        """Add what training changed to the worker's current model; the norm of the change."""

    def average(self, worker: int, partner: int) -> float:
        """Both take the mean of their current models; how far apart they were."""

    # --- what a checkpoint holds -----------------------------------------------------------

    def state(self) -> Arrays:
        """The state of the last round's end, [N, ...] by worker."""

    def load(self, state: Arrays) -> None:
        """Go on from a state."""

    def recover(self) -> None:
        """After ShardLost: everything as it was at the last round's end."""


def travelled(exchange: Exchange, selected: IntArray | None = None) -> IntArray:
    """Whose models travel: links, or (receiver, sender) where pulled, [E, 2].

    selected [N, keep] are the peers kept by scoring: a symmetric average also goes back to them.
    """
    if isinstance(exchange, NeighborMixing):
        return exchange.topology.links
    if not isinstance(exchange, PeerScoring):
        return pairs(exchange.sources)
    links = pairs(exchange.candidates)
    if exchange.symmetric and selected is not None:
        links = np.unique(np.concatenate([links, pairs(selected)[:, ::-1]]), axis=0)
    return links


def pairs(sources: IntArray) -> IntArray:
    """(receiver, sender) for every source [N, M] that is one, [E, 2]."""
    receivers, columns = np.nonzero(sources >= 0)
    return np.stack([receivers, sources[receivers, columns]], axis=1).astype(np.int64)


def check_finite(
    loss: FloatArray,
    norms: FloatArray,
    worked: BoolArray,
    round_index: int,
    learning_rate: float,
) -> None:
    """Stop a run whose models are no numbers any more."""
    bad = np.flatnonzero(worked & ~(np.isfinite(loss) & np.isfinite(norms)))
    if len(bad):
        raise Diverged(
            f"round {round_index}: the model of worker {bad[0]} diverged "
            f"(loss {loss[bad[0]]}, {len(bad)} workers in all); rounds before it are kept",
            fix=f"lower training.learning_rate (it was {learning_rate:g} in this round)",
        )

"""The torch side of one worker: a shard of one, trained in its own thread.

Everything that takes long runs in that thread and can be given up between two steps. Everything
that changes the current model runs on the event loop, so that no two changes overlap.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedhp.algorithms.base import is_asynchronous
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import ModelCodec, row_digest
from fedhp.cluster.worker.model_store import ModelStore, StoredModel
from fedhp.cluster.worker.tree_node import NodeRows
from fedhp.engine.executor import LocalTraining
from fedhp.engine.prepare import Prepared, ShardSpec
from fedhp.engine.shard.groups import Groups
from fedhp.engine.shard.shard import Shard
from fedhp.graph import directed_weights
from fedhp.learn.group import fragment_columns
from fedhp.learn.group_state import GROUP_STATE, Columns, GroupUpdate
from fedhp.learn.local import Estimate
from fedhp.learn.params import Layout
from fedhp.rounds.planner import check_finite
from fedhp.types import IntArray

P = ParamSpec("P")
T = TypeVar("T")
Row = NDArray[np.float32]  # the part of a model that is sent
ONLY = 0  # index of the worker in its shard of one
SMALL_MODEL_BYTES = 128 << 10  # encoded and checked sooner than a thread is woken


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of local training; the readers get `row`."""

    loss: float  # 0 without a step
    update_norm: float
    seconds: float
    row: Row
    steps: int = 0  # where they were not ordered


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round ends with; accuracies are NaN where nothing was tested."""

    digest: bytes  # SHA-256 of the part of the model that is sent
    accuracy: float = float("nan")
    whole_accuracy: float = float("nan")
    distances: dict[int, float] = field(default_factory=dict)  # by peer
    # With group averages: the digest of the consensus, and what the worker brings into the next
    # average of each fragment.
    consensus: bytes = b""
    change_norms: Sequence[float] = ()


def change_norms(model: StoredModel, layout: Layout, fragments: int) -> list[float]:
    """What a worker brings into the next average of each fragment: how large it is; 0 where it
    has learned nothing since the last one, whatever rounding has left."""
    norms = []
    for fragment in range(fragments):
        columns = fragment_of(layout, fragment, fragments).trained
        change = model.row[columns] - model.group["consensus"][columns]
        sent = change.astype(np.float64) + model.group["residual"][columns]
        norms.append(float(np.linalg.norm(sent)) if change.any() else 0.0)
    return norms


def fragment_of(layout: Layout, fragment: int, fragments: int) -> Columns:
    """The columns of a fragment of the part that travels."""
    start, stop = fragment_columns(layout.mixed, fragment, fragments)
    return Columns.of(start, stop, trainable=layout.trainable)


def served(model: StoredModel) -> StoredModel:
    """What is tested and exported: with group averages the consensus instead of what travels."""
    consensus = model.group.get("consensus")
    if consensus is None:
        return model
    row = model.row.copy()
    row[: len(consensus)] = consensus
    return StoredModel(row, model.counters)


async def run_codec(codec: ModelCodec, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run what takes as long as a model is large: in a thread, or at once if it is small."""
    if 4 * codec.width <= SMALL_MODEL_BYTES:
        return job(*args, **kwargs)
    return await asyncio.to_thread(job, *args, **kwargs)


class Learner:
    """Trains, mixes and tests the model of one worker."""

    def __init__(self, prepared: Prepared, shard_spec: ShardSpec, store: ModelStore) -> None:
        self.prepared = prepared
        self.store = store
        self.worker = int(shard_spec.workers[ONLY])
        self.workers = prepared.experiment.workers
        self.samples = len(shard_spec.parts[ONLY])
        self.layout, self.rule = shard_spec.layout, shard_spec.rule
        self.codec = ModelCodec(shard_spec.layout)
        # Whether the algorithm averages models in pairs, without rounds.
        self.asynchronous = is_asynchronous(prepared.algorithm)
        self.committed = INITIAL  # the attempt that made the current model
        self.kept: tuple[Attempt, ...] = ()  # versions to which the run may go back
        self.swapping = False  # the current model was sent to a peer and must not change
        self._stop = threading.Event()
        self._sends = np.ones(1, dtype=np.bool_)  # in this round
        # Torch counts threads per calling thread; with more than one, sums have other bits.
        self._pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))
        self._shard = self._pool.submit(Shard, shard_spec, stop=self.stopped).result()
        # Whether each worker keeps a consensus and continues from its own last round.
        self.averages_groups = shard_spec.group_average
        self._initial = self._current()
        store.load(self._initial)
        store.hold(INITIAL, self._initial)

    def close(self) -> None:
        """Give up a running job and release the threads."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._shard.close()

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run something long in the thread, like asyncio.to_thread; if the caller is cancelled,
        it stops at its next step."""
        stop = threading.Event()

        def watched() -> T:
            self._stop = stop
            return job(*args, **kwargs)

        future = asyncio.get_running_loop().run_in_executor(self._pool, watched)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            future.cancel()  # if it has not begun
            raise

    def stopped(self) -> bool:
        """Whether the job that runs in the thread is given up."""
        return self._stop.is_set()

    # --- one synchronous round, in the thread ----------------------------------------------

    def calibrate(self) -> float:
        """Seconds of one local step; the model does not change."""
        rate = self.prepared.experiment.training.learning_rate
        seconds = 0.0
        for _ in range(2):  # the first one warms up
            self._shard.turns.snapshot(ONLY)
            started = time.monotonic()
            self._shard.turns.train({ONLY: LocalTraining(0, 1, rate)})
            seconds = time.monotonic() - started
        return seconds

    def train(self, steps: int, *, round_index: int, learning_rate: float) -> TrainingResult:
        """The local steps of a round, from the current model."""
        started = time.monotonic()
        local_steps = np.array([steps], dtype=np.int64)
        loss, norm = self._shard.train(
            local_steps, round_index=round_index, learning_rate=learning_rate
        )
        self._sends = local_steps > 0  # nobody reads the model of a worker that does not train
        # A report has numbers only; the record has none where there was no step.
        measured = (float(loss[ONLY]), float(norm[ONLY])) if steps else (0.0, 0.0)
        self._check_finite(*measured, round_index, learning_rate)
        seconds = time.monotonic() - started
        row = self._shard.mixer.offered(self.worker)
        return TrainingResult(*measured, seconds, row)

    def estimate(self, round_index: int) -> Estimate:
        """Smoothness, gradient variance and starting loss of this round's training."""
        estimates = self._shard.trainer.estimate([ONLY], round_index=round_index)
        return Estimate(
            float(estimates.smoothness[ONLY]),
            float(estimates.gradient_variance[ONLY]),
            float(estimates.start_loss[ONLY]),
        )

    def score(
        self, received: Mapping[int, Row], *, keep: int, samples: int, round_index: int
    ) -> list[int]:
        """The peers whose models do best on this worker's samples."""
        if not received:
            return []
        mixer = self._shard.mixer
        mixer.receive(*((np.array([peer]), row[None]) for peer, row in sorted(received.items())))
        candidates = np.array([sorted(received)], dtype=np.int64)
        chosen = mixer.score(candidates, keep=keep, samples=samples, round_index=round_index)
        return [int(peer) for peer in chosen[ONLY] if peer >= 0]

    def equal_weights(self, chosen: Sequence[int]) -> dict[int, float]:
        """Equal weights for the worker and its chosen peers."""
        sources: IntArray = np.full((self.prepared.experiment.workers, len(chosen)), -1)
        sources[self.worker] = chosen
        row = directed_weights(sources)[[self.worker]]
        return dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))

    def mix_on(
        self, received: Mapping[int, Row], weights: Mapping[int, float]
    ) -> tuple[dict[int, float], Row]:
        """Mix, where another exchange follows: the distances, and what the next one offers."""
        distances = self._mix(received, weights)
        self._shard.mixer.proceed()
        return distances, self._shard.mixer.offered(self.worker)

    def end_round(
        self,
        received: Mapping[int, Row],
        weights: Mapping[int, float],
        *,
        attempt: Attempt,
        on_part: bool,
        on_whole: bool,
        fragments: int = 0,
    ) -> RoundResult:
        """Measure the distances to all received models, mix those that have a weight, test what is
        to be tested and store the mixed model durably. After a group average there are no weights,
        and what is tested is the consensus."""
        distances = self._mix(received, weights) if weights else {}
        rows = self._shard.rows
        model = tested = StoredModel(
            rows.mixed[ONLY].cpu().numpy().copy(),
            rows.after_counters[ONLY].cpu().numpy().copy(),
            self.groups.state.after_commit(ONLY) if self.averages_groups else {},
        )
        if self.averages_groups:
            tested = served(model)
        accuracy = self.test(tested, whole=False) if on_part else float("nan")
        whole_accuracy = self.test(tested, whole=True) if on_whole else float("nan")
        if not self.stopped():  # else nobody waits for it any more
            self.store.write(attempt, model, keeping=self.committed, on_disk=self.kept)
        ended = RoundResult(
            row_digest(model.row[: self.layout.mixed]), accuracy, whole_accuracy, distances
        )
        if not self.averages_groups:
            return ended
        return replace(
            ended,
            consensus=row_digest(model.group["consensus"]),
            change_norms=change_norms(model, self.layout, fragments),
        )

    def test(self, model: StoredModel, *, whole: bool) -> float:
        """The metric of a model on the run's test samples, or on all of them."""
        (tested,) = self._shard.tester.evaluate(model.row, whole=whole, everyone=False)
        return tested.metric

    # --- one round with a group average, in the thread -------------------------------------

    def contribute(self, columns: Columns) -> NodeRows:
        """What this worker brings into an average of these columns."""
        worker = np.array([self.worker])
        brings = self.groups.contributions(worker, columns)
        known = self.groups.root_rows(self.worker, columns)
        return NodeRows(
            change=brings.changes[ONLY],
            residual=brings.residuals[ONLY],
            plain=brings.plain[ONLY],
            consensus=known.consensus.copy(),
            momentum=known.momentum.copy(),
            root_residual=known.root_residual.copy(),
        )

    def train_on(
        self,
        average: GroupUpdate | None,
        columns: Columns,
        more: Callable[[], bool],
        *,
        round_index: int,
        learning_rate: float,
        before: tuple[int, float],
    ) -> TrainingResult:
        """Take the average over, if there is one, and train on. before: the steps so far and
        their mean loss."""
        self.groups.adopt([] if average is None else [average], columns)
        steps, loss, norm = self.groups.train_on_paced(
            ONLY, more, round_index=round_index, learning_rate=learning_rate
        )
        first, loss_before = before
        parts = [(first, loss_before), (steps, loss)]
        mean = sum(count * value for count, value in parts if count) / max(first + steps, 1)
        if first + steps:
            self._check_finite(mean, norm, round_index, learning_rate)
        return TrainingResult(mean, norm, float("nan"), np.empty(0, np.float32), first + steps)

    # --- what changes the current model, on the event loop ---------------------------------

    def advance(self, committed: Attempt) -> bool:
        """Make the model of a committed attempt the current one; whether it is stored here."""
        if committed == self.committed:
            return True
        if committed == INITIAL and self.averages_groups:
            self.load(INITIAL, self._initial)  # it lost its own, and begins again
            return True
        model = self.store.get(committed)
        if model is None:
            return False
        self.load(committed, model)
        return True

    def load(self, committed: Attempt, model: StoredModel) -> None:
        """Make this the current model."""
        self._shard.load(
            {
                "models": model.row[None],
                "counters": model.counters[None],
                **{name: values[None] for name, values in model.group.items()},
            }
        )
        self.committed = committed

    def with_received(self, row: Row) -> StoredModel:
        """A peer's model, completed with the parts of the own one that are never sent: of the
        newest stored one, if this process has not continued from any yet. What is of another
        model begins again, as the optimizer does (rule.Vector.returning)."""
        model = self._current()
        newest = self.store.get(self.store.attempts()[-1])
        if self.committed == INITIAL and newest is not None:
            model = replace(model, row=newest.row.copy(), counters=newest.counters.copy())
        self.layout.continue_from(model.row, row)
        return model

    def position(self, model: StoredModel) -> dict[str, int]:
        """Where a model's worker is in the stream of its samples, for the history."""
        column = self.layout.position
        return {} if column is None else {"position": int(model.counters[column])}

    def current(self) -> Row:
        """The part of the current model that is sent."""
        return self._shard.turns.model(ONLY)

    def label(self, committed: Attempt) -> StoredModel:
        """The current model of an asynchronous worker, under the run's last committed attempt:
        it changes all the time and no attempt made it."""
        self.committed = committed
        return self._current()

    def snapshot(self) -> None:
        """Begin a turn from the current model."""
        self._shard.turns.snapshot(ONLY)

    def train_turn(self, turn: LocalTraining) -> TrainingResult:
        """Train the snapshot (in the thread); `apply` adds the change to the current model."""
        started = time.monotonic()
        loss = self._shard.turns.train({ONLY: turn})[ONLY]
        seconds = time.monotonic() - started
        return TrainingResult(loss, float("nan"), seconds, np.empty(0, np.float32))

    def apply(self, loss: float, *, round_index: int, learning_rate: float) -> float:
        """Add the change of a turn to the current model; its norm."""
        norm = self._shard.turns.apply(ONLY)
        self._check_finite(loss, norm, round_index, learning_rate)
        return norm

    def average(self, other: Row) -> float:
        """Take the mean of the current model and another; their distance before that."""
        return self._shard.turns.average(ONLY, other)

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """The current model, tensor by tensor under the names of the module; with group averages
        the consensus that the worker holds."""
        model = served(self._current())
        tensors: dict[str, NDArray[np.generic]] = {}
        for slots, values in (
            (self.layout.slots, model.row),
            (self.layout.counters, model.counters),
        ):
            for slot in slots:
                tensors[slot.name] = values[slot.start : slot.stop].reshape(slot.shape)
        return tensors

    # --- inside ----------------------------------------------------------------------------

    @property
    def groups(self) -> Groups:
        """What averages of groups do with the model."""
        assert self._shard.groups is not None
        return self._shard.groups

    def _check_finite(self, loss: float, norm: float, round_index: int, rate: float) -> None:
        check_finite(
            np.array([loss]),
            np.array([norm]),
            worked=np.array([True]),
            round_index=round_index,
            learning_rate=rate,
            training=self.prepared.experiment.training,
        )

    def _current(self) -> StoredModel:
        state = self._shard.state()
        rows = {name: array[ONLY].copy() for name, array in state.items()}
        group = {name: rows[name] for name in GROUP_STATE if name in rows}
        return StoredModel(rows["models"], rows["counters"], group)

    def _mix(self, received: Mapping[int, Row], weights: Mapping[int, float]) -> dict[int, float]:
        """In the order of the workers' numbers, which gives the bits of every other engine."""
        mixer, senders = self._shard.mixer, self._sends
        mixer.receive(*((np.array([peer]), row[None]) for peer, row in sorted(received.items())))
        columns = np.array(sorted(weights), dtype=np.int64)
        values = np.array([weights[column] for column in columns.tolist()])
        shape = (1, self.workers)
        row = csr_array((values, columns, np.array([0, len(columns)])), shape=shape)
        peers = sorted(received)
        links = np.array([[self.worker, peer] for peer in peers], dtype=np.int64).reshape(-1, 2)
        distances = mixer.exchange(links, row, kernel="ordered", senders=senders)
        return dict(zip(peers, distances.tolist(), strict=True))

"""The torch side of one worker: its shard of one, trained in a thread of its own.

Everything long runs in that thread and can be given up between two steps; whatever changes the
current model runs on the event loop, so that no two changes ever overlap.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from fedhp.algorithms import AsyncAlgorithm
from fedhp.cluster.protocol.attempt import INITIAL, Attempt
from fedhp.cluster.protocol.codec import ModelCodec
from fedhp.cluster.protocol.poisoned import poisoned_of
from fedhp.cluster.worker.model_store import Kept, ModelStore
from fedhp.engine.executor import Turn, check_finite
from fedhp.engine.prepare import Prepared
from fedhp.engine.shard import Shard
from fedhp.engine.shard_spec import ShardSpec
from fedhp.graph import directed_weights
from fedhp.learn.mix import distance
from fedhp.learn.robust import combine
from fedhp.types import IntArray

T = TypeVar("T")
Row = NDArray[np.float32]  # the part of a model that travels
HERE = 0  # the one place of a shard of one


@dataclass(frozen=True, slots=True)
class Trained:
    """What local training gave; row is what the readers get."""

    loss: float  # NaN if there was no step
    update_norm: float
    seconds: float
    row: Row


@dataclass(frozen=True, slots=True)
class Estimated:
    """What the worker found out about its objective; NaN where it did not look."""

    smoothness: float = float("nan")
    gradient_variance: float = float("nan")
    start_loss: float = float("nan")


@dataclass(frozen=True, slots=True)
class Mixed:
    """The model after an exchange, not yet the worker's, and how far its peers were."""

    model: Kept
    distances: dict[int, float]  # by peer
    digest: bytes  # SHA-256 of the part that travels


class Learner:
    """Trains, mixes and tests the model of one worker."""

    def __init__(self, prepared: Prepared, holding: ShardSpec, keep: ModelStore) -> None:
        self.prepared = prepared
        self.keep = keep
        self.worker = int(holding.workers[HERE])
        self.samples = len(holding.parts[HERE])
        self.layout = holding.layout
        self.codec = ModelCodec(holding.layout)
        self.stand = INITIAL
        self._stop = threading.Event()
        # Torch counts threads per calling thread; with more than one, sums have other bits.
        self._pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))
        self._shard = self._pool.submit(partial(Shard, holding, stop=self._stopped)).result()
        keep.load(width=self.layout.width, counters=self.layout.counter_width)
        keep.hold(INITIAL, self._current())

    def close(self) -> None:
        """Give up what runs and let the threads go."""
        self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._shard.close()

    @property
    def asynchronous(self) -> bool:
        """Whether the algorithm averages pairs instead of rounds."""
        return isinstance(self.prepared.algorithm, AsyncAlgorithm)

    async def run(self, job: Callable[[], T]) -> T:
        """Do something long in the thread; a cancelled caller makes it stop at its next step."""
        stop = threading.Event()

        def watched() -> T:
            self._stop = stop
            return job()

        future = asyncio.get_running_loop().run_in_executor(self._pool, watched)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.set()
            future.cancel()  # if it has not begun
            raise

    def _stopped(self) -> bool:
        return self._stop.is_set()

    # --- one synchronous round, in the thread ----------------------------------------------

    def calibrate(self) -> float:
        """Seconds of one local step; the model stays as it is."""
        rate = self.prepared.experiment.training.learning_rate
        seconds = 0.0
        for _ in range(2):  # the first one warms up
            self._shard.snapshot(HERE)
            started = time.monotonic()
            self._shard.train_snapshots({HERE: Turn(0, 1, rate)})
            seconds = time.monotonic() - started
        return seconds

    def train(self, steps: int, *, round_index: int, learning_rate: float) -> Trained:
        """The local steps of a round, from the committed model."""
        started = time.monotonic()
        local_steps = np.array([steps], dtype=np.int64)
        loss, norm = self._shard.train(
            local_steps, round_index=round_index, learning_rate=learning_rate
        )
        check_finite(loss, norm, local_steps > 0, round_index, learning_rate)
        seconds = time.monotonic() - started
        _, rows = self._shard.rows(np.array([self.worker]))
        return Trained(float(loss[HERE]), float(norm[HERE]), seconds, rows[0])

    def estimate(self, round_index: int) -> Estimated:
        """Smoothness, gradient variance and starting loss of this round's training."""
        found = self._shard.estimate([HERE], round_index=round_index)
        return Estimated(
            float(found.smoothness[HERE]),
            float(found.gradient_variance[HERE]),
            float(found.start_loss[HERE]),
        )

    def score(
        self, received: Mapping[int, Row], *, keep: int, samples: int, round_index: int
    ) -> list[int]:
        """The peers whose models do best on samples of one's own."""
        if not received:
            return []
        self._receive(received)
        candidates = np.array([sorted(received)], dtype=np.int64)
        chosen = self._shard.score(candidates, keep=keep, samples=samples, round_index=round_index)[
            HERE
        ]
        return [int(peer) for peer in chosen if peer >= 0]

    def equal_weights(self, chosen: Sequence[int]) -> dict[int, float]:
        """Weights of the worker and its chosen peers in equal parts."""
        sources: IntArray = np.full((self.prepared.experiment.workers, len(chosen)), -1)
        sources[self.worker] = chosen
        row = directed_weights(sources)[[self.worker]]
        return dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))

    def mix(self, received: Mapping[int, Row], weights: Mapping[int, float]) -> Mixed:
        """Measure distances to all received models, then mix those that have a weight."""
        if self.prepared.experiment.cluster.robust == "none":
            distances = self._mix_ordered(received, weights)
        else:
            distances = self._mix_robust(received, weights)
        row = self._shard.mixed[HERE].cpu().numpy().copy()
        counters = self._shard.after_counters[HERE].cpu().numpy().copy()
        return Mixed(Kept(row, counters), distances, self.digest(row))

    def test(self, model: Kept, *, whole: bool) -> float:
        """The metric of a model on the run's test samples, or on all of them."""
        (found,) = self._shard.evaluate_later(model.row, whole=whole, everyone=False)()
        return found

    def digest(self, row: NDArray[np.float32]) -> bytes:
        """SHA-256 of the part of a model that travels."""
        return hashlib.sha256(row[: self.layout.mixed].astype("<f4", copy=False).data).digest()

    def write(self, stand: Attempt, model: Kept) -> None:
        """Keep a model durably, beside the one the worker stands at."""
        self.keep.write(stand, model, beside=self.stand)

    # --- what changes the current model, on the event loop ---------------------------------

    def advance(self, stand: Attempt) -> bool:
        """Stand at a committed model, if it is here."""
        if stand == self.stand:
            return True
        model = self.keep.get(stand)
        if model is None:
            return False
        self.take(stand, model)
        return True

    def take(self, stand: Attempt, model: Kept) -> None:
        """This is the current model from now on."""
        self._shard.load({"models": model.row[None], "counters": model.counters[None]})
        self.stand = stand

    def caught_up(self, row: Row) -> Kept:
        """A peer's model with what stays at home of one's own."""
        own = self._current()
        own.row[: self.layout.mixed] = row
        return own

    def current(self) -> Row:
        """The part that travels of the current model."""
        return self._shard.model(HERE)

    def label(self, stand: Attempt) -> Kept:
        """An asynchronous worker's model moves all the time: it stands where the run stands."""
        self.stand = stand
        return self._current()

    def snapshot(self) -> None:
        """A turn starts from the current model."""
        self._shard.snapshot(HERE)

    def train_turn(self, turn: Turn) -> Trained:
        """Train the snapshot (in the thread); `apply` adds the change to the current model."""
        started = time.monotonic()
        loss = self._shard.train_snapshots({HERE: turn})[HERE]
        return Trained(loss, float("nan"), time.monotonic() - started, np.empty(0, np.float32))

    def apply(self, loss: float, *, round_index: int, learning_rate: float) -> float:
        """Add the change of a turn to the current model; its norm."""
        norm = self._shard.apply(HERE)
        worked = np.array([True])
        check_finite(np.array([loss]), np.array([norm]), worked, round_index, learning_rate)
        return norm

    def average(self, other: Row) -> float:
        """Take the mean of the current model and another; how far apart they were."""
        return self._shard.average(HERE, other)

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """The current model, tensor by tensor under the names of the module."""
        model = self._current()
        found: dict[str, NDArray[np.generic]] = {}
        for slots, values in (
            (self.layout.slots, model.row),
            (self.layout.counters, model.counters),
        ):
            for slot in slots:
                found[slot.name] = values[slot.start : slot.stop].reshape(slot.shape)
        return found

    # --- inside ----------------------------------------------------------------------------

    def _current(self) -> Kept:
        state = self._shard.state()
        return Kept(state["models"][HERE].copy(), state["counters"][HERE].copy())

    def _receive(self, received: Mapping[int, Row]) -> None:
        self._shard.receive(
            *((np.array([peer]), row[None]) for peer, row in sorted(received.items()))
        )

    def _mix_ordered(
        self, received: Mapping[int, Row], weights: Mapping[int, float]
    ) -> dict[int, float]:
        """By rising worker, one's own among them: the bits of every other engine."""
        self._receive(received)
        columns = np.array(sorted(weights), dtype=np.int64)
        values = np.array([weights[column] for column in columns.tolist()])
        row = csr_array(
            (values, (np.zeros(len(columns), dtype=np.int64), columns)),
            shape=(1, self.prepared.experiment.workers),
        )
        peers = sorted(received)
        links = np.array([[self.worker, peer] for peer in peers], dtype=np.int64).reshape(-1, 2)
        apart = self._shard.exchange(links, row, kernel="ordered")
        return dict(zip(peers, apart.tolist(), strict=True))

    def _mix_robust(
        self, received: Mapping[int, Row], weights: Mapping[int, float]
    ) -> dict[int, float]:
        """By a rule that a few poisoned models cannot steer (cluster.robust)."""
        cluster, shard = self.prepared.experiment.cluster, self._shard
        own = shard.after[HERE, : self.layout.mixed]
        tensors = {
            peer: torch.from_numpy(row).to(own.device) for peer, row in sorted(received.items())
        }
        trainable = slice(self.layout.trainable)
        apart = {peer: distance(own[trainable], row[trainable]) for peer, row in tensors.items()}
        used = [peer for peer in tensors if peer in weights]
        shard.mixed[HERE] = shard.after[HERE]
        if used:
            shard.mixed[HERE, : self.layout.mixed] = combine(
                own,
                [tensors[peer] for peer in used],
                [weights[peer] for peer in used],
                weights[self.worker],
                rule=cluster.robust,
                poisoned=poisoned_of(self.prepared.experiment.workers, cluster.trim),
                clip=cluster.clip,
            )
        return apart

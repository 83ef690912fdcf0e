"""Training on this machine: all models in one matrix, executors that train workers.

`models` holds every worker's model at the start of the round and stays whole until
`advance`: a round can be given up at any instant before. Results do not depend on the
number of executors.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhp.engine.prepare import Prepared
from fedhp.errors import Diverged
from fedhp.graph import mixing_matrix, topology_from
from fedhp.learn.evaluate import choose_images, score, score_peers
from fedhp.learn.local import PROBE_BATCHES, Estimate, Samples, check, estimate, train
from fedhp.learn.mix import directed_weights, distances, mix, update_norms
from fedhp.learn.params import Replica, row_of, rows_of
from fedhp.learn.stacked import DenseStack, dense_stack
from fedhp.learn.task import initial_model
from fedhp.seeds import Purpose, generator, number
from fedhp.types import (
    Evaluation,
    Exchange,
    FloatArray,
    IntArray,
    NeighborMixing,
    PeerScoring,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Training:
    """What local training gave, [N] each; NaN where a worker did nothing."""

    loss: FloatArray
    update_norm: FloatArray
    smoothness: FloatArray
    gradient_variance: FloatArray
    start_loss: FloatArray


@dataclass(frozen=True, slots=True)
class Turn:
    """One worker's local training: the key of its batches, steps and learning rate."""

    key: int
    steps: int
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Which models travelled: links (receiver, sender if directed), and what was chosen."""

    links: IntArray  # [E, 2]
    directed: bool
    distance: FloatArray  # [E] before mixing
    selected: IntArray  # [N, keep], -1 where none


class LocalEngine:
    """Executes plans."""

    def __init__(self, prepared: Prepared, *, stop: Callable[[], bool] = lambda: False) -> None:
        self.prepared = prepared
        self.stop = stop
        self.seed = prepared.experiment.seed
        self.workers = prepared.experiment.workers
        self.batch_size = prepared.experiment.training.batch_size
        device, layout = prepared.device, prepared.layout
        torch.set_num_threads(1)
        initial = initial_model(prepared.task, self.seed)
        row, counters = row_of(initial, layout)
        fast = prepared.experiment.training.kernel == "auto"
        self.stack = dense_stack(prepared.task, initial, layout) if fast else None
        self.models = row.to(device).repeat(self.workers, 1)
        self.counters = counters.to(device).repeat(self.workers, 1)
        self.after = self.models.clone()
        self.after_counters = self.counters.clone()
        self.mixed = self.models.clone()
        data = prepared.dataset
        self.samples = _to_device(data.train_inputs, data.train_targets, device)
        chosen = choose_images(
            data,
            images=prepared.experiment.evaluation.images,
            choose=prepared.experiment.evaluation.choose,
        )
        self.test = _to_device(data.test_inputs[chosen], data.test_targets[chosen], device)
        self._replicas: queue.SimpleQueue[Replica] = queue.SimpleQueue()
        for _ in range(prepared.executors):
            module = initial_model(prepared.task, self.seed).to(device)
            self._replicas.put(Replica(module, layout))
        self._pool = ThreadPoolExecutor(
            prepared.executors, initializer=torch.set_num_threads, initargs=(1,)
        )

    def close(self) -> None:
        """Let the executors go."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def load(self, models: NDArray[np.float32], counters: NDArray[np.int64]) -> None:
        """Take over models from a checkpoint."""
        self.models.copy_(torch.from_numpy(models))
        self.counters.copy_(torch.from_numpy(counters))

    def train(
        self, local_steps: IntArray, *, round_index: int, learning_rate: float, estimates: bool
    ) -> Training:
        """Every worker's local steps, from `models` into `after`."""
        self.after.copy_(self.models)
        self.after_counters.copy_(self.counters)
        order = np.argsort(-local_steps, kind="stable").tolist()
        turns = {
            worker: Turn(round_index, int(local_steps[worker]), learning_rate)
            for worker in order
            if local_steps[worker] > 0
        }
        losses = self.train_rows(turns, self.after, self.after_counters)
        loss = np.array([losses.get(worker, np.nan) for worker in range(self.workers)])
        norms = update_norms(self.models, self.after, self.prepared.layout.trainable)
        check_finite(loss, norms, local_steps > 0, round_index, learning_rate)
        found = self._estimate(list(turns), round_index) if estimates else {}
        return Training(
            loss=loss,
            update_norm=np.where(local_steps > 0, norms, np.nan),
            smoothness=self._column(found, "smoothness"),
            gradient_variance=self._column(found, "gradient_variance"),
            start_loss=self._column(found, "start_loss"),
        )

    def train_rows(
        self, turns: dict[int, Turn], rows: Tensor, counters: Tensor
    ) -> dict[int, float]:
        """Train these workers' rows in place, the longest turns first. Mean losses."""
        if self.stack is not None and turns:
            losses = self._train_stacked(self.stack, turns, rows)
        else:
            views = rows_of(rows)
            losses = self._run(
                lambda worker, replica: self._train_one(
                    replica, worker, turns[worker], (views[worker], counters[worker])
                ),
                order=list(turns),
            )
        check(self.stop)
        return losses

    def _train_stacked(
        self, stack: DenseStack, turns: dict[int, Turn], rows: Tensor
    ) -> dict[int, float]:
        workers = list(turns)
        chosen = rows[workers]
        losses = stack.train(
            chosen,
            self.samples,
            batches=[
                self._draw(Purpose.BATCHES, worker, turn.key, turn.steps)
                for worker, turn in turns.items()
            ],
            rates=torch.tensor([turn.learning_rate for turn in turns.values()]),
            stop=self.stop,
        )
        rows[workers] = chosen
        return dict(zip(workers, losses.tolist(), strict=True))

    def _estimate(self, workers: list[int], round_index: int) -> dict[int, Estimate]:
        """Smoothness and gradient variance of these workers."""
        if self.stack is not None:
            probes = [
                self._draw(Purpose.PROBE, worker, round_index, PROBE_BATCHES) for worker in workers
            ]
            found = self.stack.estimate(
                self.models[workers], self.after[workers], self.samples, probe=torch.stack(probes)
            )
            return dict(zip(workers, found, strict=True))

        def job(worker: int, replica: Replica) -> Estimate:
            with self._noise(Purpose.PROBE, worker, round_index):
                return estimate(
                    replica,
                    self.prepared.task,
                    self.samples,
                    before=(self.models[worker], self.counters[worker]),
                    after=(self.after[worker], self.after_counters[worker]),
                    probe=self._draw(Purpose.PROBE, worker, round_index, PROBE_BATCHES),
                    stop=self.stop,
                )

        return self._run(job, order=workers)

    def exchange(self, exchange: Exchange, *, round_index: int) -> Exchanged:
        """Measure distances on the links, then mix `after` into the next models."""
        none = np.empty((self.workers, 0), dtype=np.int64)
        if isinstance(exchange, NeighborMixing):
            links, selected = exchange.topology.links, none
            weights = mixing_matrix(exchange.topology, exchange.weights)
            directed = False
        else:
            directed = True
            if isinstance(exchange, PeerScoring):
                transfers = exchange.candidates
                selected = self._select(exchange, round_index)
            else:
                transfers, selected = exchange.sources, none
            kept = selected if isinstance(exchange, PeerScoring) else transfers
            links, weights = _pairs(transfers), directed_weights(kept)
            if isinstance(exchange, PeerScoring) and exchange.symmetric:
                links = _with_answers(links, _pairs(kept))
                weights = mixing_matrix(topology_from(self.workers, _pairs(kept)), "metropolis")
        distance = distances(self.after[:, : self.prepared.layout.trainable], links)
        mix(self.after, weights, mixed=self.prepared.layout.mixed, out=self.mixed)
        return Exchanged(links, directed, distance, selected)

    def advance(self) -> None:
        """The mixed models become the models of the next round."""
        self.models, self.mixed = self.mixed, self.models
        self.counters, self.after_counters = self.after_counters, self.counters

    def evaluate(self, models: Tensor) -> Evaluation:
        """Test every worker's model and their mean."""
        mean = models.double().mean(dim=0).to(models.dtype)
        everyone = torch.cat([models, mean.unsqueeze(0)])
        scores = self._score_stacked(everyone) if self.stack else self._score(everyone)
        check(self.stop)
        accuracy = np.array(scores[: self.workers])
        images = len(self.test.inputs)
        share = float(accuracy.mean())
        counts = self.prepared.dataset.classes is not None and 0 <= share <= 1
        return Evaluation(
            accuracy=accuracy,
            mean_model_accuracy=scores[self.workers],
            images=images,
            standard_error=float(np.sqrt(share * (1 - share) / images)) if counts else np.nan,
        )

    def _score(self, models: Tensor) -> list[float]:
        rows = rows_of(models)

        def job(index: int, replica: Replica) -> float:
            # The mean model has no counters of its own; evaluation does not read them.
            replica.bind(rows[index], self.counters[min(index, self.workers - 1)].clone())
            return score(replica, self.prepared.task, self.test, stop=self.stop)

        scores = self._run(job, order=list(range(len(models))))
        return [scores[index] for index in range(len(models))]

    def _score_stacked(self, models: Tensor) -> list[float]:
        assert self.stack is not None
        outputs = self.stack.outputs(models, self.test.inputs)
        return [self.prepared.task.metric(each, self.test.targets) for each in outputs]

    def _train_one(
        self, replica: Replica, worker: int, turn: Turn, rows: tuple[Tensor, Tensor]
    ) -> float:
        replica.bind(*rows)
        batches = self._draw(Purpose.BATCHES, worker, turn.key, turn.steps)
        with self._noise(Purpose.BATCHES, worker, turn.key):
            return train(
                replica,
                self.prepared.task,
                self.samples,
                batches=batches,
                learning_rate=turn.learning_rate,
                stop=self.stop,
            )

    @contextlib.contextmanager
    def _noise(self, purpose: Purpose, worker: int, key: int) -> Iterator[None]:
        """A module that draws random numbers (dropout) gets its own, per worker and round."""
        if not self.prepared.facts.stochastic:
            yield
            return
        with torch.random.fork_rng():
            seed = number(self.seed, Purpose.MODULE_NOISE, purpose, worker, key)
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_available():
                torch.cuda.manual_seed_all(seed)
            yield

    def _draw(self, purpose: Purpose, worker: int, key: int, batches: int) -> Tensor:
        """Random minibatches of a worker's own samples, [batches, batch]."""
        part = self.prepared.parts[worker]
        rng = generator(self.seed, purpose, worker, key)
        picks = rng.integers(len(part), size=(batches, self.batch_size))
        return torch.from_numpy(part[picks]).to(self.samples.inputs.device)

    def _select(self, exchange: PeerScoring, round_index: int) -> IntArray:
        """The best-scored candidates of every worker, [N, keep]."""
        own = []
        for worker, part in enumerate(self.prepared.parts):
            rng = generator(self.seed, Purpose.SCORING, worker, round_index)
            picks = part[rng.integers(len(part), size=exchange.samples)]
            own.append(torch.from_numpy(picks).to(self.samples.inputs.device))
        replica = self._replicas.get()
        try:
            losses = score_peers(
                replica,
                self.prepared.task,
                self.samples,
                candidates=exchange.candidates,
                own_samples=own,
                bind=lambda peer: replica.bind(self.after[peer], self.after_counters[peer]),
            ).numpy()
        finally:
            self._replicas.put(replica)
        keep = min(exchange.keep, losses.shape[1])
        best = np.argsort(losses, axis=1, kind="stable")[:, :keep]
        chosen = np.take_along_axis(exchange.candidates, best, axis=1)
        return np.asarray(np.where(np.take_along_axis(losses, best, axis=1) < np.inf, chosen, -1))

    def _column(self, found: dict[int, Estimate], name: str) -> FloatArray:
        values = [getattr(found.get(worker), name, np.nan) for worker in range(self.workers)]
        return np.array(values)

    def _run(self, job: Callable[[int, Replica], T], *, order: list[int]) -> dict[int, T]:
        """Run a job per index over the executors, in this order of starting."""

        def call(index: int) -> T:
            replica = self._replicas.get()
            try:
                return job(index, replica)
            finally:
                self._replicas.put(replica)

        if self.prepared.executors == 1:
            return {index: call(index) for index in order}
        return dict(zip(order, self._pool.map(call, order), strict=True))


def check_finite(
    loss: FloatArray,
    norms: FloatArray,
    worked: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
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


def _with_answers(links: IntArray, kept: IntArray) -> IntArray:
    """The transfers (receiver, sender), and one back along each kept pair that lacks it."""
    return np.unique(np.concatenate([links, kept[:, ::-1]]), axis=0)


def _pairs(sources: IntArray) -> IntArray:
    receivers, columns = np.nonzero(sources >= 0)
    return np.stack([receivers, sources[receivers, columns]], axis=1).astype(np.int64)


def _to_device(
    inputs: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    targets: np.ndarray[tuple[int, ...], np.dtype[np.int64] | np.dtype[np.float32]],
    device: torch.device,
) -> Samples:
    # Copies: the arrays are read-only and shared between runs.
    return Samples(
        torch.from_numpy(np.array(inputs)).to(device),
        torch.from_numpy(np.array(targets)).to(device),
    )

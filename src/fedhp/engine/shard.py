"""A shard: some of the workers, their models as rows of one matrix, their data, executors.

`models` holds every worker's model at the start of the round and stays whole until
`advance`: a round can be given up at any instant before. One shard holds everyone in the
local engine; on Ray each actor hosts one. Results do not depend on the number of executors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from fedhp.engine.executor import Estimates, Turn
from fedhp.engine.shard_spec import ShardSpec
from fedhp.engine.threads import Evaluating, Executors
from fedhp.learn.evaluate import score, score_peers
from fedhp.learn.local import Estimate, Samples, check, estimate, train
from fedhp.learn.mix import add_rows, distance, distances, mix, mix_ordered, update_norms
from fedhp.learn.params import matrix, row_of, rows_of
from fedhp.learn.stacked import dense_stack
from fedhp.learn.task import initial_model
from fedhp.record.packing import Arrays
from fedhp.seeds import Purpose, generator, number
from fedhp.timing import PROBE_BATCHES
from fedhp.types import FloatArray, IntArray

Rows = tuple[IntArray, NDArray[np.float32]]  # workers, and their models
EVALUATION_IMAGES = 512  # at a time, where models are stacked


class Shard:
    """Trains, mixes and tests its workers."""

    def __init__(self, holding: ShardSpec, *, stop: Callable[[], bool] = lambda: False) -> None:
        self.holding = holding
        self.stop = stop
        self.workers = holding.workers.tolist()
        self.place = {worker: place for place, worker in enumerate(self.workers)}
        torch.set_num_threads(1)
        device, layout, task = holding.device, holding.layout, holding.task
        initial = initial_model(task, holding.seed)
        row, counters = row_of(initial, layout)
        self.stack = dense_stack(task, initial, layout) if holding.kernel == "auto" else None
        count, folder = len(self.workers), holding.scratch
        self.models = matrix(count, row.to(device), folder)
        self.after = matrix(count, row.to(device), folder)
        self.mixed = matrix(count, row.to(device), folder)
        self.counters = counters.to(device).repeat(count, 1)
        self.after_counters = self.counters.clone()
        self.samples = Samples.on(
            holding.dataset.train_inputs, holding.dataset.train_targets, device
        )
        self.tests = Samples.on(holding.dataset.test_inputs, holding.dataset.test_targets, device)
        self.test = Samples(*self.tests.take(torch.from_numpy(holding.test).to(device)))
        self._foreign: dict[int, Tensor] = {}
        self._threads = Executors(
            holding, self.samples.inputs[:1].expand(4, *holding.dataset.shape)
        )

    def close(self) -> None:
        """Let the executors go."""
        self._threads.close()

    # --- a synchronous round: train, exchange, advance -------------------------------------

    def train(
        self, local_steps: IntArray, *, round_index: int, learning_rate: float
    ) -> tuple[FloatArray, FloatArray]:
        """Every worker's local steps, from `models` into `after`: mean losses, update norms."""
        self._foreign = {}
        self.after.copy_(self.models)
        self.after_counters.copy_(self.counters)
        turns = {
            place: Turn(round_index, int(local_steps[place]), learning_rate)
            for place in np.argsort(-local_steps, kind="stable").tolist()
            if local_steps[place] > 0
        }
        losses = self._train(turns)
        loss = np.array([losses.get(place, np.nan) for place in range(len(self.workers))])
        norms = update_norms(self.models, self.after, self.holding.layout.trainable)
        return loss, np.where(local_steps > 0, norms, np.nan)

    def estimate(self, places: Sequence[int], *, round_index: int) -> Estimates:
        """Smoothness, gradient variance and starting loss of these workers."""
        chosen = list(places)
        found = self._estimate_stacked if self.stack is not None else self._estimate_each
        estimates = found(chosen, round_index) if chosen else {}
        missing = Estimate(np.nan, np.nan, np.nan)
        rows = [estimates.get(place, missing) for place in range(len(self.workers))]
        return Estimates(
            smoothness=np.array([each.smoothness for each in rows]),
            gradient_variance=np.array([each.gradient_variance for each in rows]),
            start_loss=np.array([each.start_loss for each in rows]),
        )

    def rows(self, workers: IntArray) -> Rows:
        """The trained models of these workers, the part that travels."""
        places = [self.place[worker] for worker in workers.tolist()]
        mixed = self.holding.layout.mixed
        return workers, self.after[places, :mixed].cpu().numpy()

    def receive(self, *parcels: Rows) -> None:
        """Models of workers elsewhere, needed for this round's exchange, beside those there."""
        for workers, rows in parcels:
            here = torch.from_numpy(rows).to(self.models.device)
            self._foreign.update(zip(workers.tolist(), here, strict=True))

    def score(self, candidates: IntArray, *, keep: int, samples: int, round_index: int) -> IntArray:
        """The best-scored candidates [n, M] of every worker, [n, keep]."""
        own = []
        for worker, part in zip(self.workers, self.holding.parts, strict=True):
            rng = generator(self.holding.seed, Purpose.SCORING, worker, round_index)
            own.append(self._to(part[rng.integers(len(part), size=samples)]))
        with self._threads.replica() as replica:
            losses = score_peers(
                replica,
                self.holding.task,
                self.samples,
                candidates=candidates,
                own_samples=own,
                bind=lambda peer, place: replica.bind(*self._as_seen(peer, place)),
                stop=self.stop,
            )
        best = np.argsort(losses, axis=1, kind="stable")[:, : min(keep, losses.shape[1])]
        chosen = np.take_along_axis(candidates, best, axis=1)
        return np.asarray(np.where(np.take_along_axis(losses, best, axis=1) < np.inf, chosen, -1))

    def exchange(self, links: IntArray, weights: csr_array, *, kernel: str) -> FloatArray:
        """Measure the distances on these links [E, 2], then mix `after` into `mixed`.

        weights are the rows of this shard's workers, [n, N]; a link's first end is here.
        """
        layout = self.holding.layout
        if kernel == "ordered":
            trainable = slice(layout.trainable)
            apart = np.array(
                [distance(self._row(a)[trainable], self._row(b)[trainable]) for a, b in links]
            )
            rows = [self._row(worker) for worker in np.unique(weights.indices).tolist()]
            compact = csr_array(
                (weights.data, np.unique(weights.indices, return_inverse=True)[1], weights.indptr),
                shape=(weights.shape[0], len(rows)),
            )
            mix_ordered(rows, compact, mixed=layout.mixed, out=self.mixed, run=self._threads.run)
            if layout.mixed < layout.width:
                self.mixed[:, layout.mixed :] = self.after[:, layout.mixed :]
        else:
            apart = distances(self.after[:, : layout.trainable], links, run=self._threads.run)
            mix(
                self.after,
                weights,
                mixed=layout.mixed,
                out=self.mixed,
                kernel=kernel,
                run=self._threads.run,
            )
        self._foreign = {}
        check(self.stop)
        return apart

    def advance(self) -> None:
        """The mixed models become the models of the next round."""
        self.models, self.mixed = self.mixed, self.models
        self.counters, self.after_counters = self.after_counters, self.counters

    # --- an asynchronous algorithm: one worker at a time; `after` holds what is in flight ---

    def snapshot(self, place: int) -> None:
        """The worker starts a turn from its current model."""
        self.after[place] = self.models[place]
        self.after_counters[place] = self.counters[place]

    def train_snapshots(self, turns: dict[int, Turn]) -> dict[int, float]:
        """Train these snapshots; what is in flight is then the change that training made."""
        start = self.after[list(turns)]
        losses = self._train(turns)
        for index, place in enumerate(turns):
            self.after[place] -= start[index]
        return losses

    def apply(self, place: int) -> float:
        """Add the change to the worker's current model; its norm."""
        change = self.after[place]
        self.models[place] += change
        self.counters[place] = self.after_counters[place]
        return float(torch.linalg.vector_norm(change[: self.holding.layout.trainable]))

    def model(self, place: int) -> NDArray[np.float32]:
        """The part of a worker's current model that travels."""
        return self.models[place, : self.holding.layout.mixed].cpu().numpy().copy()

    def average(self, place: int, other: NDArray[np.float32]) -> float:
        """The worker takes the mean of its model and another; how far apart they were."""
        mine = self.models[place, : self.holding.layout.mixed]
        theirs = torch.from_numpy(other).to(mine.device)
        trainable = slice(self.holding.layout.trainable)
        apart = float(torch.linalg.vector_norm((mine - theirs)[trainable]))
        mine.copy_((mine + theirs) * 0.5)
        return apart

    # --- tests, and what a checkpoint holds ------------------------------------------------

    def sum_models(self, total: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Add this shard's models, by rising worker, to a float64 total [D]."""
        start = torch.zeros(self.models.shape[1], dtype=torch.float64, device=self.models.device)
        if total is not None:
            start.copy_(torch.from_numpy(np.array(total)))
        return np.asarray(add_rows(start, self.models).cpu().numpy())

    def evaluate(
        self, mean: NDArray[np.float32] | None = None, *, whole: bool = False
    ) -> list[float]:
        """The metric of every worker's model, and last of the mean model if it is given."""
        return self.evaluate_later(mean, whole=whole)()

    def evaluate_later(
        self,
        mean: NDArray[np.float32] | None = None,
        *,
        whole: bool = False,
        everyone: bool = True,
    ) -> Evaluating:
        """Start the tests on the executors; the models must not change before they are done."""
        test = self.tests if whole else self.test
        rows = rows_of(self.models) if everyone else []
        counters = self.counters.clone()
        if mean is not None:
            rows.append(torch.from_numpy(np.array(mean)).to(self.models.device))
        if self.stack is not None:
            size = self.stack.chunk(self.models.device)
            chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
            return self._threads.later([partial(self._score, chunk, test) for chunk in chunks])

        def one(index: int) -> list[float]:
            with self._threads.replica() as replica:
                # The mean model has no counters; evaluation does not read them.
                replica.bind(rows[index], counters[min(index, len(counters) - 1)])
                return [score(replica, self.holding.task, test, stop=self.stop)]

        return self._threads.later([partial(one, index) for index in range(len(rows))])

    def _score(self, rows: list[Tensor], test: Samples) -> list[float]:
        assert self.stack is not None
        stacked, outputs = torch.stack(rows), []
        for batch in torch.split(test.inputs, EVALUATION_IMAGES):
            check(self.stop)
            outputs.append(self.stack.outputs(stacked, batch))
        return [self.holding.task.metric(each, test.targets) for each in torch.cat(outputs, dim=1)]

    def state(self, *, flying: bool = False) -> Arrays:
        """Models and counters; for an asynchronous algorithm also what is in flight."""
        arrays: Arrays = {
            "models": self.models.cpu().numpy(),
            "counters": self.counters.cpu().numpy(),
        }
        if flying:
            arrays["in_flight"] = self.after.cpu().numpy()
            arrays["flight_counters"] = self.after_counters.cpu().numpy()
        return arrays

    def load(self, state: Arrays) -> None:
        """Take over a state."""
        targets = {
            "models": self.models,
            "counters": self.counters,
            "in_flight": self.after,
            "flight_counters": self.after_counters,
        }
        for name, array in state.items():
            targets[name].copy_(torch.from_numpy(np.array(array)))

    # --- inside ----------------------------------------------------------------------------

    def _train(self, turns: dict[int, Turn]) -> dict[int, float]:
        """Train rows of `after` in place, the longest turns first. Mean losses by place."""
        if self.stack is None:
            views = rows_of(self.after)
            losses = self._threads.run(
                lambda place: self._train_one(place, turns[place], views), turns
            )
        else:
            size = self.stack.chunk(self.after.device)
            places = sorted(turns, key=lambda place: (-turns[place].steps, place))
            count = -(-len(places) // size) if places else 0
            # Dealt out like cards, so that every chunk has long and short turns.
            chunks = [places[start::count] for start in range(count)]
            found = self._threads.feed(
                lambda drawn: self._train_stacked(drawn[0], turns, drawn[1]),
                ((chunk, self._batches(chunk, turns)) for chunk in chunks),
            )
            losses = {place: loss for part in found for place, loss in part.items()}
        check(self.stop)
        return losses

    def _train_one(self, place: int, turn: Turn, views: list[Tensor]) -> float:
        batches = self._draw(Purpose.BATCHES, place, turn.key, turn.steps)
        noise = self._noise(Purpose.BATCHES, place, turn.key)
        with self._threads.replica() as replica, noise:
            replica.bind(views[place], self.after_counters[place])
            return train(
                replica,
                self.holding.task,
                self.samples,
                batches=batches,
                learning_rate=turn.learning_rate,
                stop=self.stop,
            )

    def _batches(self, places: list[int], turns: dict[int, Turn]) -> list[Tensor]:
        return [
            self._draw(Purpose.BATCHES, place, turns[place].key, turns[place].steps)
            for place in places
        ]

    def _train_stacked(
        self, places: list[int], turns: dict[int, Turn], batches: list[Tensor]
    ) -> dict[int, float]:
        assert self.stack is not None
        losses = self.stack.train(
            self.after,
            places,
            self.samples,
            batches=batches,
            rates=torch.tensor([turns[place].learning_rate for place in places]),
            stop=self.stop,
        )
        return dict(zip(places, losses.tolist(), strict=True))

    def _estimate_stacked(self, places: list[int], round_index: int) -> dict[int, Estimate]:
        assert self.stack is not None
        found: dict[int, Estimate] = {}
        size = self.stack.chunk(self.after.device)
        for start in range(0, len(places), size):
            check(self.stop)
            chunk = places[start : start + size]
            probes = [self._draw(Purpose.PROBE, each, round_index, PROBE_BATCHES) for each in chunk]
            estimates = self.stack.estimate(
                self.models[chunk], self.after[chunk], self.samples, probe=torch.stack(probes)
            )
            found.update(zip(chunk, estimates, strict=True))
        return found

    def _estimate_each(self, places: list[int], round_index: int) -> dict[int, Estimate]:
        def job(place: int) -> Estimate:
            noise = self._noise(Purpose.PROBE, place, round_index)
            with self._threads.replica() as replica, noise:
                return estimate(
                    replica,
                    self.holding.task,
                    self.samples,
                    before=(self.models[place], self.counters[place]),
                    after=(self.after[place], self.after_counters[place]),
                    probe=self._draw(Purpose.PROBE, place, round_index, PROBE_BATCHES),
                    stop=self.stop,
                )

        return self._threads.run(job, places)

    @contextlib.contextmanager
    def _noise(self, purpose: Purpose, place: int, key: int) -> Iterator[None]:
        """A module that draws random numbers (dropout) gets its own, per worker and round."""
        if not self.holding.stochastic:
            yield
            return
        with torch.random.fork_rng():
            worker = self.workers[place]
            seed = number(self.holding.seed, Purpose.MODULE_NOISE, purpose, worker, key)
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_available():
                torch.cuda.manual_seed_all(seed)
            yield

    def _draw(self, purpose: Purpose, place: int, key: int, batches: int) -> Tensor:
        """Random minibatches of a worker's own samples, [batches, batch]."""
        part = self.holding.parts[place]
        rng = generator(self.holding.seed, purpose, self.workers[place], key)
        return self._to(part[rng.integers(len(part), size=(batches, self.holding.batch_size))])

    def _to(self, indices: IntArray) -> Tensor:
        return torch.from_numpy(indices).to(self.samples.inputs.device)

    def _row(self, worker: int) -> Tensor:
        """A worker's trained model, the part that travels; of this shard or received."""
        place = self.place.get(int(worker))
        if place is None:
            return self._foreign[int(worker)]
        return self.after[place, : self.holding.layout.mixed]

    def _as_seen(self, peer: int, place: int) -> tuple[Tensor, Tensor]:
        """A peer's model as this worker scores it: what does not travel is the worker's own."""
        row, stays = self._row(peer), self.after[place, self.holding.layout.mixed :]
        counters = self.after_counters[place].clone()
        return (torch.cat([row, stays]) if len(stays) else row), counters

"""A shard: some of the workers, their models as rows of one matrix, their data and threads.

`models` holds every worker's model at the start of the round and does not change until
`advance`: a round can be given up at any instant before. In one process one shard holds all
workers; on Ray each actor hosts one. Results do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from fedhp.engine.arrivals import PAIR_STATE, Arrivals
from fedhp.engine.executor import Estimates, LocalTraining, Pending
from fedhp.engine.prepare import ShardSpec
from fedhp.engine.threads import ShardThreads
from fedhp.learn.augment import Augmenter
from fedhp.learn.batches import ShuffledEpochs
from fedhp.learn.carried import track, unweigh, weigh
from fedhp.learn.evaluate import ModelScore, score, score_outputs, score_peers
from fedhp.learn.group_state import (
    GROUP_STATE,
    Columns,
    Contributions,
    GroupState,
    GroupUpdate,
    RootRows,
)
from fedhp.learn.local import Estimate, Samples, check, estimate, train
from fedhp.learn.mix import add_rows, distance, distances, mix, mix_ordered, update_norms
from fedhp.learn.params import STATE_RESET, VELOCITY, matrix, row_of, rows_of
from fedhp.learn.robust import combine
from fedhp.learn.stacked import dense_stack
from fedhp.learn.task import initial_model
from fedhp.record.tensors import Arrays
from fedhp.seeds import Purpose, generator, number
from fedhp.timing import PROBE_BATCHES
from fedhp.types import BoolArray, FloatArray, IntArray

Rows = tuple[IntArray, NDArray[np.float32]]  # workers, and their models
EVALUATION_IMAGES = 512  # at a time, where models are stacked
_NO_SAMPLES: IntArray = np.empty(0, dtype=np.int64)
# The arrays of `state`, as checkpoints name them.
SYNCHRONOUS_STATE = ("models", "counters")
ASYNCHRONOUS_STATE = (*SYNCHRONOUS_STATE, "in_flight", "flight_counters")


class Shard:
    """Trains, mixes and tests its workers."""

    def __init__(self, spec: ShardSpec, *, stop: Callable[[], bool] = lambda: False) -> None:
        self.spec = spec
        self.stop = stop
        self.workers = spec.workers.tolist()
        self._row_index = {worker: row for row, worker in enumerate(self.workers)}
        torch.set_num_threads(1)
        device, layout, task = spec.device, spec.layout, spec.task
        initial = initial_model(task, spec.seed)
        row, counters = row_of(initial, layout)
        stacks = spec.kernel == "auto" and spec.optimizer.stacks
        self.stack = dense_stack(task, initial, layout) if stacks else None
        self._own_columns = layout.state.start  # before the optimizer's state that stays here
        count, folder = len(self.workers), spec.scratch
        self.models = matrix(count, row.to(device), folder)
        self.after = matrix(count, row.to(device), folder)
        self.mixed = matrix(count, row.to(device), folder)
        self.counters = counters.to(device).repeat(count, 1)
        self.after_counters = self.counters.clone()
        self.samples = Samples.on(spec.dataset.train_inputs, spec.dataset.train_targets, device)
        self.test_set = Samples.on(spec.dataset.test_inputs, spec.dataset.test_targets, device)
        self.test_part = Samples(*self.test_set.take(torch.from_numpy(spec.test).to(device)))
        # What is tested, where that is not the current model.
        tested = row[: layout.tested].to(device)
        self.served = matrix(count, tested, folder) if spec.serves else None
        self._foreign: dict[int, Tensor] = {}
        self._away: list[int] = []  # rows that keep their bits this round
        self.arrivals = Arrivals(
            spec.exchange,
            spec.attack,
            attackers=spec.attackers,
            layout=layout,
            seed=spec.seed,
        )
        self.group = (
            GroupState(count, row.to(device), layout, folder) if spec.group_average else None
        )
        self._new_consensus: dict[int, Tensor] = {}  # by row, of this round's group average
        self._fragment = Columns(0, 0, 0)
        self._threads = ShardThreads(spec, self.samples.inputs[:1].expand(4, *spec.dataset.shape))

    def close(self) -> None:
        """Release the threads."""
        self._threads.close()

    # --- a synchronous round: train, exchange, advance -------------------------------------

    def train(
        self,
        local_steps: IntArray,
        *,
        round_index: int,
        learning_rate: float,
        present: BoolArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Every worker's local steps, from `models` into `after`: mean losses, update norms.

        present [n], none for all: what travels with the model of an absent worker must not move it.
        """
        self._foreign, self._new_consensus = {}, {}
        self.arrivals.begin(round_index)
        self.after.copy_(self.models)
        self.after_counters.copy_(self.counters)
        trainings = {
            row: LocalTraining(round_index, int(local_steps[row]), learning_rate)
            for row in np.argsort(-local_steps, kind="stable").tolist()
            if local_steps[row] > 0
        }
        losses = self._train(trainings, self.after)
        loss = np.array([losses.get(row, np.nan) for row in range(len(self.workers))])
        norms = update_norms(self.models, self.after, self.spec.layout.trainable)
        track(self.models, self.after, self.spec.layout)
        weigh(self.models, self.after, self.spec.layout)
        self._away = []
        if present is not None and self.spec.layout.moves_untrained:
            self._away = np.flatnonzero(~present).tolist()
        if self._away:
            self.after[self._away] = self.models[self._away]
        return loss, np.where(local_steps > 0, norms, np.nan)

    def estimate(self, chosen: Sequence[int], *, round_index: int) -> Estimates:
        """Smoothness, gradient variance and starting loss of the workers in these rows."""
        estimate_rows = self._estimate_each if self.stack is None else self._estimate_stacked
        estimates = estimate_rows(list(chosen), round_index) if chosen else {}
        missing = Estimate(np.nan, np.nan, np.nan)
        by_row = [estimates.get(row, missing) for row in range(len(self.workers))]
        return Estimates(
            smoothness=np.array([part.smoothness for part in by_row]),
            gradient_variance=np.array([part.gradient_variance for part in by_row]),
            start_loss=np.array([part.start_loss for part in by_row]),
        )

    def offered(self, worker: int) -> NDArray[np.float32]:
        """What a worker wants to send of its trained model: the part that travels."""
        return self.arrivals.offered(worker, self._own(worker)).copy()

    def rows(self, workers: IntArray) -> Rows:
        """What other shards get of these workers' trained models."""
        if self.arrivals.changes_models:
            sent = [self._sent(worker) for worker in workers.tolist()]
            return workers, torch.stack(sent).cpu().numpy()
        rows = [self._row_index[worker] for worker in workers.tolist()]
        return workers, self.after[rows, : self.spec.layout.mixed].cpu().numpy()

    def receive(self, *parcels: Rows) -> None:
        """Add models of workers in other shards that this round's exchange needs."""
        for workers, models in parcels:
            rows = torch.from_numpy(models).to(self.models.device)
            self._foreign.update(zip(workers.tolist(), rows, strict=True))

    def score(self, candidates: IntArray, *, keep: int, samples: int, round_index: int) -> IntArray:
        """The best-scored candidates [n, M] of every worker, [n, keep]."""
        own_samples = []
        for worker, part in zip(self.workers, self.spec.parts, strict=True):
            rng = generator(self.spec.seed, Purpose.SCORING, worker, round_index)
            own_samples.append(self._to(part[rng.integers(len(part), size=samples)]))
        with self._threads.replica() as replica:
            losses = score_peers(
                replica,
                self.spec.task,
                self.samples,
                candidates=candidates,
                own_samples=own_samples,
                bind=lambda peer, row: replica.bind(*self._as_seen(peer, row)),
                stop=self.stop,
            )
        best = np.argsort(losses, axis=1, kind="stable")[:, : min(keep, losses.shape[1])]
        chosen = np.take_along_axis(candidates, best, axis=1)
        return np.asarray(np.where(np.take_along_axis(losses, best, axis=1) < np.inf, chosen, -1))

    def exchange(self, links: IntArray, weights: csr_array, *, kernel: str) -> FloatArray:
        """Measure the distances on these links [E, 2], then mix `after` into `mixed`.

        weights are the rows of this shard's workers, [n, N]; a link's first end is here.
        """
        layout = self.spec.layout
        if self.arrivals.changes_models or self.spec.exchange.robust != "none":
            measured = self._mix_received(links, weights)
        elif kernel == "ordered":
            trainable = slice(layout.trainable)
            measured = np.array(
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
            measured = distances(self.after[:, : layout.trainable], links, run=self._threads.run)
            mix(
                self.after,
                weights,
                mixed=layout.mixed,
                out=self.mixed,
                kernel=kernel,
                run=self._threads.run,
            )
        unweigh(self.mixed, layout)
        if self._away:
            self.mixed[self._away] = self.after[self._away]
        if self.spec.optimizer.reset:
            self._reset_state(self.mixed, self._exchanging(weights))
        self._foreign = {}
        check(self.stop)
        return measured

    def proceed(self) -> None:
        """What was mixed is what the next exchange of the round begins with."""
        self.after, self.mixed = self.mixed, self.after
        self.arrivals.begin(self.arrivals.round_index)

    def delta_counts(self) -> IntArray:
        """What topk sent to this shard's workers: reader, sender, number of values, [P, 3]."""
        return self.arrivals.delta_counts()

    def _mix_received(self, links: IntArray, weights: csr_array) -> FloatArray:
        """Measure and mix where a worker receives something else than the sender has, or does not
        trust it: always in the order of the workers' numbers."""
        layout, robust = self.spec.layout, self.spec.exchange.robust
        trainable = slice(layout.trainable)
        measured = np.array(
            [
                distance(self._own(a)[trainable], self._received(a, b)[trainable])
                for a, b in links.tolist()
            ]
        )
        starts, columns = weights.indptr.tolist(), weights.indices.tolist()
        entries = [columns[first:last] for first, last in pairwise(starts)]
        if robust == "none":
            rows: dict[tuple[int, int], Tensor] = {}
            places = []
            for worker, peers in zip(self.workers, entries, strict=True):
                for peer in peers:
                    reader = worker if peer == worker or self.arrivals.by_reader else -1
                    row = self._own(worker) if peer == worker else self._received(worker, peer)
                    rows.setdefault((reader, peer), row)
                    places.append((reader, peer))
            number_of = {place: number for number, place in enumerate(rows)}
            compact = csr_array(
                (weights.data, np.array([number_of[place] for place in places]), weights.indptr),
                shape=(weights.shape[0], len(rows)),
            )
            mix_ordered(
                list(rows.values()),
                compact,
                mixed=layout.mixed,
                out=self.mixed,
                run=self._threads.run,
            )
        else:
            received = [
                [self._received(worker, peer) for peer in peers if peer != worker]
                for worker, peers in zip(self.workers, entries, strict=True)
            ]

            def job(row: int) -> None:
                worker = self.workers[row]
                shares = dict(
                    zip(entries[row], weights.data[starts[row] : starts[row + 1]], strict=True)
                )
                own_weight = float(shares.pop(worker, 0.0))
                self.mixed[row, : layout.mixed] = combine(
                    self._own(worker),
                    received[row],
                    [float(share) for share in shares.values()],
                    own_weight,
                    rule=robust,
                    poisoned=self.spec.max_poisoned,
                    clip=self.spec.exchange.clip,
                    radius=self.spec.exchange.radius,
                )

            self._threads.run(job, range(len(self.workers)))
        if layout.mixed < layout.width:
            self.mixed[:, layout.mixed :] = self.after[:, layout.mixed :]
        return measured

    # --- a group average: contribute, adopt, train on ---------------------------------------

    def contributions(self, workers: IntArray, columns: Columns) -> Contributions:
        """What these workers bring into a group average: their models at the start of the round."""
        assert self.group is not None
        rows = [self._row_index[worker] for worker in workers.tolist()]
        return self.group.contributions(self.models, rows, columns)

    def root_rows(self, worker: int, columns: Columns) -> RootRows:
        """What a worker knows as the root of a group average."""
        assert self.group is not None
        return self.group.root_rows(self._row_index[worker], columns)

    def adopt(self, update: GroupUpdate | None, columns: Columns) -> None:
        """mixed = the new consensus + what was learned during the transfer, for the participants.

        Everyone else, and every other column, continues from `after`.
        """
        assert self.group is not None
        self.mixed.copy_(self.after)
        self.group.give_up()
        if update is not None:
            self._fragment = columns
            self._new_consensus = self.group.prepare(update, columns)
            trained = columns.trained
            plain = torch.from_numpy(np.array(update.plain)).to(self.mixed)
            for row, consensus in self._new_consensus.items():
                learned = self.after[row, trained] - self.models[row, trained]
                self.mixed[row, trained] = consensus + learned
                self.mixed[row, columns.plain] = plain
            self._reset_state(self.mixed, update.rows)
        check(self.stop)

    def train_on(
        self, local_steps: IntArray, *, round_index: int, learning_rate: float
    ) -> tuple[FloatArray, FloatArray]:
        """More local steps, on `mixed`: mean losses, and norms of all local steps of the round."""
        trainings = {
            row: LocalTraining(round_index, int(local_steps[row]), learning_rate, phase=1)
            for row in np.argsort(-local_steps, kind="stable").tolist()
            if local_steps[row] > 0
        }
        losses = self._train(trainings, self.mixed)
        loss = np.array([losses.get(row, np.nan) for row in range(len(self.workers))])
        return loss, self._norms_with_consensus()

    def train_paced(
        self, row: int, more: Callable[[], bool], *, round_index: int, learning_rate: float
    ) -> tuple[int, float]:
        """Local steps of one worker as long as `more` says, before the group average: how many,
        and their mean loss. The bits are those of `train` with that number."""
        self._foreign, self._new_consensus = {}, {}
        self.after[row] = self.models[row]
        self.after_counters[row] = self.counters[row]
        return self._train_paced(row, LocalTraining(round_index, 0, learning_rate), more)

    def train_on_paced(
        self, row: int, more: Callable[[], bool], *, round_index: int, learning_rate: float
    ) -> tuple[int, float, float]:
        """The same after the average, on `mixed`: steps, mean loss, and the norm of all steps."""
        training = LocalTraining(round_index, 0, learning_rate, phase=1)
        steps, loss = self._train_paced(row, training, more)
        return steps, loss, float(self._norms_with_consensus()[row])

    def _train_paced(
        self, row: int, training: LocalTraining, more: Callable[[], bool]
    ) -> tuple[int, float]:
        target = self.mixed if training.phase else self.after
        draw = self._drawing(row, training)
        steps = 0

        def batches() -> Iterator[Tensor]:
            nonlocal steps
            while more():
                check(self.stop)
                steps += 1
                yield self._to(draw(1)[0])

        loss = self._train_one(row, training, rows_of(target), batches=batches())
        check(self.stop)
        return steps, loss

    def _norms_with_consensus(self) -> FloatArray:
        """The norms of all local steps of a round with a group average, [n]."""
        norms, trainable = [], self.spec.layout.trainable
        for row in range(len(self.workers)):
            change = self.mixed[row, :trainable] - self.models[row, :trainable]
            if row in self._new_consensus:
                trained = self._fragment.trained
                change[trained] = self.mixed[row, trained] - self._new_consensus[row]
            norms.append(float(torch.linalg.vector_norm(change)))
        return np.array(norms)

    def advance(self) -> None:
        """The mixed models become the models of the next round."""
        if self.group is not None:
            self.group.commit()
        self.arrivals.commit()
        self.models, self.mixed = self.mixed, self.models
        self.counters, self.after_counters = self.after_counters, self.counters

    # --- an asynchronous algorithm: one worker at a time; `after` holds what is in flight ---

    def snapshot(self, row: int) -> None:
        """Start a turn of a worker from its current model."""
        if (flag := self.spec.layout.columns(STATE_RESET)) is not None:
            self.models[row, flag] = 0.0
        self.after[row] = self.models[row]
        self.after_counters[row] = self.counters[row]

    def train_snapshots(self, trainings: dict[int, LocalTraining]) -> dict[int, float]:
        """Train these snapshots; what is in flight is then the change that training made, and the
        optimizer's state after it."""
        model = slice(self._own_columns)
        start = self.after[list(trainings), model]
        losses = self._train(trainings, self.after)
        for index, row in enumerate(trainings):
            self.after[row, model] -= start[index]
        return losses

    def apply(self, row: int) -> float:
        """Add the change to the worker's current model; its norm."""
        self._end_turn(row, slice(self._own_columns))
        return float(torch.linalg.vector_norm(self.after[row, : self.spec.layout.trainable]))

    def change(self, row: int) -> NDArray[np.float32]:
        """The part of a change in flight that travels; what does not travel is added here."""
        mixed = self.spec.layout.mixed
        self._end_turn(row, slice(mixed, self._own_columns))
        return self.after[row, :mixed].cpu().numpy().copy()

    def _end_turn(self, row: int, added: slice) -> None:
        """Add these columns of the change, and take the optimizer's state over, unless an exchange
        has set it to zero during the turn."""
        self.models[row, added] += self.after[row, added]
        self.counters[row] = self.after_counters[row]
        flag = self.spec.layout.columns(STATE_RESET)
        if flag is None or not self.models[row, flag]:
            state = self.spec.layout.state
            self.models[row, state] = self.after[row, state]

    def shift_all(self, change: NDArray[np.float32]) -> None:
        """Add a change to the part of every worker's current model that travels."""
        models = self.models[:, : self.spec.layout.mixed]
        models += torch.from_numpy(change).to(models.device)
        self._reset_state(self.models, range(len(self.workers)))

    def model(self, row: int) -> NDArray[np.float32]:
        """The part of a worker's current model that travels."""
        return self.models[row, : self.spec.layout.mixed].cpu().numpy().copy()

    def average(self, row: int, other: NDArray[np.float32]) -> float:
        """Set a worker's model to the mean of it and another; the distance between them before."""
        mine = self.models[row, : self.spec.layout.mixed]
        theirs = torch.from_numpy(other).to(mine.device)
        trainable = slice(self.spec.layout.trainable)
        apart = float(torch.linalg.vector_norm((mine - theirs)[trainable]))
        mine.copy_((mine + theirs) * 0.5)
        self._reset_state(self.models, [row])
        return apart

    def shift(self, row: int, change: NDArray[np.float32]) -> None:
        """Add half of a difference to the part of a worker's current model that travels."""
        mine = self.models[row, : self.spec.layout.mixed]
        mine += torch.from_numpy(change).to(mine.device)
        self._reset_state(self.models, [row])

    def serve(self, row: int, factor: float) -> None:
        """Move the served model towards the current one; with the factor 1, all the way."""
        assert self.served is not None
        current = self.models[row, : self.spec.layout.tested]
        if factor == 1.0:
            self.served[row] = current
        else:
            self.served[row] += factor * (current - self.served[row])

    # --- tests, and what a checkpoint holds ------------------------------------------------

    def sum_models(self, total: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Add this shard's served models, by rising worker, to a float64 total [D]; attackers do
        not count."""
        served = self._served()
        start = torch.zeros(served.shape[1], dtype=torch.float64, device=self.models.device)
        if total is not None:
            start.copy_(torch.from_numpy(np.array(total)))
        if self.spec.attackers:
            honest = [worker not in self.spec.attackers for worker in self.workers]
            served = served[torch.tensor(honest, device=served.device)]
        return np.asarray(add_rows(start, served).cpu().numpy())

    def evaluate(
        self,
        mean: NDArray[np.float32] | None = None,
        *,
        whole: bool = False,
        everyone: bool = True,
    ) -> list[ModelScore]:
        """The test of every worker's model, and last of the mean model if it is given."""
        return self.start_tests(mean, whole=whole, everyone=everyone).result()

    def start_tests(
        self,
        mean: NDArray[np.float32] | None = None,
        *,
        whole: bool = False,
        everyone: bool = True,
    ) -> Pending[list[ModelScore]]:
        """Start `evaluate` on the threads; the models must not change before it is done."""
        test = self.test_set if whole else self.test_part
        rows = rows_of(self._served()) if everyone else []
        counters = self.counters.clone()
        if mean is not None:
            rows.append(torch.from_numpy(np.array(mean)).to(self.models.device))
        # The mean model belongs to no worker, and what was held back is tested once.
        own_tests = everyone and not whole
        held = [*(self.spec.held_back if own_tests else ()), *[_NO_SAMPLES] * len(rows)]
        held = held[: len(rows)]
        if self.stack is not None:
            size = self.stack.chunk(self.models.device)
            chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
            own = [held[start : start + size] for start in range(0, len(rows), size)]
            jobs = zip(chunks, own, strict=True)
            return self._threads.start([partial(self._score, *job, test) for job in jobs])

        def test_one(index: int) -> list[ModelScore]:
            with self._threads.replica() as replica:
                # The mean model has no counters; evaluation does not read them.
                replica.bind(rows[index], counters[min(index, len(counters) - 1)])
                spec = self.spec
                tested = score(replica, spec.task, test, stop=self.stop, per_class=spec.per_class)
                if len(held[index]):
                    own = Samples(*self.samples.take(self._to(held[index])))
                    own_score = score(replica, spec.task, own, stop=self.stop)
                    tested = replace(tested, own_metric=own_score.metric)
                return [tested]

        return self._threads.start([partial(test_one, index) for index in range(len(rows))])

    def _score(self, rows: list[Tensor], held: list[IntArray], test: Samples) -> list[ModelScore]:
        assert self.stack is not None
        stacked, outputs = torch.stack(rows), []
        for batch in torch.split(test.inputs, EVALUATION_IMAGES):
            check(self.stop)
            outputs.append(self.stack.outputs(stacked, batch))
        by_model = torch.cat(outputs, dim=1)
        task, per_class = self.spec.task, self.spec.per_class
        scores = [score_outputs(task, out, test.targets, per_class=per_class) for out in by_model]
        for index, own in enumerate(held):
            if len(own):
                inputs, targets = self.samples.take(self._to(own))
                [output] = self.stack.outputs(stacked[index : index + 1], inputs)
                metric = task.metric(output, targets)
                scores[index] = replace(scores[index], own_metric=metric)
        return scores

    def state(self, *, in_flight: bool = False) -> Arrays:
        """Models and counters; for an asynchronous algorithm also what is in flight."""
        arrays: Arrays = {
            "models": self.models.cpu().numpy(),
            "counters": self.counters.cpu().numpy(),
        }
        if in_flight:
            arrays["in_flight"] = self.after.cpu().numpy()
            arrays["flight_counters"] = self.after_counters.cpu().numpy()
        if self.group is not None:
            arrays.update({name: getattr(self.group, name).cpu().numpy() for name in GROUP_STATE})
        if self.served is not None:
            arrays["served"] = self.served.cpu().numpy()
        arrays.update(self.arrivals.state())
        return arrays

    def load(self, state: Arrays) -> None:
        """Take over a state."""
        targets = {
            "models": self.models,
            "counters": self.counters,
            "in_flight": self.after,
            "flight_counters": self.after_counters,
        }
        if self.group is not None:
            self.group.give_up()
            targets.update({name: getattr(self.group, name) for name in GROUP_STATE})
        if self.served is not None:
            targets["served"] = self.served
        self.arrivals.load(state, self.models.device)
        for name, array in state.items():
            if name not in PAIR_STATE:
                targets[name].copy_(torch.from_numpy(np.array(array)))

    # --- inside ----------------------------------------------------------------------------

    def _exchanging(self, weights: csr_array) -> list[int]:
        """The rows of workers that mix another's model into theirs."""
        starts = weights.indptr.tolist()
        return [
            row
            for row, (first, last) in enumerate(pairwise(starts))
            if (weights.indices[first:last] != self.workers[row]).any()
        ]

    def _reset_state(self, models: Tensor, rows: Sequence[int]) -> None:
        """Set the optimizer's state of these workers to zero, if it is not to outlast an exchange.
        A turn that is in flight ends with that, too."""
        if (flag := self.spec.layout.columns(STATE_RESET)) is None:
            return
        models[list(rows), self.spec.layout.state] = 0.0
        models[list(rows), flag] = 1.0

    def _served(self) -> Tensor:
        """The models to test: the current ones, or those that workers serve instead; with group
        averages, the consensus that each holds. Without columns that a test does not need."""
        if self.group is not None:
            return self.group.served(self.models)
        return self.models[:, : self.spec.layout.tested] if self.served is None else self.served

    def _train(self, trainings: dict[int, LocalTraining], target: Tensor) -> dict[int, float]:
        """Train rows of `target` in place, those with most steps first. Mean losses by row."""
        if self.stack is None:
            views = rows_of(target)
            losses = self._threads.run(
                lambda row: self._train_one(row, trainings[row], views), trainings
            )
        else:
            moving = VELOCITY in self.spec.optimizer.state
            size = self.stack.chunk(target.device, velocities=moving)
            rows = sorted(trainings, key=lambda row: (-trainings[row].steps, row))
            count = -(-len(rows) // size) if rows else 0
            # Dealt out like cards, so that every chunk has long and short trainings.
            chunks = [rows[start::count] for start in range(count)]
            parts = self._threads.feed(
                lambda drawn: self._train_stacked(drawn[0], trainings, drawn[1], target),
                ((chunk, self._batches(chunk, trainings)) for chunk in chunks),
            )
            losses = {row: loss for part in parts for row, loss in part.items()}
        check(self.stop)
        return losses

    def _train_one(
        self,
        row: int,
        training: LocalTraining,
        views: list[Tensor],
        *,
        batches: Iterable[Tensor] | None = None,
    ) -> float:
        if batches is None:
            batches = self._training_batches(row, training)
        noise = self._noise(Purpose.BATCHES, row, *_batch_keys(training))
        with self._threads.replica() as replica, noise:
            replica.bind(views[row], self.after_counters[row])
            return train(
                replica,
                self.spec.task,
                self.samples,
                batches=batches,
                learning_rate=training.learning_rate,
                stop=self.stop,
                optimizer=self.spec.optimizer,
                augment=self._augmenter(row, training),
                label_smoothing=self.spec.label_smoothing,
            )

    def _batches(self, rows: list[int], trainings: dict[int, LocalTraining]) -> list[Tensor]:
        return [self._training_batches(row, trainings[row]) for row in rows]

    def _training_batches(self, row: int, training: LocalTraining) -> Tensor:
        return self._to(self._drawing(row, training)(training.steps))

    def _drawing(self, row: int, training: LocalTraining) -> Callable[[int], IntArray]:
        """Draws the next batches of a worker's training, [batches, batch]."""
        part, size, column = self.spec.parts[row], self.spec.batch_size, self.spec.layout.position
        seed, worker = self.spec.seed, self.workers[row]
        if column is None:
            rng = generator(seed, Purpose.BATCHES, worker, *_batch_keys(training))
            return lambda batches: part[rng.integers(len(part), size=(batches, size))]
        taken = self.after_counters[row]
        stream = ShuffledEpochs(seed, worker, len(part), position=int(taken[column]))

        def draw(batches: int) -> IntArray:
            indices = part[stream.take(batches * size)].reshape(batches, size)
            taken[column] = stream.position
            return indices

        return draw

    def _augmenter(self, row: int, training: LocalTraining) -> Augmenter | None:
        settings, worker = self.spec.augmentation, self.workers[row]
        if not settings.active:
            return None
        keys = _batch_keys(training)
        return Augmenter(settings, generator(self.spec.seed, Purpose.AUGMENTATION, worker, *keys))

    def _train_stacked(
        self,
        rows: list[int],
        trainings: dict[int, LocalTraining],
        batches: list[Tensor],
        target: Tensor,
    ) -> dict[int, float]:
        assert self.stack is not None
        velocity = self.spec.layout.columns(VELOCITY)
        losses = self.stack.train(
            target,
            rows,
            self.samples,
            batches=batches,
            rates=torch.tensor([trainings[row].learning_rate for row in rows]),
            stop=self.stop,
            optimizer=self.spec.optimizer,
            velocity=0 if velocity is None else velocity.start,
            label_smoothing=self.spec.label_smoothing,
        )
        return dict(zip(rows, losses.tolist(), strict=True))

    def _estimate_stacked(self, rows: list[int], round_index: int) -> dict[int, Estimate]:
        assert self.stack is not None
        estimates: dict[int, Estimate] = {}
        trained = slice(self.spec.layout.trainable)
        size = self.stack.chunk(self.after.device)
        for start in range(0, len(rows), size):
            check(self.stop)
            chunk = rows[start : start + size]
            probes = [
                self._draw(Purpose.PROBE, row, round_index, batches=PROBE_BATCHES) for row in chunk
            ]
            measured = self.stack.estimate(
                self.models[chunk, trained],
                self.after[chunk, trained],
                self.samples,
                probe=torch.stack(probes),
            )
            estimates.update(zip(chunk, measured, strict=True))
        return estimates

    def _estimate_each(self, rows: list[int], round_index: int) -> dict[int, Estimate]:
        def job(row: int) -> Estimate:
            noise = self._noise(Purpose.PROBE, row, round_index)
            with self._threads.replica() as replica, noise:
                return estimate(
                    replica,
                    self.spec.task,
                    self.samples,
                    before=(self.models[row], self.counters[row]),
                    after=(self.after[row], self.after_counters[row]),
                    probe=self._draw(Purpose.PROBE, row, round_index, batches=PROBE_BATCHES),
                    stop=self.stop,
                )

        return self._threads.run(job, rows)

    @contextlib.contextmanager
    def _noise(self, purpose: Purpose, row: int, *keys: int) -> Iterator[None]:
        """A module that draws random numbers (dropout) gets its own, per worker and round."""
        if not self.spec.stochastic:
            yield
            return
        with torch.random.fork_rng():
            worker = self.workers[row]
            seed = number(self.spec.seed, Purpose.MODULE_NOISE, purpose, worker, *keys)
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_available():
                torch.cuda.manual_seed_all(seed)
            yield

    def _draw(self, purpose: Purpose, row: int, *keys: int, batches: int) -> Tensor:
        """Random minibatches of a worker's own samples, [batches, batch]."""
        part = self.spec.parts[row]
        rng = generator(self.spec.seed, purpose, self.workers[row], *keys)
        return self._to(part[rng.integers(len(part), size=(batches, self.spec.batch_size))])

    def _to(self, indices: IntArray) -> Tensor:
        return torch.from_numpy(indices).to(self.samples.inputs.device)

    def _own(self, worker: int) -> Tensor:
        """The trained model of a worker of this shard, the part that travels."""
        return self.after[self._row_index[worker], : self.spec.layout.mixed]

    def _sent(self, worker: int) -> Tensor:
        """What a worker's peers get, before topk; of this shard or received."""
        if worker not in self._row_index:
            return self._foreign[worker]
        return self.arrivals.sent(worker, self._own(worker))

    def _received(self, reader: int, sender: int) -> Tensor:
        """What a worker of this shard has of another's model after the transfer."""
        return self.arrivals.received(reader, sender, self._sent(sender))

    def _row(self, worker: int) -> Tensor:
        """A worker's trained model, the part that travels; of this shard or received."""
        row = self._row_index.get(int(worker))
        if row is None:
            return self._foreign[int(worker)]
        return self.after[row, : self.spec.layout.mixed]

    def _as_seen(self, peer: int, row: int) -> tuple[Tensor, Tensor]:
        """A peer's model as a worker scores it: what does not travel is the worker's own."""
        travels = self._received(self.workers[row], peer)
        layout = self.spec.layout
        stays = self.after[row, layout.mixed : layout.tested]
        counters = self.after_counters[row].clone()
        return (torch.cat([travels, stays]) if len(stays) else travels), counters


def _batch_keys(training: LocalTraining) -> tuple[int, ...]:
    """What a worker's batches depend on; the first phase of a round has no number of its own."""
    return (training.key, training.phase) if training.phase else (training.key,)

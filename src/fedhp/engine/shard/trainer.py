"""Local steps of a shard's workers: many small dense models at once, or one model at a time.

Results do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedhp.engine.executor import Estimates, LocalTraining
from fedhp.engine.shard.rows import Rows
from fedhp.learn.augment import Augmenter
from fedhp.learn.batches import ShuffledEpochs
from fedhp.learn.local import Estimate, Steer, check, estimate, train
from fedhp.learn.params import VELOCITY, rows_of
from fedhp.learn.stacked import DenseStack
from fedhp.learn.vectors import steered
from fedhp.seeds import Purpose, generator, number
from fedhp.timing import PROBE_BATCHES
from fedhp.types import FloatArray, IntArray

_NO_NOISE = contextlib.nullcontext()


class Trainer:
    """Trains the workers of a shard."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.spec = rows, rows.spec
        self._training, self._seed = self.spec.experiment.training, self.spec.experiment.seed
        self._steers = rows.spec.rule.steers()
        self._draws = rows.spec.stochastic
        self._augments = rows.spec.experiment.augmentation.active
        velocity = rows.layout.columns(VELOCITY)
        self._velocity = 0 if velocity is None else velocity.start  # its first column
        self._stack = rows.stack
        if self._stack is not None:  # how many models it trains, and measures, at once
            device = rows.models.device
            self._stacked = self._stack.chunk(device, velocities=velocity is not None)
            self._probed = self._stack.chunk(device)

    def train_round(
        self, local_steps: IntArray, target: Tensor, *, round_index: int, rate: float, phase: int
    ) -> FloatArray:
        """The local steps [n] of a round, on rows of `target` in place: mean losses [n]."""
        trainings = {
            row: LocalTraining(round_index, int(local_steps[row]), rate, phase)
            for row in np.argsort(-local_steps, kind="stable").tolist()
            if local_steps[row] > 0
        }
        losses = np.full(len(local_steps), np.nan)
        for row, loss in self.train(trainings, target).items():
            losses[row] = loss
        return losses

    def train(self, trainings: dict[int, LocalTraining], target: Tensor) -> dict[int, float]:
        """Train rows of `target` in place, those with most steps first. Mean losses by row."""
        threads = self.rows.threads
        if self._stack is None:
            views = rows_of(target)
            jobs = threads.map(
                lambda row: self._train_one(row, trainings[row], views[row]), trainings
            )
            losses = dict(zip(trainings, jobs, strict=True))
        else:
            rows = sorted(trainings, key=lambda row: (-trainings[row].steps, row))
            count = -(-len(rows) // self._stacked)
            # Dealt out like cards, so that every chunk has long and short trainings. This thread
            # draws the batches of the next chunk while the others train.
            drawn = (
                [(row, self.batches(row, trainings[row])) for row in rows[start::count]]
                for start in range(count)
            )
            losses = {}
            for part in threads.map(partial(self._train_stacked, trainings, target), drawn):
                losses.update(part)
        check(self.rows.stop)
        return losses

    def train_paced(
        self, row: int, training: LocalTraining, more: Callable[[], bool], target: Tensor
    ) -> tuple[int, float]:
        """Local steps of one worker as long as `more` says: how many, and their mean loss. The bits
        are those of `train` with that number."""
        draw = self._drawing(row, training)
        steps = 0

        def batches() -> Iterator[Tensor]:
            nonlocal steps
            while more():
                check(self.rows.stop)
                steps += 1
                yield self.rows.take(draw(1)[0])

        loss = self._train_one(row, training, rows_of(target)[row], batches=batches())
        check(self.rows.stop)
        return steps, loss

    def estimate(self, chosen: Sequence[int], *, round_index: int) -> Estimates:
        estimates: dict[int, Estimate] = {}
        if chosen and self._stack is not None:
            estimates = self._estimate_stacked(self._stack, list(chosen), round_index)
        elif chosen:
            estimates = self._estimate_each(list(chosen), round_index)
        missing = Estimate(np.nan, np.nan, np.nan)
        by_row = [estimates.get(row, missing) for row in range(len(self.rows.workers))]
        return Estimates(*(np.array(values) for values in zip(*by_row, strict=True)))

    def batches(self, row: int, training: LocalTraining) -> Tensor:
        """The batches of a worker's training, [steps, batch]."""
        indices = self._drawing(row, training)(training.steps)
        return torch.from_numpy(indices).to(self.rows.models.device)

    def _train_one(
        self,
        row: int,
        training: LocalTraining,
        target: Tensor,
        *,
        batches: Iterable[Tensor] | None = None,
    ) -> float:
        if batches is None:
            batches = self.batches(row, training)
        keys = _batch_keys(training)
        noise = self._noise(Purpose.BATCHES, row, *keys) if self._draws else _NO_NOISE
        with self.rows.threads.replica() as replica, noise:
            replica.bind(target, self.rows.after_counters[row])
            return train(
                replica,
                self.spec.task,
                self.rows.samples,
                batches=batches,
                learning_rate=training.learning_rate,
                stop=self.rows.stop,
                optimizer=self.spec.optimizer,
                augment=self._augmenter(row, training) if self._augments else None,
                label_smoothing=self._training.label_smoothing,
                steer=self._steering([training]) if self._steers else None,
            )

    def _steering(self, trainings: Sequence[LocalTraining]) -> Steer:
        """The rule's gradient for the first of these trainings, as many as take a step."""
        rule, layout = self.spec.rule, self.spec.layout
        first = trainings[0]  # in a round, all have the same key and rate
        steps = [training.steps for training in trainings]
        step = self.rows.step_of(steps, round_index=first.key, rate=first.learning_rate)

        def steer(gradients: Tensor, rows: Tensor) -> Tensor:
            now = replace(step, local_steps=step.local_steps[: len(rows)])
            return steered(rule, layout, gradients, rows, now)

        return steer

    def _train_stacked(
        self,
        trainings: dict[int, LocalTraining],
        target: Tensor,
        drawn: list[tuple[int, Tensor]],
    ) -> dict[int, float]:
        rows, batches = map(list, zip(*drawn, strict=True))
        assert self._stack is not None
        losses = self._stack.train(
            target,
            rows,
            self.rows.samples,
            batches=batches,
            rates=torch.tensor([trainings[row].learning_rate for row in rows]),
            stop=self.rows.stop,
            optimizer=self.spec.optimizer,
            velocity=self._velocity,
            label_smoothing=self._training.label_smoothing,
            steer=self._steering([trainings[row] for row in rows]) if self._steers else None,
        )
        return dict(zip(rows, losses.tolist(), strict=True))

    def _drawing(self, row: int, training: LocalTraining) -> Callable[[int], IntArray]:
        """Draws the next batches of a worker's training, [batches, batch]."""
        part, size, column = (
            self.spec.parts[row],
            self._training.batch_size,
            self.spec.layout.position,
        )
        seed, worker = self._seed, self.rows.workers[row]
        if column is None:
            rng = generator(seed, Purpose.BATCHES, worker, *_batch_keys(training))
            return lambda batches: part[rng.integers(len(part), size=(batches, size))]
        taken = self.rows.after_counters[row]
        stream = ShuffledEpochs(seed, worker, len(part), position=int(taken[column]))

        def draw(batches: int) -> IntArray:
            indices = part[stream.take(batches * size)].reshape(batches, size)
            taken[column] = stream.position
            return indices

        return draw

    def _augmenter(self, row: int, training: LocalTraining) -> Augmenter:
        settings, worker = self.spec.experiment.augmentation, self.rows.workers[row]
        keys = _batch_keys(training)
        return Augmenter(settings, generator(self._seed, Purpose.AUGMENTATION, worker, *keys))

    def _estimate_stacked(
        self, stack: DenseStack, chosen: list[int], round_index: int
    ) -> dict[int, Estimate]:
        rows, estimates = self.rows, dict[int, Estimate]()
        trained = slice(self.spec.layout.trainable)
        for start in range(0, len(chosen), self._probed):
            check(rows.stop)
            chunk = chosen[start : start + self._probed]
            measured = stack.estimate(
                rows.models[chunk, trained],
                rows.after[chunk, trained],
                rows.samples,
                probe=torch.stack([self._probe(row, round_index) for row in chunk]),
            )
            estimates.update(zip(chunk, measured, strict=True))
        return estimates

    def _estimate_each(self, chosen: list[int], round_index: int) -> dict[int, Estimate]:
        rows = self.rows

        def job(row: int) -> Estimate:
            noise = self._noise(Purpose.PROBE, row, round_index) if self._draws else _NO_NOISE
            with rows.threads.replica() as replica, noise:
                return estimate(
                    replica,
                    self.spec.task,
                    rows.samples,
                    before=(rows.models[row], rows.counters[row]),
                    after=(rows.after[row], rows.after_counters[row]),
                    probe=self._probe(row, round_index),
                    stop=rows.stop,
                )

        return dict(zip(chosen, rows.threads.map(job, chosen), strict=True))

    def _probe(self, row: int, round_index: int) -> Tensor:
        """Random minibatches of a worker's own samples, [PROBE_BATCHES, batch]."""
        part, size = self.spec.parts[row], (PROBE_BATCHES, self._training.batch_size)
        rng = generator(self._seed, Purpose.PROBE, self.rows.workers[row], round_index)
        return self.rows.take(part[rng.integers(len(part), size=size)])

    @contextlib.contextmanager
    def _noise(self, purpose: Purpose, row: int, *keys: int) -> Iterator[None]:
        """A module that draws random numbers (dropout) gets its own, per worker and round."""
        with torch.random.fork_rng():
            worker = self.rows.workers[row]
            seed = number(self._seed, Purpose.MODULE_NOISE, purpose, worker, *keys)
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_available():
                torch.cuda.manual_seed_all(seed)
            yield


def _batch_keys(training: LocalTraining) -> tuple[int, ...]:
    """What a worker's batches depend on; the first phase of a round has no number of its own."""
    return (training.key, training.phase) if training.phase else (training.key,)

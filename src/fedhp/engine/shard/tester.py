"""Tests of a shard's models, and their part of the mean model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhp.engine.executor import Pending
from fedhp.engine.shard.groups import Groups
from fedhp.engine.shard.rows import Rows
from fedhp.engine.shard.turns import ShardTurns
from fedhp.learn.evaluate import ModelScore, score, score_outputs
from fedhp.learn.local import Samples, check
from fedhp.learn.mix import add_rows
from fedhp.learn.params import rows_of
from fedhp.learn.stacked import DenseStack
from fedhp.types import IntArray

EVALUATION_IMAGES = 512  # at a time, where models are stacked
_NO_SAMPLES: IntArray = np.empty(0, dtype=np.int64)


class Tester:
    """Tests what the workers of a shard serve."""

    def __init__(self, rows: Rows, turns: ShardTurns, groups: Groups | None) -> None:
        self.rows, self.spec = rows, rows.spec
        self._turns, self._groups = turns, groups
        self._per_class = bool(self.spec.experiment.evaluation.per_class)
        device, dataset = self.spec.device, self.spec.dataset
        self._whole = Samples.on(dataset.test_inputs, dataset.test_targets, device)
        chosen = torch.from_numpy(self.spec.test).to(device)
        self._part = Samples(*self._whole.take(chosen))

    def sum_models(self, total: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Add this shard's served models, by rising worker, to a float64 total [D]; attackers do
        not count."""
        served = self._served()
        start = torch.zeros(served.shape[1], dtype=torch.float64, device=served.device)
        if total is not None:
            start.copy_(torch.from_numpy(np.array(total)))
        if self.spec.attackers:
            honest = [worker not in self.spec.attackers for worker in self.rows.workers]
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
        return self.start(mean, whole=whole, everyone=everyone).result()

    def start(
        self,
        mean: NDArray[np.float32] | None = None,
        *,
        whole: bool = False,
        everyone: bool = True,
    ) -> Pending[list[ModelScore]]:
        """Start `evaluate` on the threads; the models must not change before it is done."""
        test = self._whole if whole else self._part
        rows = rows_of(self._served()) if everyone else []
        counters = self.rows.counters.clone()
        if mean is not None:
            rows.append(torch.from_numpy(np.array(mean)).to(self.rows.models.device))
        # The mean model belongs to no worker, and what was held back is tested once.
        own_tests = everyone and not whole
        held = [*(self.spec.held_back if own_tests else ()), *[_NO_SAMPLES] * len(rows)]
        held = held[: len(rows)]
        stack, threads = self.rows.stack, self.rows.threads
        if stack is not None:
            size = stack.chunk(self.rows.models.device)
            chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
            own = [held[start : start + size] for start in range(0, len(rows), size)]
            jobs = zip(chunks, own, strict=True)
            return threads.start([partial(self._score, stack, *job, test) for job in jobs])

        def test_one(index: int) -> list[ModelScore]:
            with threads.replica() as replica:
                # The mean model has no counters; evaluation does not read them.
                replica.bind(rows[index], counters[min(index, len(counters) - 1)])
                spec, stop = self.spec, self.rows.stop
                tested = score(replica, spec.task, test, stop=stop, per_class=self._per_class)
                if len(held[index]):
                    samples = self.rows.samples
                    own = Samples(*samples.take(self.rows.take(held[index])))
                    own_score = score(replica, spec.task, own, stop=stop)
                    tested = replace(tested, own_metric=own_score.metric)
                return [tested]

        return threads.start([partial(test_one, index) for index in range(len(rows))])

    def _score(
        self, stack: DenseStack, rows: list[Tensor], held: list[IntArray], test: Samples
    ) -> list[ModelScore]:
        stacked, outputs = torch.stack(rows), []
        for batch in torch.split(test.inputs, EVALUATION_IMAGES):
            check(self.rows.stop)
            outputs.append(stack.outputs(stacked, batch))
        by_model = torch.cat(outputs, dim=1)
        task, per_class = self.spec.task, self._per_class
        scores = [score_outputs(task, out, test.targets, per_class=per_class) for out in by_model]
        for index, own in enumerate(held):
            if len(own):
                inputs, targets = self.rows.samples.take(self.rows.take(own))
                [output] = stack.outputs(stacked[index : index + 1], inputs)
                metric = task.metric(output, targets)
                scores[index] = replace(scores[index], own_metric=metric)
        return scores

    def _served(self) -> Tensor:
        """The models to test: the current ones, or those that workers serve instead; with group
        averages, the consensus that each holds. Without columns that a test does not need."""
        if self._groups is not None:
            return self._groups.served()
        if self._turns.served is not None:
            return self._turns.served
        return self.rows.models[:, : self.spec.layout.tested]

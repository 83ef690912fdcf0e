"""The models of a shard's workers, as rows of a few matrices, with their data and threads.

`models` holds every worker's model at the start of the round and does not change until
`advance`: a round can be given up at any instant before.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from fedhp.engine.executor import Pending, PendingParts
from fedhp.engine.prepare import ShardSpec, kernel_of, stacks_by
from fedhp.learn.blocked import forward_of
from fedhp.learn.local import Samples
from fedhp.learn.mix import Map
from fedhp.learn.params import STATE_RESET, Replica, matrix, row_of
from fedhp.learn.stacked import dense_stack
from fedhp.learn.task import initial_model
from fedhp.learn.topk import largest_of_rows
from fedhp.rule import Step
from fedhp.types import IntArray

T = TypeVar("T")


class Rows:
    """`models` at the start of a round, `after` local steps, `mixed`; a worker is a row of each."""

    def __init__(self, spec: ShardSpec, stop: Callable[[], bool]) -> None:
        self.spec, self.layout = spec, spec.layout
        self.stop = stop
        self.workers: list[int] = spec.workers.tolist()
        self.index = {worker: row for row, worker in enumerate(self.workers)}
        torch.set_num_threads(1)
        device, task = spec.device, spec.task
        initial = initial_model(task, spec.experiment.seed)
        row, counters = row_of(initial, self.layout)
        stacks = kernel_of(spec.experiment) == "auto" and stacks_by(spec.optimizer, spec.rule)
        self.stack = dense_stack(task, initial, self.layout) if stacks else None
        self.initial = row.to(device)
        self.models, self.after, self.mixed = (self.matrix(self.layout.width) for _ in range(3))
        self.counters = counters.to(device).repeat(len(self.workers), 1)
        self.after_counters = self.counters.clone()
        self.step = self.step_of([0] * len(self.workers), round_index=0, rate=0.0)  # of the round
        self.samples = Samples.on(spec.dataset.train_inputs, spec.dataset.train_targets, device)
        self.threads = ShardThreads(spec, self.samples.inputs[:1].expand(4, *spec.dataset.shape))

    def matrix(self, width: int) -> Tensor:
        """The first columns of the initial model, once for every worker."""
        return matrix(len(self.workers), self.initial[:width], self.spec.scratch)

    def step_of(self, local_steps: Sequence[int], *, round_index: int, rate: float) -> Step:
        """What the rule knows of a round; local_steps [n]."""
        steps = torch.tensor(local_steps, device=self.models.device).clamp(min=1)
        compress = partial(largest_of_rows, count=self.spec.topk)
        everyone = self.spec.experiment.workers
        return Step(round_index, rate, steps.float()[:, None], compress, everyone)

    def own(self, worker: int) -> Tensor:
        """The trained model of a worker of this shard, the part that travels."""
        return self.after[self.index[worker], : self.layout.mixed]

    def take(self, indices: IntArray) -> Tensor:
        """Numbers of samples, on the device."""
        return torch.from_numpy(indices).to(self.samples.inputs.device)

    def reset_state(self, models: Tensor, rows: Sequence[int]) -> None:
        """Set the optimizer's state of these workers to zero, if it is not to outlast an exchange.
        A turn that is in flight ends with that, too."""
        if (flag := self.layout.columns(STATE_RESET)) is None:
            return
        models[list(rows), self.layout.state] = 0.0
        models[list(rows), flag] = 1.0


class ShardThreads:
    """As many threads as executors, and one more if tests may run while the next round trains."""

    def __init__(self, spec: ShardSpec, example: Tensor) -> None:
        self.count = spec.executors
        threads = self.count + spec.overlap
        self._replicas: queue.SimpleQueue[Replica] = queue.SimpleQueue()
        for _ in range(threads):
            module = initial_model(spec.task, spec.experiment.seed).to(spec.device)
            self._replicas.put(Replica(module, spec.layout, forward_of(module, example)))
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        # A job per item, results in their order; with one executor, in this thread.
        self.map: Map = self._pool.map if self.count > 1 else map

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    @contextlib.contextmanager
    def replica(self) -> Iterator[Replica]:
        """A module that no other thread uses meanwhile."""
        replica = self._replicas.get()
        try:
            yield replica
        finally:
            self._replicas.put(replica)

    def start(self, jobs: list[Callable[[], list[T]]]) -> Pending[list[T]]:
        """Start jobs without waiting for them; the results are one list."""
        futures = [self._pool.submit(job) for job in jobs]
        return PendingParts(futures, lambda lists: [item for items in lists for item in items])

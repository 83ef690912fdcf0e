"""The threads of a shard, and a module for each of them to train or test with."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from fedhp.engine.executor import Pending, PendingParts
from fedhp.engine.prepare import ShardSpec
from fedhp.learn.blocked import forward_of
from fedhp.learn.mix import Map
from fedhp.learn.params import Replica
from fedhp.learn.task import initial_model

T = TypeVar("T")


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

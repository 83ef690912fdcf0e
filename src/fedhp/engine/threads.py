"""The threads of a shard, and a module for each of them to train or test with."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from fedhp.engine.shard_spec import ShardSpec
from fedhp.learn.blocked import forward_of
from fedhp.learn.params import Replica
from fedhp.learn.task import initial_model

S = TypeVar("S")
T = TypeVar("T")


class Executors:
    """As many threads as executors, and one more for tests beside the training."""

    def __init__(self, holding: ShardSpec, example: Tensor) -> None:
        self.count = holding.executors
        threads = self.count + holding.overlap
        self._replicas: queue.SimpleQueue[Replica] = queue.SimpleQueue()
        for _ in range(threads):
            module = initial_model(holding.task, holding.seed).to(holding.device)
            self._replicas.put(Replica(module, holding.layout, forward_of(module, example)))
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    @contextlib.contextmanager
    def replica(self) -> Iterator[Replica]:
        """A module of one's own for a while."""
        replica = self._replicas.get()
        try:
            yield replica
        finally:
            self._replicas.put(replica)

    def run(self, job: Callable[[int], T], order: Iterable[int]) -> dict[int, T]:
        """A job per index, started in this order; with one executor, in this thread."""
        order = list(order)
        if self.count == 1:
            return {index: job(index) for index in order}
        return dict(zip(order, self._pool.map(job, order), strict=True))

    def feed(self, job: Callable[[S], T], items: Iterable[S]) -> list[T]:
        """A job per item; this thread makes the next item while the executors work."""
        if self.count == 1:
            return [job(item) for item in items]
        return list(self._pool.map(job, items))

    def later(self, jobs: list[Callable[[], list[float]]]) -> Evaluating:
        """Start jobs and go on."""
        return Evaluating([self._pool.submit(job) for job in jobs])


class Evaluating:
    """Tests under way."""

    def __init__(self, parts: list[Future[list[float]]]) -> None:
        self._parts = parts

    def done(self) -> bool:
        """Whether the answer is there."""
        return all(part.done() for part in self._parts)

    def __call__(self) -> list[float]:
        """Wait for the answer."""
        return [value for part in self._parts for value in part.result()]

"""Carries out the turns of an asynchronous algorithm over shards of workers (sharded.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedhp.algorithms.base import traits_of
from fedhp.engine.executor import EventExecutor, LocalTraining
from fedhp.engine.prepare import Prepared
from fedhp.engine.shard.turns import ShardTurns
from fedhp.learn.group import fragment_columns
from fedhp.learn.quantize import from_int8_blocks, to_int8_blocks
from fedhp.types import IntArray

if TYPE_CHECKING:
    from fedhp.engine.sharded import Shards

T = TypeVar("T")


class ShardedTurns(EventExecutor):
    """What the event loop asks for, one worker at a time."""

    prepared: Prepared
    shards: Shards
    workers: int
    _shard_of: IntArray  # [N] the shard of every worker
    _position: IntArray  # [N] and its row there

    def snapshot(self, worker: int) -> None:
        self._ask(worker, ShardTurns.snapshot)

    def train_snapshots(self, trainings: dict[int, LocalTraining]) -> dict[int, float]:
        by_shard: list[dict[int, LocalTraining]] = [{} for _ in self.shards.groups]
        for worker, training in trainings.items():
            shard, position = self._find(worker)
            by_shard[shard][position] = training
        calls = [(index, (part,)) for index, part in enumerate(by_shard)]
        losses = self.shards.map(ShardTurns.train, calls)
        found = {worker: self._find(worker) for worker in trainings}
        return {worker: losses[shard][position] for worker, (shard, position) in found.items()}

    def apply(self, worker: int) -> float:
        return self._ask(worker, ShardTurns.apply)

    def share(self, worker: int) -> float:
        # What comes from another process may be read-only.
        change = np.array(self._ask(worker, ShardTurns.change))
        layout, shards = self.prepared.layout, range(len(self.shards.groups))
        change[layout.trainable :] /= self.workers
        self.shards.moved += change.nbytes * (len(shards) - 1)
        self.shards.map(ShardTurns.shift_all, [(index, (change,)) for index in shards])
        return float(np.linalg.norm(change[: layout.trainable]))

    def average(self, worker: int, partner: int, *, compression: str = "none") -> float:
        mine = self._ask(worker, ShardTurns.model)
        theirs = self._ask(partner, ShardTurns.model)
        self._count_moved(worker, partner, mine.nbytes + theirs.nbytes)
        if compression != "none":
            difference = theirs - mine
            half = np.float32(0.5) * from_int8_blocks(*to_int8_blocks(difference))
            self._ask(partner, ShardTurns.shift, -half)
            self._ask(worker, ShardTurns.shift, half)
            return float(np.linalg.norm(difference[: self.prepared.layout.trainable]))
        self._ask(partner, ShardTurns.average, mine)
        return self._ask(worker, ShardTurns.average, theirs)

    def post(self, worker: int, weights: Sequence[float]) -> None:
        self._ask(worker, ShardTurns.post, tuple(weights))

    def deliver(self, sender: int, receiver: int, *, weight: float, fragment: int) -> None:
        columns = (0, self.prepared.layout.mixed)
        if fragment >= 0:
            fragments = traits_of(self.prepared.algorithm).fragments
            columns = fragment_columns(self.prepared.layout.mixed, fragment, fragments)
        sent = self._ask(sender, ShardTurns.sent, weight, columns)
        self._count_moved(sender, receiver, sent.nbytes)
        self._ask(receiver, ShardTurns.deliver, sender, sent, weight, columns)

    def average_group(self, members: Sequence[int]) -> None:
        places = [self._find(member) for member in members]
        rows = self.shards.map(ShardTurns.message, [(shard, (row,)) for shard, row in places])
        mean = np.add.reduce(rows) / np.float32(len(rows))
        self._count_moved(members[0], members[-1], mean.nbytes * len(rows))
        self.shards.map(ShardTurns.settle, [(shard, (row, mean)) for shard, row in places])

    def serve(self, worker: int, factor: float) -> None:
        self._ask(worker, ShardTurns.serve, factor)

    def keep(self) -> None:
        self.shards.keep(in_flight=True)

    def _find(self, worker: int) -> tuple[int, int]:
        """A worker's shard, and its row there."""
        return int(self._shard_of[worker]), int(self._position[worker])

    def _ask(self, worker: int, method: Callable[..., T], *args: Any) -> T:
        """Call a method of the worker's shard, with its row there."""
        shard, position = self._find(worker)
        return self.shards.map(method, [(shard, (position, *args))])[0]

    def _count_moved(self, one: int, other: int, size: int) -> None:
        """Bytes that go from one shard to another, if they do."""
        self.shards.moved += size * int(self._shard_of[one] != self._shard_of[other])

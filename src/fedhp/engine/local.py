"""All workers in this process: one shard, or several for tests of the exchange between shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Concatenate, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhp.engine.executor import Pending
from fedhp.engine.prepare import Prepared, shard_spec_of
from fedhp.engine.shard.shard import Shard
from fedhp.engine.sharded import ShardedExecutor
from fedhp.learn.evaluate import ModelScore
from fedhp.record.tensors import Arrays
from fedhp.types import IntArray

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CompletedCall(Generic[T]):
    """A result that is there."""

    value: T

    def done(self) -> bool:
        """It is."""
        return True

    def result(self) -> T:
        """The result."""
        return self.value


class LocalShards:
    """Shards that are plain objects."""

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.groups = [shard.spec.workers for shard in shards]
        self.moved = 0
        self._kept: list[Arrays] | None = None

    def submit(
        self,
        shard: int,
        method: Callable[Concatenate[S, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Pending[T]:
        """Call a method of one shard."""
        return CompletedCall(self.shards[shard].call(method.__qualname__, *args, **kwargs))

    def start_tests(
        self, shard: int, mean: NDArray[np.float32] | None, *, whole: bool
    ) -> Pending[list[ModelScore]]:
        """Start the tests on the shard's threads."""
        return self.shards[shard].tester.start(mean, whole=whole)

    def deliver(self, wanted: list[dict[int, IntArray]]) -> None:
        """Hand every shard the trained models it wants."""
        for shard, origins in zip(self.shards, wanted, strict=True):
            sent = [self.shards[origin].mixer.send(workers) for origin, workers in origins.items()]
            self.moved += sum(rows.nbytes for _, rows in sent)
            shard.mixer.receive(*sent)

    def keep(self, *, in_flight: bool) -> None:
        """Copy the state, unless it stays as it is: between synchronous rounds."""
        self._kept = None
        if in_flight:
            self._kept = [
                {name: array.copy() for name, array in shard.state(in_flight=True).items()}
                for shard in self.shards
            ]

    def kept(self) -> list[Arrays]:
        """The state of the last round's end."""
        return self._kept or [shard.state() for shard in self.shards]

    def recover(self) -> None:
        """Objects are not lost."""

    def restart(self) -> None:
        """Objects are not lost."""

    def close(self) -> None:
        """Release the threads."""
        for shard in self.shards:
            shard.close()


class LocalExecutor(ShardedExecutor):
    """The executor of one process."""

    def __init__(
        self,
        prepared: Prepared,
        *,
        shards: int = 1,
        scratch: Path | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        groups: list[IntArray | None] = [None]
        if shards > 1:
            groups = list(np.array_split(np.arange(prepared.experiment.workers), shards))
        local = [
            Shard(shard_spec_of(prepared, group, scratch=scratch), stop=stop) for group in groups
        ]
        self.shard = local[0]  # all workers, unless there are more shards
        super().__init__(prepared, LocalShards(local))

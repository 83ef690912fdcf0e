"""All workers in this process: one shard, or several for tests of what shards exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedhp.engine.prepare import Prepared
from fedhp.engine.shard import Shard
from fedhp.engine.shard_spec import shard_spec_of
from fedhp.engine.sharded import Engine
from fedhp.engine.threads import Evaluating
from fedhp.record.packing import Arrays
from fedhp.types import IntArray


class LocalShards:
    """Shards that are plain objects."""

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.groups = [shard.holding.workers for shard in shards]
        self.moved = 0
        self._kept: list[Arrays] | None = None

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], **common: Any) -> list[Any]:
        """Call a method of every shard."""
        return [
            getattr(shard, method)(*given, **common)
            for shard, given in zip(self.shards, arguments, strict=True)
        ]

    def one(self, shard: int, method: str, *arguments: Any, **settings: Any) -> Any:
        """Call a method of one shard."""
        return getattr(self.shards[shard], method)(*arguments, **settings)

    def deliver(self, wanted: list[dict[int, IntArray]]) -> None:
        """Hand every shard the trained models it wants."""
        for shard, origins in zip(self.shards, wanted, strict=True):
            parcels = [self.shards[origin].rows(workers) for origin, workers in origins.items()]
            self.moved += sum(rows.nbytes for _, rows in parcels)
            shard.receive(*parcels)

    def evaluate_later(self, arguments: Sequence[tuple[Any, ...]], *, whole: bool) -> _Answer:
        """Start the tests on the executors."""
        return _Answer(
            [
                shard.evaluate_later(*given, whole=whole)
                for shard, given in zip(self.shards, arguments, strict=True)
            ]
        )

    def keep(self, *, flying: bool) -> None:
        """Between synchronous rounds the models stay whole; others are copied."""
        self._kept = None
        if flying:
            self._kept = [
                {name: array.copy() for name, array in shard.state(flying=True).items()}
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
        """Let the executors go."""
        for shard in self.shards:
            shard.close()


class _Answer:
    """The tests of all shards."""

    def __init__(self, parts: list[Evaluating]) -> None:
        self._parts = parts

    def done(self) -> bool:
        """Whether all are done."""
        return all(part.done() for part in self._parts)

    def __call__(self) -> list[list[float]]:
        """Wait for all."""
        return [part() for part in self._parts]


class LocalEngine(Engine):
    """The engine of one process."""

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
        held = [
            Shard(shard_spec_of(prepared, group, scratch=scratch), stop=stop) for group in groups
        ]
        self.shard = held[0]  # all workers, unless there are more
        super().__init__(prepared, LocalShards(held))

"""A shard that is lost at any call: the round is repeated, and nothing else is different."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import count
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from fedhp.engine.executor import Pending, ShardLost
from fedhp.engine.prepare import Prepared, shard_spec_of
from fedhp.engine.runs.run import loop_of
from fedhp.engine.shard.shard import Shard
from fedhp.engine.shard.turns import ShardTurns
from fedhp.engine.sharded import LocalExecutor, LocalShards, ShardedExecutor
from fedhp.learn.evaluate import ModelScore
from fedhp.record.tensors import Arrays
from fedhp.types import IntArray
from unit.engine.runs import EXACT, NORMED, bits, carry_out, prepared_of

T = TypeVar("T")
SHORT: dict[str, Any] = {
    "workers": 3,
    "rounds": 2,
    "data": {"train_images": 200},
    "training": {"local_steps": 1, "batch_size": 4},
    "evaluation": {"images": 30, "whole_at_end": False},
}


class Fragile(LocalShards):
    """Shards that are lost once, at the given call; new ones take over from what was kept.

    Late: part of the call was carried out before. Calls are counted once `armed`.
    """

    def __init__(self, prepared: Prepared, groups: list[IntArray], fatal: int, late: bool) -> None:
        super().__init__([Shard(shard_spec_of(prepared, group)) for group in groups])
        self.prepared, self.fatal, self.late = prepared, fatal, late
        self.calls, self.recovered, self.armed = 0, 0, False
        self.states = self._copies(in_flight=False)

    def map(
        self,
        method: Callable[..., T],
        calls: Iterable[tuple[int, tuple[Any, ...]]],
        /,
        **settings: Any,
    ) -> list[T]:
        # The first snapshots are taken before the first round.
        self.armed = self.armed or method is not ShardTurns.snapshot
        results: list[T] = []
        for shard, given in calls:
            fatal = self._fatal()
            if fatal and not self.late:
                raise ShardLost
            results += super().map(method, [(shard, given)], **settings)
            if fatal:
                raise ShardLost
        return results

    def start_tests(
        self, shard: int, mean: NDArray[np.float32] | None, *, whole: bool
    ) -> Pending[list[ModelScore]]:
        fatal = self._fatal()
        pending = super().start_tests(shard, mean, whole=whole)
        if fatal:
            raise ShardLost
        return Uncertain(self, pending)

    def deliver(self, wanted: list[dict[int, IntArray]]) -> None:
        fatal = self._fatal()
        if self.late or not fatal:
            super().deliver(wanted)
        if fatal:
            raise ShardLost

    def keep(self, *, in_flight: bool) -> None:
        if self._fatal():
            raise ShardLost
        self.states = self._copies(in_flight=in_flight)

    def kept(self) -> list[Arrays]:
        return self.states

    def recover(self) -> None:
        """New shards: whatever the old ones knew is gone."""
        self.recovered += 1
        self.close()
        self.shards = [Shard(shard_spec_of(self.prepared, group)) for group in self.groups]
        for shard, state in zip(self.shards, self.states, strict=True):
            shard.load(state)

    def _copies(self, *, in_flight: bool) -> list[Arrays]:
        return [
            {name: array.copy() for name, array in shard.state(in_flight=in_flight).items()}
            for shard in self.shards
        ]

    def _fatal(self) -> bool:
        self.calls += self.armed
        return self.armed and self.calls == self.fatal


class Uncertain:
    """Tests whose shard may be lost before it answers."""

    def __init__(self, shards: Fragile, pending: Pending[list[ModelScore]]) -> None:
        self._shards, self._pending = shards, pending

    def done(self) -> bool:
        return self._pending.done()

    def result(self) -> list[ModelScore]:
        if self._shards._fatal():
            raise ShardLost
        return self._pending.result()


def groups_of(prepared: Prepared) -> list[IntArray]:
    engine = LocalExecutor(prepared, shards=2)
    engine.close()
    return engine.shards.groups


@cache
def case(algorithm: str, overlap: bool, normed: bool) -> tuple[Prepared, Any]:
    """An experiment, and what it gives when nothing is lost."""
    prepared = prepared_of(algorithm, SHORT, EXACT, NORMED if normed else {}, overlap=overlap)
    return prepared, bits(carry_out(LocalExecutor(prepared)))


def losses(prepared: Prepared, late: bool) -> Iterator[tuple[Fragile, Any]]:
    """Runs with a loss at every call, one after the other; the last loses nothing."""
    groups = groups_of(prepared)
    for fatal in count(1):
        shards = Fragile(prepared, groups, fatal, late)
        engine = ShardedExecutor(prepared, shards)
        # An asynchronous loop keeps a state and takes snapshots before its first round.
        shards.armed = prepared.experiment.algorithm.name != "adpsgd"
        yield shards, bits(carry_out(engine))
        if shards.calls < fatal:
            return


@pytest.mark.parametrize(
    ("algorithm", "overlap", "normed", "late"),
    [
        ("fedhp", True, True, False),
        ("fedhp", False, False, True),
        ("fedhp_plus", True, False, True),
        ("pens", True, False, True),
        ("adpsgd", False, True, True),
    ],
)
def test_a_loss_at_any_call(algorithm: str, overlap: bool, normed: bool, late: bool) -> None:
    prepared, expected = case(algorithm, overlap, normed)
    runs = 0
    for shards, result in losses(prepared, late):
        runs += 1
        lost = shards.calls >= shards.fatal
        assert shards.recovered == lost, f"call {shards.fatal}"
        assert result == expected, f"call {shards.fatal}"
    assert runs > 15


@pytest.mark.parametrize("fatal", [1, 2, 3])
def test_a_loss_while_the_first_turns_begin(fatal: int) -> None:
    prepared, expected = case("adpsgd", False, False)
    shards = Fragile(prepared, groups_of(prepared), fatal, late=False)
    engine = ShardedExecutor(prepared, shards)
    loop = loop_of(engine)
    shards.armed = True
    try:
        result = list(loop.rounds())
        assert shards.recovered == 1
        assert bits([result, engine.state()]) == expected
    finally:
        engine.close()

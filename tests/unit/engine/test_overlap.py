"""Tests that run while the next round trains: what is yielded, and when, does not depend on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedhp
from fedhp.config import parse
from fedhp.engine.events import EventLoop
from fedhp.engine.executor import Evaluations, Pending, PendingParts, Training
from fedhp.engine.loop import RoundLoop
from fedhp.engine.prepare import Prepared
from fedhp.engine.runs.run import checkpoint_of, loop_of, restore
from fedhp.engine.sharded import LocalExecutor
from fedhp.errors import Diverged, FedhpError, Interrupted
from fedhp.record.checkpoint import Checkpoint
from fedhp.tables import merge_tables
from fedhp.types import BoolArray, IntArray, RoundRecord
from paper.tiny import BASE
from unit.engine.runs import ALGORITHMS, DROPPING, bits, carry_out, prepared_of

FIVE: dict[str, Any] = {
    "rounds": 5,
    "training": {"local_steps": 2, "batch_size": 4},
    "evaluation": {"images": 60},
}
EVERY = pytest.mark.parametrize("algorithm", ALGORITHMS)
OFTEN = pytest.mark.parametrize("every", [1, 2])


@EVERY
@OFTEN
def test_records_are_the_same(algorithm: str, every: int) -> None:
    often = {"evaluation": {"every": every}}
    results = [
        bits(carry_out(LocalExecutor(prepared_of(algorithm, FIVE, often, overlap=overlap))))
        for overlap in (True, False)
    ]
    assert results[0] == results[1]


@pytest.mark.parametrize("algorithm", ["fedhp", "adpsgd"])
def test_digests_are_the_same(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedhp.engine.prepare.cores", lambda: 2)
    tables = merge_tables(merge_tables(BASE, FIVE), {"algorithm": {"name": algorithm}})
    digests = []
    for executors in ("auto", 1):
        settings = parse({**tables, "executors": executors})
        with fedhp.run(settings, tmp_path / str(executors)) as run:
            digests.append(run.digest())
    assert digests[0] == digests[1]


def test_who_overlaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where one executor was asked for, on one core, or where numbers are drawn."""
    monkeypatch.setattr("fedhp.engine.prepare.cores", lambda: 2)
    assert prepared_of("fedhp", {"executors": "auto"}).overlap
    assert prepared_of("fedhp", {"executors": 2}).overlap
    assert not prepared_of("fedhp", {"executors": 1}).overlap
    assert not prepared_of("fedhp", {"executors": "auto"}, DROPPING).overlap
    monkeypatch.setattr("fedhp.engine.prepare.cores", lambda: 1)
    assert not prepared_of("fedhp", {"executors": "auto"}).overlap


def copied(saved: Checkpoint) -> Checkpoint:
    """A checkpoint of its own: the models of the engine are about to change."""
    arrays = {name: array.copy() for name, array in saved.arrays.items()}
    return Checkpoint(saved.round_index, arrays, dict(saved.scalars))


@EVERY
@OFTEN
def test_a_checkpoint_at_a_yield_is_that_of_the_round(algorithm: str, every: int) -> None:
    """Whatever was trained meanwhile; and a run goes on from it to the same end."""
    often = {"evaluation": {"every": every}}
    prepared = prepared_of(algorithm, FIVE, often, overlap=True)
    engine = LocalExecutor(prepared)
    loop, records, saved = loop_of(engine), [], []
    try:
        for record in loop.rounds():
            saved.append(copied(checkpoint_of(loop, engine)))
            assert saved[-1].round_index == record.round_index
            assert saved[-1].scalars["clock"] == record.clock
            records.append(record)
        end = bits(engine.state())
    finally:
        engine.close()
    assert [record.round_index for record in records] == [1, 2, 3, 4, 5]
    for done in (1, 4):
        other = LocalExecutor(prepared)
        again = loop_of(other)
        restore(again, other, saved[done - 1])
        try:
            assert bits(list(again.rounds())) == bits(records[done:])
            assert bits(other.state()) == end
        finally:
            other.close()


class Failing(LocalExecutor):
    """Its third training ends with an error, once the tests of round 2 are where they should."""

    def __init__(
        self,
        prepared: Prepared,
        error: FedhpError,
        before: Callable[[Pending[Evaluations]], object],
    ) -> None:
        super().__init__(prepared)
        self.error, self.before = error, before
        self.last: Pending[Evaluations] | None = None

    def start_tests(self, *, last: bool) -> Pending[Evaluations]:
        self.last = super().start_tests(last=last)
        return self.last

    def train(
        self,
        local_steps: IntArray,
        *,
        round_index: int,
        learning_rate: float,
        present: BoolArray | None = None,
        continued: bool = False,
    ) -> Training:
        results = super().train(
            local_steps, round_index=round_index, learning_rate=learning_rate, present=present
        )
        if round_index == 3:
            assert self.last is not None
            self.before(self.last)
            raise self.error
        return results


def follow(loop: RoundLoop | EventLoop, records: list[RoundRecord]) -> None:
    """Keep every record as it is yielded."""
    for record in loop.rounds():
        records.append(record)


def failed(
    prepared: Prepared, error: FedhpError, before: Callable[[Pending[Evaluations]], object]
) -> tuple[list[RoundRecord], Checkpoint]:
    """What was yielded before the error, and the checkpoint to resume from."""
    engine = Failing(prepared, error, before)
    loop = loop_of(engine)
    records: list[RoundRecord] = []
    try:
        with pytest.raises(type(error)):
            follow(loop, records)
        return records, copied(checkpoint_of(loop, engine))
    finally:
        engine.close()


@pytest.mark.parametrize("algorithm", ["fedhp", "pens"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no overlap"])
@pytest.mark.parametrize("error", [Interrupted("asked to stop"), Diverged("no number")])
def test_a_round_that_is_done_is_yielded(algorithm: str, overlap: bool, error: FedhpError) -> None:
    """A stop or a divergence in the next training: the tests were done."""
    prepared = prepared_of(algorithm, FIVE, overlap=overlap)
    whole, _ = carry_out(LocalExecutor(prepared))
    records, saved = failed(prepared, error, lambda tests: tests.result())
    assert bits(records) == bits(whole[:2])
    assert saved.round_index == 2
    other = LocalExecutor(prepared)
    loop = loop_of(other)
    restore(loop, other, saved)
    try:
        assert bits(list(loop.rounds())) == bits(whole[2:])
    finally:
        other.close()


def test_a_stop_does_not_wait_for_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A divergence does: what went wrong came after them."""
    prepared = prepared_of("dpsgd", FIVE, overlap=True)

    def unfinished(_: Pending[Evaluations]) -> None:
        monkeypatch.setattr(PendingParts, "done", lambda _: False)

    records, saved = failed(prepared, Interrupted("asked to stop"), unfinished)
    assert [record.round_index for record in records] == [1]
    assert saved.round_index == 2
    records, _ = failed(prepared, Diverged("no number"), unfinished)
    assert [record.round_index for record in records] == [1, 2]

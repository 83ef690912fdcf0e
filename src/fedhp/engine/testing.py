"""What surrounds the rounds of a loop: tests while the next one trains, and lost shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from fedhp.engine.accounting import Stopwatch, TrainedRound, check_evaluation
from fedhp.engine.executor import Evaluations, ModelTester, Pending, RoundExecutor, ShardLost
from fedhp.engine.until import StopCondition
from fedhp.errors import Interrupted
from fedhp.types import RoundRecord


def with_results(record: RoundRecord, tests: Pending[Evaluations]) -> RoundRecord:
    """The record with the results of its tests; the seconds counted are those of waiting."""
    watch = Stopwatch()
    with watch.phase("evaluate"):
        results = tests.result()
    tested = replace(
        record,
        evaluation=results.evaluation,
        final_evaluation=results.final_evaluation,
        wall={**record.wall, **watch.seconds},
    )
    check_evaluation(tested)
    return tested


class TestedLoop(Protocol):
    """A round loop whose rounds are tested."""

    executor: RoundExecutor
    tester: ModelTester | None
    stop_condition: StopCondition

    @property
    def round_index(self) -> int:
        """The last round that is done."""

    def train(self) -> TrainedRound:
        """Plan the next round and train; the models stay those of the last one."""

    def finish(self, trained: TrainedRound) -> RoundRecord:
        """Exchange, account, report."""


def tested_rounds(loop: TestedLoop) -> Iterator[RoundRecord]:
    """Run the rounds that are left. The tests of a round run while the next one trains: it is
    yielded when they are done. A round in which a shard is lost begins again."""
    tests = RoundTests(loop.executor, loop.tester)

    def is_last(record: RoundRecord) -> bool:
        last = loop.stop_condition.is_last(record)
        if last and loop.tester is not None:
            loop.tester.end_at(record.round_index)
        return last

    while loop.round_index < loop.stop_condition.last_round:
        try:
            tests.start()
            trained = loop.train()
            if tests.waiting:
                yield tests.finish()
            record = loop.finish(trained)
        except ShardLost:
            loop.executor.recover()
            tests.cancel()
            continue
        except Exception as error:
            # The error belongs to this round: the last one can still be committed.
            if tests.can_follow(error):
                yield tests.run()
            raise
        tests.add(record)
        last = is_last(record)
        if last or not tests.overlap or loop.stop_condition.needs_tests:
            tested = tests.run()
            if not last and is_last(tested):
                tests.add(record)  # again, as the last round: on the whole test set as well
                tested = tests.run()
            yield tested


class RoundTests:
    """The last round, complete but for its tests. Without a tester nothing is tested."""

    def __init__(self, executor: RoundExecutor, tester: ModelTester | None) -> None:
        self._executor = executor
        self._tester = tester
        self._record: RoundRecord | None = None
        self._tests: Pending[Evaluations] | None = None

    @property
    def waiting(self) -> bool:
        """Whether there is a round that has not been handed on."""
        return self._record is not None

    @property
    def overlap(self) -> bool:
        """Whether the round can wait for its tests while the next one trains."""
        return self._tester is not None and self._tester.overlap and self._is_tested()

    def add(self, record: RoundRecord) -> None:
        """Take a round whose exchange is done."""
        self._record = record

    def start(self) -> None:
        """Start the tests, unless they run already or there is nothing to test."""
        if self._tests is None and self._is_tested():
            assert self._tester is not None
            assert self._record is not None
            self._tests = self._tester.start_tests(self._record.round_index)

    def cancel(self) -> None:
        """Forget tests that were started: a shard was lost."""
        self._tests = None

    def finish(self) -> RoundRecord:
        """Wait for the tests and hand the round on."""
        assert self._record is not None
        record = self._record
        if self._tests is not None:
            record = with_results(record, self._tests)
        self._record = self._tests = None
        return record

    def run(self) -> RoundRecord:
        """Run the tests and hand the round on; if a shard is lost, again."""
        while True:
            try:
                self.start()
                return self.finish()
            except ShardLost:
                self._executor.recover()
                self.cancel()

    def can_follow(self, error: Exception) -> bool:
        """Whether the round can still be handed on after an error in the next round's training.

        When the user wants to stop, only if that needs no waiting.
        """
        if self._record is None:
            return False
        tested = self._tests is not None and self._tests.done()
        return tested or not isinstance(error, Interrupted)

    def _is_tested(self) -> bool:
        return (
            self._tester is not None
            and self._record is not None
            and self._tester.is_tested(self._record)
        )

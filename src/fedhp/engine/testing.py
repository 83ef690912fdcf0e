"""The tests of a round, which may run while the next round trains."""

from __future__ import annotations

from dataclasses import replace

from fedhp.engine.accounting import Stopwatch, check_evaluation
from fedhp.engine.executor import Evaluations, ModelTester, Pending, RoundExecutor, ShardLost
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

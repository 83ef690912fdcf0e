"""What surrounds the rounds of a loop: when a run ends (its rounds, its horizon, or `until`), after
which rounds it is tested, tests while the next round trains, and lost shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedhp.config import EvaluationConfig, Experiment, UntilConfig
from fedhp.engine.accounting import Stopwatch, check_evaluation
from fedhp.engine.executor import Evaluations, Pending, RoundExecutor, ShardLost
from fedhp.errors import Interrupted
from fedhp.types import RoundRecord

if TYPE_CHECKING:
    from fedhp.engine.loop import RoundLoop
    from fedhp.engine.sharded import ShardedExecutor


def is_due(evaluation: EvaluationConfig, round_index: int, *, started: float, clock: float) -> bool:
    """Whether a round that lasted from `started` to `clock` is tested, though it is not the last:
    every so many rounds, or at the first end of a round at or after each multiple of `seconds`."""
    seconds = evaluation.seconds
    if seconds is None:
        return round_index % evaluation.every == 0
    return _multiples(clock, seconds) > _multiples(started, seconds)


def _multiples(clock: float, seconds: float) -> int:
    """How many multiples of these seconds have passed; a clock may be a rounding error early."""
    return int(clock / seconds * (1 + 1e-12) + 1e-9)


class StopCondition:
    """The last round of a run, as far as it is known. Without tests, `until` and the horizon do not
    count: a replay has the rounds of its record. by_middle: `until.accuracy` is what half of the
    workers have reached, not their mean, which one of them could move."""

    def __init__(self, experiment: Experiment, *, tested: bool, by_middle: bool = False) -> None:
        self._by_middle = by_middle
        self._evaluation = experiment.evaluation
        self._until = experiment.until if tested else UntilConfig()
        self._horizon = experiment.horizon if tested else None
        self._round, self.bytes_sent = 0, 0
        self.last_round = experiment.rounds
        self.reason = ""  # which condition was reached; empty: none

    @property
    def needs_tests(self) -> bool:
        return self._until.accuracy is not None

    def resume(self, round_index: int, clock: float, sent: int, accuracy: float | None) -> None:
        """Continue after this round, with the bytes sent so far."""
        self._round, self.bytes_sent = round_index, sent
        self._check(round_index, clock, accuracy)

    def end(self, round_index: int, reason: str) -> None:
        self.last_round, self.reason = round_index, reason

    def is_last(self, record: RoundRecord) -> bool:
        """Whether the run ends after this round; it may be asked again with its tests."""
        if record.round_index > self._round:
            self._round = record.round_index
            self.bytes_sent += record.bytes_sent
        accuracy, tested = None, record.evaluation
        if tested is not None:
            middle = self._by_middle
            accuracy = float(np.nanmedian(tested.accuracy)) if middle else tested.mean_accuracy
        self._check(record.round_index, record.clock, accuracy)
        return record.round_index >= self.last_round

    def is_tested(self, record: RoundRecord) -> bool:
        """Whether the models are tested: every so many rounds or seconds, and after the last."""
        started = record.clock - record.timing.round_time
        return record.round_index == self.last_round or is_due(
            self._evaluation, record.round_index, started=started, clock=record.clock
        )

    def _check(self, round_index: int, clock: float, accuracy: float | None) -> None:
        until = self._until
        if self._horizon is not None and clock >= self._horizon:
            self.last_round = min(self.last_round, round_index)
        if until.accuracy is not None and accuracy is not None and accuracy >= until.accuracy:
            self.reason = f"until.accuracy = {until.accuracy:g} is reached ({accuracy:.4g})"
        elif until.clock is not None and clock >= until.clock:
            self.reason = f"until.clock = {until.clock:g} is reached ({clock:.6g} s)"
        elif until.bytes is not None and self.bytes_sent >= until.bytes:
            self.reason = f"until.bytes = {until.bytes} is reached ({self.bytes_sent} bytes)"
        else:
            return
        self.last_round = min(self.last_round, round_index)


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


def tested_rounds(loop: RoundLoop) -> Iterator[RoundRecord]:
    """Run the rounds that are left. The tests of a round run while the next one trains: it is
    yielded when they are done. A round in which a shard is lost begins again."""
    tester, condition = loop.tester, loop.stop_condition
    waiting: RoundTests | None = None  # the last round, complete but for its tests
    while loop.progress.round_index < condition.last_round:
        try:
            if waiting is not None:
                waiting.start()
            trained = loop.train()
            if waiting is not None:
                tested, waiting = waiting.finish(), None
                yield tested
            record = loop.finish(*trained)
        except ShardLost:
            loop.executor.recover()
            if waiting is not None:
                waiting.pending = None
            continue
        except Exception as error:
            # The error belongs to this round: the last one can still be committed.
            if waiting is not None and waiting.can_follow(error):
                yield waiting.run(loop.executor)
            raise
        last = condition.is_last(record)
        if tester is None or not condition.is_tested(record):
            yield record
            continue
        waiting = RoundTests(record, tester, last)
        if last or condition.needs_tests or not tester.overlap:
            tested, waiting = waiting.run(loop.executor), None
            if not last and condition.is_last(tested):
                # Again, as the last round: on the whole test set as well.
                tested = RoundTests(record, tester, last=True).run(loop.executor)
            yield tested


@dataclass(slots=True)
class RoundTests:
    """A round that is complete but for its tests."""

    record: RoundRecord
    tester: ShardedExecutor
    last: bool
    pending: Pending[Evaluations] | None = None

    def start(self) -> None:
        """Start the tests, unless they run already."""
        if self.pending is None:
            self.pending = self.tester.start_tests(last=self.last)

    def finish(self) -> RoundRecord:
        assert self.pending is not None
        return with_results(self.record, self.pending)

    def run(self, executor: RoundExecutor) -> RoundRecord:
        """Start the tests and wait for them; if a shard is lost, again."""
        while True:
            try:
                self.start()
                return self.finish()
            except ShardLost:
                executor.recover()
                self.pending = None

    def can_follow(self, error: Exception) -> bool:
        """Whether the round can still be handed on after an error in the next round's training.

        When the user wants to stop, only if that needs no waiting.
        """
        tested = self.pending is not None and self.pending.done()
        return tested or not isinstance(error, Interrupted)

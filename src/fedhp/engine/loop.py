"""THE round loop: plan, train, exchange, time, report; tests run beside the next training.

The caller commits each record. A round is yielded when its tests are done, at the latest
after the next round's training, which leaves the models of the round as they are: a round
that is interrupted simply did not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedhp.algorithms import Algorithm, Observation
from fedhp.engine.accounting import (
    Work,
    account,
    calibration,
    check_record,
    rate_at,
    reports_of,
)
from fedhp.engine.executor import RoundExecutor, ShardLost, Testing
from fedhp.engine.stopwatch import Stopwatch
from fedhp.errors import Interrupted
from fedhp.record.checkpoint import Checkpoint
from fedhp.record.packing import pack, unpack
from fedhp.types import BoolArray, IntArray, Plan, Reports, RoundRecord


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands after a round."""

    round_index: int
    clock: float  # at the end of that round
    started: float  # clock at its start
    algorithm_state: Any
    reports: Reports


class RoundLoop:
    """Drives a synchronous algorithm."""

    def __init__(self, engine: RoundExecutor, algorithm: Algorithm) -> None:
        self.engine = engine
        self.algorithm = algorithm
        self.world = engine.prepared.world
        self.experiment = engine.prepared.experiment
        self.progress = Progress(
            round_index=0,
            clock=0.0,
            started=0.0,
            algorithm_state=algorithm.start(engine.prepared.federation),
            reports=calibration(self.world),
        )

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the rounds that are left."""
        testing: _Testing | None = None  # the last round, done but for its tests
        while testing is not None or self.progress.round_index < self.experiment.rounds:
            try:
                if testing is not None:
                    testing.begin(self.engine)
                work = self._train() if self.progress.round_index < self.experiment.rounds else None
                if testing is not None:
                    record, testing = testing.finished(), None
                    yield record
                if work is not None:
                    record = self._finish(work)
                    if not self.engine.tests(record.round_index):
                        yield record
                        continue
                    testing = _Testing(record)
                    if not self.engine.prepared.overlap:
                        testing.begin(self.engine)
                        record, testing = testing.finished(), None
                        yield record
            except ShardLost:
                self.engine.recover()
                if testing is not None:
                    testing = _Testing(testing.record)
            except Exception as error:
                # What went wrong belongs to the round after: this one can still be told.
                if testing is not None and (testing.done() or not isinstance(error, Interrupted)):
                    yield testing.finished()
                raise

    def _train(self) -> Work:
        """Algorithm 2, then lines 3-5 of Algorithm 1: decide, and let everyone work."""
        watch, last = Stopwatch(), self.progress
        round_index = last.round_index + 1
        observation = self._observe(round_index)
        state, plan = self.algorithm.plan(last.algorithm_state, observation, last.reports)
        steps = self._steps(plan, round_index, observation.available)
        watch.lap("plan")
        training = self.engine.train(
            steps, round_index=round_index, learning_rate=observation.learning_rate
        )
        watch.lap("train")
        estimates = None
        if plan.estimate is not None:
            estimates = self.engine.estimate(plan.estimate & (steps > 0), round_index=round_index)
        watch.lap("estimate")
        return Work(state, plan, observation, steps, training, estimates, watch)

    def _finish(self, work: Work) -> RoundRecord:
        """Exchange and mix, lines 6-9; then the round is over but for its tests."""
        last, watch = self.progress, work.watch
        watch.resume()
        exchanged = self.engine.exchange(work.plan.exchange, round_index=last.round_index + 1)
        watch.lap("mix")
        record = account(
            self.engine.prepared,
            work=work,
            network=self.world.network(last.clock),
            exchanged=exchanged,
        )
        check_record(record, self.experiment.world.bandwidth.interval)
        self.engine.advance()
        watch.lap("account")
        self.progress = Progress(
            record.round_index,
            record.clock,
            last.clock,
            work.state,
            reports_of(record, work, exchanged),
        )
        return record

    def _observe(self, round_index: int) -> Observation:
        """What the planner is told: links as they are now, or as they were one round ago."""
        clock = self.progress.clock
        late = self.experiment.world.monitor_delay > 0
        return Observation(
            round_index=round_index,
            clock=clock,
            learning_rate=rate_at(self.experiment, round_index, clock),
            available=self.world.available(round_index),
            network=self.world.network(self.progress.started if late else clock),
        )

    def _steps(self, plan: Plan, round_index: int, available: BoolArray) -> IntArray:
        """Step counts as planned, or as many as fit the plan's deadline."""
        if plan.local_steps is not None:
            return plan.local_steps
        if plan.deadline is None:
            raise ValueError("a plan needs local_steps or a deadline")
        counts = [
            self.world.steps_until(
                worker, round_index, deadline=plan.deadline, time=self.progress.clock
            )
            for worker in range(self.experiment.workers)
        ]
        return np.where(available, counts, 0).astype(np.int64)

    def checkpoint(self) -> Checkpoint:
        """Everything needed to go on from here."""
        progress = self.progress
        state_arrays, state_scalars = pack("state", progress.algorithm_state)
        report_arrays, report_scalars = pack("reports", progress.reports)
        return Checkpoint(
            round_index=progress.round_index,
            arrays={
                **self.engine.state(),
                **state_arrays,
                **report_arrays,
            },
            scalars={
                "clock": progress.clock,
                "started": progress.started,
                **state_scalars,
                **report_scalars,
            },
        )

    def restore(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint."""
        self.engine.load({name: saved.arrays[name] for name in ("models", "counters")})
        kind = type(self.progress.algorithm_state)
        self.progress = Progress(
            round_index=saved.round_index,
            clock=saved.scalars["clock"],
            started=saved.scalars["started"],
            algorithm_state=unpack("state", kind, saved.arrays, saved.scalars),
            reports=unpack("reports", Reports, saved.arrays, saved.scalars),
        )


class _Testing:
    """A round whose tests are under way; after the last round, on the whole test set as well."""

    def __init__(self, record: RoundRecord) -> None:
        self.record = record
        self._part: Testing | None = None
        self._whole: Testing | None = None

    def begin(self, engine: RoundExecutor) -> None:
        """Start them, unless they are under way."""
        if self._part is None:
            last = self.record.round_index == engine.prepared.experiment.rounds
            if last and engine.prepared.whole_at_end:
                self._whole = engine.test(whole=True)
            self._part = engine.test()

    def done(self) -> bool:
        """Whether they can be had without waiting."""
        parts = (self._part, self._whole)
        return self._part is not None and all(part is None or part.done() for part in parts)

    def finished(self) -> RoundRecord:
        """Wait for them: the whole round. The seconds told are those of waiting."""
        assert self._part is not None
        watch = Stopwatch()
        evaluation = self._part.result()
        final = self._whole.result() if self._whole is not None else None
        watch.lap("evaluate")
        return replace(
            self.record,
            evaluation=evaluation,
            final_evaluation=final,
            wall={**self.record.wall, **watch.laps},
        )

"""THE round loop: plan, train, exchange, time, evaluate, report. One round is one yield.

The caller commits each record; until a round is yielded the state is that of the round
before, so a round that is interrupted simply did not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhp.algorithms import Algorithm, Observation
from fedhp.engine.account import account, calibration, evaluate_now, rate_at, reports_of
from fedhp.engine.local import LocalEngine
from fedhp.engine.stopwatch import Stopwatch
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

    def __init__(self, engine: LocalEngine, algorithm: Algorithm) -> None:
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
        for round_index in range(self.progress.round_index + 1, self.experiment.rounds + 1):
            watch = Stopwatch()
            last = self.progress
            observation = self._observe(round_index)
            state, plan = self.algorithm.plan(last.algorithm_state, observation, last.reports)
            steps = self._steps(plan, round_index, observation.available)
            watch.lap("plan")

            training = self.engine.train(
                steps,
                round_index=round_index,
                learning_rate=observation.learning_rate,
                estimates=plan.estimate is not None,
            )
            watch.lap("train")

            exchanged = self.engine.exchange(plan.exchange, round_index=round_index)
            watch.lap("mix")

            evaluation = None
            if evaluate_now(self.experiment, round_index):
                evaluation = self.engine.evaluate(self.engine.mixed)
            watch.lap("evaluate")

            record = account(
                self.engine.prepared,
                plan=plan,
                observation=observation,
                network=self.world.network(last.clock),
                local_steps=steps,
                training=training,
                exchanged=exchanged,
                evaluation=evaluation,
                wall=watch.laps,
            )
            self.engine.advance()
            self.progress = Progress(
                round_index,
                record.clock,
                last.clock,
                state,
                reports_of(record, training, exchanged),
            )
            yield record

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
                "models": self.engine.models.cpu().numpy(),
                "counters": self.engine.counters.cpu().numpy(),
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
        self.engine.load(saved.arrays["models"], saved.arrays["counters"])
        kind = type(self.progress.algorithm_state)
        self.progress = Progress(
            round_index=saved.round_index,
            clock=saved.scalars["clock"],
            started=saved.scalars["started"],
            algorithm_state=unpack("state", kind, saved.arrays, saved.scalars),
            reports=unpack("reports", Reports, saved.arrays, saved.scalars),
        )

"""THE round loop: plan, train, exchange, account, report; tests run while the next round trains.

The caller commits each record. Training leaves the models of the last round as they are, so
that a round that is interrupted simply did not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedhp.algorithms import Observation
from fedhp.algorithms.base import is_synchronous
from fedhp.algorithms.enough_peers import with_min_peers
from fedhp.algorithms.plan_checks import next_plan
from fedhp.engine.accounting import (
    RoundPlan,
    Stopwatch,
    account,
    calibration,
    check_clock,
    group_round,
    rate_at,
    reports_of,
    together,
)
from fedhp.engine.context import PlanningContext
from fedhp.engine.executor import (
    Estimates,
    ModelTester,
    RoundExecutor,
    ShardLost,
    Training,
)
from fedhp.engine.testing import RoundTests
from fedhp.engine.until import StopCondition
from fedhp.exchange import Exchanged
from fedhp.record.checkpoint import Checkpoint
from fedhp.record.tensors import pack, unpack
from fedhp.timing import Network
from fedhp.types import BoolArray, FloatArray, IntArray, Plan, Reports, RoundRecord


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a run after a round, without its models."""

    round_index: int
    clock: float  # at the end of that round
    started: float  # clock at its start
    algorithm_state: Any
    reports: Reports
    carried: FloatArray  # [N] s spent on steps that a group average left unfinished


class RoundLoop:
    """Drives a synchronous algorithm."""

    def __init__(
        self,
        context: PlanningContext,
        executor: RoundExecutor,
        *,
        tester: ModelTester | None = None,
    ) -> None:
        assert is_synchronous(context.algorithm)
        self.context = context
        self.executor = executor
        self.tester = tester
        self.algorithm = context.algorithm
        self.world = context.world
        self.experiment = context.experiment
        self.stop_condition = StopCondition(context.experiment, tested=tester is not None)
        self.progress = Progress(
            round_index=0,
            clock=0.0,
            started=0.0,
            algorithm_state=self.algorithm.start(context.federation),
            reports=calibration(self.world),
            carried=np.zeros(self.experiment.workers),
        )

    def rounds(self) -> Iterator[RoundRecord]:
        """Run the rounds that are left.

        A round is yielded when its tests are done, at the latest after the next one's training.
        """
        tests = RoundTests(self.executor, self.tester)
        while self.progress.round_index < self.stop_condition.last_round:
            watch = Stopwatch()
            try:
                tests.start()  # of the last round: they run while this one trains
                with watch.phase("plan"):
                    planned = self._plan()
                with watch.phase("train"):
                    training = self.executor.train(
                        planned.local_steps
                        if planned.group is None
                        else planned.group.during_transfer,
                        round_index=planned.round_index,
                        learning_rate=planned.observation.learning_rate,
                        present=planned.observation.available,
                    )
                with watch.phase("estimate"):
                    estimates = self._estimate(planned)
                if tests.waiting:
                    yield tests.finish()
                with watch.phase("mix"):
                    exchanged = self.executor.exchange(
                        planned.plan.exchange, round_index=planned.round_index
                    )
                if planned.group is not None:
                    with watch.phase("train"):
                        training = self._train_on(planned, training)
                with watch.phase("account"):
                    record = account(
                        self.context,
                        planned,
                        training=training,
                        estimates=estimates,
                        exchanged=exchanged,
                        wall=watch.seconds,
                    )
                    check_clock(record, self.experiment)
                    self.executor.advance()
                    self.progress = self._report(planned, record, estimates, exchanged)
            except ShardLost:
                self.executor.recover()
                tests.cancel()
                continue
            except Exception as error:
                # The error belongs to this round: the last one can still be committed.
                if tests.can_follow(error):
                    yield tests.run()
                raise
            tests.add(record)
            last = self._is_last(record)
            if last or not tests.overlap or self.stop_condition.needs_tests:
                tested = tests.run()
                if not last and self._is_last(tested):
                    tests.add(record)  # again, as the last round: on the whole test set as well
                    tested = tests.run()
                yield tested

    def _is_last(self, record: RoundRecord) -> bool:
        last = self.stop_condition.is_last(record)
        if last and self.tester is not None:
            self.tester.end_at(record.round_index)
        return last

    def _plan(self) -> RoundPlan:
        """Algorithm 2: what the coordinator decides by the reports of the last round."""
        last, round_index = self.progress, self.progress.round_index + 1
        # A late monitor knows the links as they were one round ago.
        late = self.experiment.world.monitor_delay > 0
        observation = Observation(
            round_index=round_index,
            clock=last.clock,
            learning_rate=rate_at(self.context, round_index, last.clock),
            available=self.world.available(round_index, last.clock),
            network=self._monitored(last.started if late else last.clock, round_index),
            share_done=self.context.share_done(last.clock),
            topology=self.context.federation.topology_at(round_index),
            changing=self.context.federation.changing is not None,
            epoch_steps=self.context.epoch_steps,
        )
        state, plan = next_plan(
            self.algorithm, last.algorithm_state, observation=observation, reports=last.reports
        )
        exchange, present = self.experiment.exchange, int(observation.available.sum())
        plan = with_min_peers(
            plan, observation, least=exchange.min_peers(self.experiment.workers, present=present)
        )
        lead_time = plan.exchange.lead_time_in(self.world, clock=last.clock, event=round_index)
        if lead_time is not None:
            local_steps, group = group_round(
                self.world, plan, observation, last.carried, transfer_time=lead_time
            )
            return RoundPlan(state, plan, observation, local_steps, group)
        local_steps = self._local_steps(plan, round_index, observation.available)
        return RoundPlan(state, plan, observation, local_steps)

    def _monitored(self, clock: float, round_index: int) -> Network:
        """The links as the planner sees them, with the size of what travels."""
        network, share = self.world.monitored(clock, round_index), self.context.transfer_share
        return network if share == 1 else replace(network, model_bits=share * network.model_bits)

    def _train_on(self, planned: RoundPlan, first: Training) -> Training:
        """The steps after a group average, until the deadline."""
        assert planned.group is not None
        second = self.executor.train_on(
            planned.local_steps - planned.group.during_transfer,
            round_index=planned.round_index,
            learning_rate=planned.observation.learning_rate,
        )
        return together(planned, first, second)

    def _local_steps(self, plan: Plan, round_index: int, available: BoolArray) -> IntArray:
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

    def _estimate(self, planned: RoundPlan) -> Estimates | None:
        """Algorithm 1, line 5, by the workers the plan asks."""
        if planned.plan.estimate is None:
            return None
        chosen = planned.plan.estimate & (planned.local_steps > 0)
        return self.executor.estimate(chosen, round_index=planned.round_index)

    def _report(
        self,
        planned: RoundPlan,
        record: RoundRecord,
        estimates: Estimates | None,
        exchanged: Exchanged,
    ) -> Progress:
        """What the next plan starts from."""
        return Progress(
            round_index=record.round_index,
            clock=record.clock,
            started=self.progress.clock,
            algorithm_state=planned.state,
            reports=reports_of(record, estimates=estimates, exchanged=exchanged),
            carried=np.zeros(self.experiment.workers)
            if planned.group is None
            else planned.group.carried,
        )

    def checkpoint(self) -> Checkpoint:
        """Everything needed to resume from here, without the models."""
        progress = self.progress
        state_arrays, state_scalars = pack("state", progress.algorithm_state)
        report_arrays, report_scalars = pack("reports", progress.reports)
        return Checkpoint(
            round_index=progress.round_index,
            arrays={**state_arrays, **report_arrays, "carried": progress.carried},
            scalars={
                "clock": progress.clock,
                "started": progress.started,
                **state_scalars,
                **report_scalars,
            },
        )

    def restore(self, saved: Checkpoint) -> None:
        """Resume from a checkpoint."""
        kind = type(self.progress.algorithm_state)
        self.progress = Progress(
            round_index=saved.round_index,
            clock=saved.scalars["clock"],
            started=saved.scalars["started"],
            algorithm_state=unpack("state", kind, saved.arrays, saved.scalars),
            reports=unpack("reports", Reports, saved.arrays, saved.scalars),
            carried=saved.arrays["carried"],
        )
